#include "worker/kvx/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/uio.h>

void pd_tcp_set_options(int fd)
{
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    int on = 1;

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void pd_iov_advance(struct iovec *pieces, size_t count, size_t *next, size_t done)
{
    while (*next < count && done >= pieces[*next].iov_len)
        done -= pieces[(*next)++].iov_len;
    if (done > 0) {
        pieces[*next].iov_base = (uint8_t *)pieces[*next].iov_base + done;
        pieces[*next].iov_len -= done;
    }
}

static void destroy(struct pd_transport *transport)
{
    struct pd_tcp *tcp = (struct pd_tcp *)transport;

    pd_tcp_close_listener(tcp);
    pd_tls_free(tcp->tls);
    free(tcp);
}

static const struct pd_transport_kind kind = {
    .name = "tcp",
    .window = PD_TCP_WINDOW,
    .serve = pd_tcp_serve,
    .withdraw = pd_tcp_withdraw,
    .connect = pd_tcp_connect,
    .read = pd_tcp_read,
    .disconnect = pd_tcp_disconnect,
    .work = pd_tcp_work,
    .tick = pd_tcp_source_tick,
    .destroy = destroy,
};

static int use_tls(struct pd_tcp *tcp, const struct pd_transport_options *options,
                   struct pd_error *error)
{
    int status =
        pd_tls_create(options->tls_cert, options->tls_key, options->tls_ca, &tcp->tls, error);

    if (status == PD_OK)
        tcp->base.certificate = pd_tls_digest(tcp->tls);
    return status;
}

int pd_tcp_create(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error)
{
    struct pd_tcp *tcp = calloc(1, sizeof(*tcp));
    int status;

    if (!tcp)
        return pd_fail(error, PD_NO_MEMORY, "tcp: no memory");
    tcp->base.kind = &kind;
    tcp->base.loop = options->loop;
    tcp->base.pool = options->pool;
    tcp->base.events = options->events;
    tcp->handshake_ns = options->handshake_ns;
    tcp->listener.fd = -1;
    tcp->listener.handle = pd_tcp_on_connection;
    pd_list_init(&tcp->strangers);
    pd_list_init(&tcp->ends);
    pd_list_init(&tcp->pending);
    status = options->tls_cert ? use_tls(tcp, options, error) : PD_OK;
    if (status == PD_OK)
        status = pd_tcp_listen(tcp, options->bind_host ? options->bind_host : "0.0.0.0", error);
    if (status != PD_OK) {
        destroy(&tcp->base);
        return status;
    }
    *transport = &tcp->base;
    return PD_OK;
}
