#include "worker/link/credentials.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEM_BYTES_MAX = 1 << 20 };

/* The whole file as a string, NULL for an empty path; the caller frees it. */
static int read_pem(const char *path, char **out, struct pd_error *error)
{
    FILE *file;
    char *text;
    size_t length;

    *out = NULL;
    if (!*path)
        return PD_OK;
    file = fopen(path, "re");
    if (!file)
        return pd_fail(error, PD_IO, "cannot open %s: %s", path, strerror(errno));
    text = malloc(PEM_BYTES_MAX + 1);
    length = text ? fread(text, 1, PEM_BYTES_MAX + 1, file) : 0;
    fclose(file);
    if (!text)
        return pd_fail(error, PD_NO_MEMORY, "no memory for %s", path);
    if (length > PEM_BYTES_MAX) {
        free(text);
        return pd_fail(error, PD_INVALID, "%s is larger than 1 MiB: not a PEM file", path);
    }
    text[length] = '\0';
    if (!strstr(text, "-----BEGIN ")) {
        free(text);
        return pd_fail(error, PD_INVALID, "%s holds no PEM (\"-----BEGIN ...\")", path);
    }
    *out = text;
    return PD_OK;
}

int pd_credentials_client(const char *cert, const char *key, const char *authorities,
                          grpc_channel_credentials **out, struct pd_error *error)
{
    char *chain = NULL, *private = NULL, *roots = NULL;
    int status;

    *out = NULL;
    if (!*cert && !*authorities) {
        *out = grpc_insecure_credentials_create();
        return PD_OK;
    }
    status = read_pem(cert, &chain, error);
    if (status == PD_OK)
        status = read_pem(key, &private, error);
    if (status == PD_OK)
        status = read_pem(authorities, &roots, error);
    if (status == PD_OK) {
        grpc_ssl_pem_key_cert_pair pair = {private, chain};

        *out = grpc_ssl_credentials_create_ex(roots, chain ? &pair : NULL, NULL, NULL);
        if (!*out)
            status = pd_fail(error, PD_INVALID, "gRPC takes neither %s nor %s", cert, key);
    }
    free(chain);
    free(private);
    free(roots);
    return status;
}

static int make_tls(grpc_ssl_pem_key_cert_pair *pair, const char *authorities,
                    struct pd_credentials *credentials, struct pd_error *error)
{
    grpc_ssl_client_certificate_request_type request =
        authorities ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;

    credentials->server =
        grpc_ssl_server_credentials_create_ex(authorities, pair, 1, request, NULL);
    credentials->channel = grpc_ssl_credentials_create_ex(authorities, pair, NULL, NULL);
    if (!credentials->server || !credentials->channel)
        return pd_fail(error, PD_INVALID, "gRPC takes neither --tls-cert nor --tls-key");
    return PD_OK;
}

int pd_credentials_create(const char *cert, const char *key, const char *authorities,
                          struct pd_credentials *credentials, struct pd_error *error)
{
    char *chain = NULL, *private = NULL, *roots = NULL;
    int status;

    memset(credentials, 0, sizeof(*credentials));
    if (!*cert) {
        credentials->server = grpc_insecure_server_credentials_create();
        credentials->channel = grpc_insecure_credentials_create();
        return PD_OK;
    }
    status = read_pem(cert, &chain, error);
    if (status == PD_OK)
        status = read_pem(key, &private, error);
    if (status == PD_OK)
        status = read_pem(authorities, &roots, error);
    if (status == PD_OK) {
        grpc_ssl_pem_key_cert_pair pair = {private, chain};

        status = make_tls(&pair, roots, credentials, error);
    }
    free(chain);
    free(private);
    free(roots);
    return status;
}

void pd_credentials_free(struct pd_credentials *credentials)
{
    if (credentials->server)
        grpc_server_credentials_release(credentials->server);
    if (credentials->channel)
        grpc_channel_credentials_release(credentials->channel);
    memset(credentials, 0, sizeof(*credentials));
}
