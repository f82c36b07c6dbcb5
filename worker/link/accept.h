/* How this process takes connections in: never with its last files.
 *
 * gRPC gives a listener up for good when accept() fails, so one moment without a free file would
 * make this worker deaf for the rest of its life. accept.c therefore defines accept4 for the whole
 * process, the libraries included. */
#ifndef PD_ACCEPT_H
#define PD_ACCEPT_H

#include <stdint.h>

/* Connections that were closed as soon as they came, since start. Any thread. */
uint64_t pd_accept_refused(void);

#endif
