/* Where a source's data connections are reached: host:port as text in its hello, a socket address
 * here. Numeric only: names would have to be asked for, and that waits. */
#ifndef PD_KVX_ENDPOINT_H
#define PD_KVX_ENDPOINT_H

#include <netdb.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "worker/base/error.h"
#include "worker/kvx/messages.h"

/* On PD_OK *found is the caller's, for freeaddrinfo. */
int pd_endpoint_parse(const char *text, struct addrinfo **found, struct pd_error *error);

/* "10.0.0.1:7000" or "[fd00::1]:7000". PD_OK or PD_IO. */
int pd_endpoint_format(const struct sockaddr *address, socklen_t length, char text[PD_KV_ADDRESS]);

/* A wildcard is a place to listen, and none to connect to. */
bool pd_endpoint_is_wildcard(const struct sockaddr *address);

#endif
