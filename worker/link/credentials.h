/* The one place where it is decided whether a connection is plain or TLS.
 *
 * With --tls-cert and --tls-key this worker serves TLS and connects with TLS; with --tls-ca both
 * sides must show a certificate that it signed. gRPC verifies a server's name against the address
 * that was dialled. */
#ifndef PD_CREDENTIALS_H
#define PD_CREDENTIALS_H

#include <grpc/grpc_security.h>
#include <stdbool.h>

#include "worker/base/error.h"

struct pd_credentials {
    grpc_server_credentials *server;
    grpc_channel_credentials *channel;
};

/* Reads the PEM files (empty paths: plain text). Fails by name on a file that cannot be read or is
 * no PEM. */
int pd_credentials_create(const char *cert, const char *key, const char *authorities,
                          struct pd_credentials *credentials, struct pd_error *error);

/* For a program that only calls: plain text without `cert` and `authorities`; TLS with either. Without
 * `authorities` a server must be known to the system's. */
int pd_credentials_client(const char *cert, const char *key, const char *authorities,
                          grpc_channel_credentials **out, struct pd_error *error);

void pd_credentials_free(struct pd_credentials *credentials);

#endif
