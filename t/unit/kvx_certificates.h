/* Certificates of two authorities, made on the spot, as PEM files in a folder of the test's own. */
#ifndef KVX_CERTIFICATES_H
#define KVX_CERTIFICATES_H

/* NAME.pem and NAME.key for each: two authorities, two workers of the first, one of the other. */
enum kvx_name { KVX_CA, KVX_OTHER_CA, KVX_SOURCE, KVX_READER, KVX_STRANGER, KVX_NAMES };

/* Makes them once a process; removed at its end. */
const char *kvx_certificate(enum kvx_name name);
const char *kvx_private_key(enum kvx_name name);

#endif
