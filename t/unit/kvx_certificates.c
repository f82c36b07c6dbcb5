#include "t/unit/kvx_certificates.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

static char folder[] = "/tmp/kvx-certificates-XXXXXX";
static char files[KVX_NAMES][2][64];
static X509 *certificates[KVX_NAMES];
static EVP_PKEY *keys[KVX_NAMES];

static void remove_all(void)
{
    for (int i = 0; i < KVX_NAMES; i++) {
        unlink(files[i][0]);
        unlink(files[i][1]);
        X509_free(certificates[i]);
        EVP_PKEY_free(keys[i]);
    }
    rmdir(folder);
}

static void write_files(int name)
{
    FILE *file = fopen(files[name][0], "w");

    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, certificates[name]), 1);
    fclose(file);
    file = fopen(files[name][1], "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, keys[name], NULL, NULL, 0, NULL, NULL), 1);
    fclose(file);
}

static void make(enum kvx_name name, enum kvx_name issuer, const char *common_name)
{
    X509 *certificate = X509_new();
    X509_NAME *subject = X509_get_subject_name(certificate);
    X509_EXTENSION *extension;

    keys[name] = EVP_EC_gen("P-256");
    certificates[name] = certificate;
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1 + (long)name);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 24L * 3600);
    X509_set_pubkey(certificate, keys[name]);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)common_name, -1,
                               -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificates[issuer]));
    extension = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints,
                                    issuer == name ? "critical,CA:TRUE" : "CA:FALSE");
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    assert_true(X509_sign(certificate, keys[issuer], EVP_sha256()) > 0);
    write_files(name);
}

static void make_all(void)
{
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < KVX_NAMES; i++) {
        snprintf(files[i][0], sizeof(files[i][0]), "%s/%d.pem", folder, i);
        snprintf(files[i][1], sizeof(files[i][1]), "%s/%d.key", folder, i);
    }
    atexit(remove_all);
    make(KVX_CA, KVX_CA, "the cluster's authority");
    make(KVX_OTHER_CA, KVX_OTHER_CA, "somebody's authority");
    make(KVX_SOURCE, KVX_CA, "p0");
    make(KVX_READER, KVX_CA, "d0");
    make(KVX_STRANGER, KVX_OTHER_CA, "p0");
}

const char *kvx_certificate(enum kvx_name name)
{
    if (!certificates[0])
        make_all();
    return files[name][0];
}

const char *kvx_private_key(enum kvx_name name)
{
    if (!certificates[0])
        make_all();
    return files[name][1];
}
