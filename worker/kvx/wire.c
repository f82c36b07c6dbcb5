#include "worker/kvx/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

struct pd_tls {
    SSL_CTX *context;
    bool authorities;
    uint8_t digest[PD_DIGEST];
};

/* ---- who this process is --------------------------------------------------------------------- */

/* Whom a connection may be with: the very certificate that the control stream has named, where there is
 * one, and one that the authorities have signed, where there are any. */
static int judge(X509_STORE_CTX *store, void *context)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    const struct pd_wire *wire = SSL_get_app_data(ssl);
    uint8_t digest[PD_DIGEST];

    (void)context;
    if (!SSL_is_server(ssl) &&
        (X509_digest(X509_STORE_CTX_get0_cert(store), EVP_sha256(), digest, NULL) != 1 ||
         memcmp(digest, wire->expected, sizeof(digest)) != 0)) {
        X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
        return 0;
    }
    return !wire->tls->authorities || X509_verify_cert(store) == 1;
}

static int refuse_file(struct pd_error *error, const char *what, const char *path)
{
    unsigned long problem = ERR_get_error();

    ERR_clear_error();
    return pd_fail(error, PD_INVALID, "%s %s for KV data connections: %s", what, path,
                   problem ? ERR_reason_error_string(problem) : "cannot be used");
}

static int load(struct pd_tls *tls, const char *chain, const char *key, const char *authorities,
                struct pd_error *error)
{
    SSL_CTX *context = tls->context;

    if (SSL_CTX_use_certificate_chain_file(context, chain) != 1)
        return refuse_file(error, "certificate", chain);
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        return refuse_file(error, "key", key);
    if (authorities && *authorities) {
        if (SSL_CTX_load_verify_locations(context, authorities, NULL) != 1)
            return refuse_file(error, "authorities", authorities);
        tls->authorities = true;
    }
    if (X509_digest(SSL_CTX_get0_certificate(context), EVP_sha256(), tls->digest, NULL) != 1)
        return refuse_file(error, "certificate", chain);
    return PD_OK;
}

int pd_tls_create(const char *chain, const char *key, const char *authorities, struct pd_tls **out,
                  struct pd_error *error)
{
    struct pd_tls *tls = calloc(1, sizeof(*tls));

    ERR_clear_error();
    if (tls)
        tls->context = SSL_CTX_new(TLS_method());
    if (!tls || !tls->context) {
        free(tls);
        return pd_fail(error, PD_NO_MEMORY, "TLS: no memory");
    }
    SSL_CTX_set_min_proto_version(tls->context, TLS1_3_VERSION);
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(tls->context, 0);
    SSL_CTX_set_mode(tls->context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_cert_verify_callback(tls->context, judge, NULL);
    if (load(tls, chain, key, authorities, error) != PD_OK) {
        pd_tls_free(tls);
        return error->status;
    }
    *out = tls;
    return PD_OK;
}

void pd_tls_free(struct pd_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

const uint8_t *pd_tls_digest(const struct pd_tls *tls)
{
    return tls->digest;
}

/* ---- one connection -------------------------------------------------------------------------- */

static int begin(struct pd_wire *wire, int fd, struct pd_tls *tls)
{
    *wire = (struct pd_wire){.fd = fd, .tls = tls};
    if (!tls)
        return PD_OK;
    ERR_clear_error();
    wire->ssl = SSL_new(tls->context);
    if (!wire->ssl || SSL_set_fd(wire->ssl, fd) != 1) {
        pd_wire_close(wire);
        return PD_NO_MEMORY;
    }
    SSL_set_app_data(wire->ssl, wire);
    return PD_OK;
}

int pd_wire_accept(struct pd_wire *wire, int fd, struct pd_tls *tls)
{
    if (begin(wire, fd, tls) != PD_OK)
        return PD_NO_MEMORY;
    if (wire->ssl) {
        SSL_set_accept_state(wire->ssl);
        SSL_set_verify(wire->ssl,
                       tls->authorities ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT
                                        : SSL_VERIFY_NONE,
                       NULL);
    }
    return PD_OK;
}

int pd_wire_connect(struct pd_wire *wire, int fd, struct pd_tls *tls,
                    const uint8_t digest[PD_DIGEST])
{
    if (begin(wire, fd, tls) != PD_OK)
        return PD_NO_MEMORY;
    memcpy(wire->expected, digest, sizeof(wire->expected));
    if (wire->ssl) {
        SSL_set_connect_state(wire->ssl);
        SSL_set_verify(wire->ssl, SSL_VERIFY_PEER, NULL);
    }
    return PD_OK;
}

void pd_wire_close(struct pd_wire *wire)
{
    if (wire->ssl)
        SSL_free(wire->ssl);
    wire->ssl = NULL;
}

/* For people: what the peer's certificate lacks, else what the library says. */
static void explain(struct pd_wire *wire)
{
    unsigned long problem = ERR_get_error();
    long verdict = SSL_get_verify_result(wire->ssl);

    if (verdict == X509_V_ERR_APPLICATION_VERIFICATION)
        snprintf(wire->why, sizeof(wire->why),
                 "TLS: the certificate is not the one that the source's hello names");
    else if (verdict != X509_V_OK)
        snprintf(wire->why, sizeof(wire->why), "TLS: the peer's certificate: %s",
                 X509_verify_cert_error_string(verdict));
    else if (problem != 0)
        snprintf(wire->why, sizeof(wire->why), "TLS: %s", ERR_reason_error_string(problem));
    ERR_clear_error();
}

/* What an operation that moved nothing says; sets errno. */
static ssize_t blocked_or_broken(struct pd_wire *wire, int result, uint32_t *wants)
{
    switch (SSL_get_error(wire->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        *wants = EPOLLIN;
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_WANT_WRITE:
        *wants = EPOLLOUT;
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        explain(wire);
        errno = EPROTO;
        return -1;
    }
}

static ssize_t plain_result(ssize_t moved, uint32_t event, uint32_t *wants)
{
    if (moved < 0 && errno == EINTR)
        errno = EAGAIN;
    *wants = moved < 0 && errno == EAGAIN ? event : 0;
    return moved;
}

ssize_t pd_wire_send(struct pd_wire *wire, const struct iovec *pieces, size_t count)
{
    size_t total = 0;

    if (!wire->ssl) {
        struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = count};

        return plain_result(sendmsg(wire->fd, &message, MSG_NOSIGNAL), EPOLLOUT, &wire->send_wants);
    }
    wire->send_wants = 0;
    ERR_clear_error();
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0, n; at < pieces[i].iov_len; at += n, total += n) {
            int result = SSL_write_ex(wire->ssl, (const uint8_t *)pieces[i].iov_base + at,
                                      pieces[i].iov_len - at, &n);

            if (result != 1 && total > 0)
                return (ssize_t)total; /* whatever it is, the next call finds it again */
            if (result != 1)
                return blocked_or_broken(wire, result, &wire->send_wants);
        }
    }
    return (ssize_t)total;
}

ssize_t pd_wire_receive(struct pd_wire *wire, const struct iovec *pieces, size_t count)
{
    size_t total = 0;

    if (!wire->ssl) {
        struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = count};

        return plain_result(recvmsg(wire->fd, &message, 0), EPOLLIN, &wire->receive_wants);
    }
    wire->receive_wants = 0;
    ERR_clear_error();
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0, n; at < pieces[i].iov_len; at += n, total += n) {
            int result = SSL_read_ex(wire->ssl, (uint8_t *)pieces[i].iov_base + at,
                                     pieces[i].iov_len - at, &n);

            if (result != 1 && total > 0)
                return (ssize_t)total;
            if (result != 1)
                return blocked_or_broken(wire, result, &wire->receive_wants);
        }
    }
    return (ssize_t)total;
}

bool pd_wire_pending(const struct pd_wire *wire)
{
    return wire->ssl && SSL_has_pending(wire->ssl);
}
