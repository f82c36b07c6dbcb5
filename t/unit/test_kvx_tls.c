/* TLS on the data connections of tcp: who gets in, who is taken for the source, and what is said of the
 * others. That everything works the same under it, the conformance suite shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/ssl.h>

#include "t/unit/kvx_certificates.h"
#include "t/unit/kvx_pair.h"
#include "worker/kvx/messages.h"

struct pair {
    struct kvx_net net;
    struct kvx_worker *source, *reader;
    struct pd_source_hello hello; /* the last one */
    bool forge;                   /* its certificate, on its way */
};

static enum kvx_name source_shows, reader_shows;   /* KVX_NAMES: plain */
static enum kvx_name source_trusts, reader_trusts; /* KVX_NAMES: anybody */

static void show(struct pd_kvx_options *options, enum kvx_name name, enum kvx_name trusts)
{
    if (name == KVX_NAMES)
        return;
    options->tls_cert = kvx_certificate(name);
    options->tls_key = kvx_private_key(name);
    options->tls_ca = trusts == KVX_NAMES ? NULL : kvx_certificate(trusts);
}

static void as_source(struct pd_kvx_options *options)
{
    show(options, source_shows, source_trusts);
}

static void as_reader(struct pd_kvx_options *options)
{
    show(options, reader_shows, reader_trusts);
}

static bool tap(void *context, bool to_source, uint8_t **bytes, size_t *length)
{
    struct pair *pair = context;
    struct pd_from_source message;

    if (to_source || pd_from_source_unpack(*bytes, *length, 16384, &message, NULL) != PD_OK)
        return true;
    if (message.kind == PD_FROM_SOURCE_HELLO) {
        if (pair->forge) {
            message.hello.certificate[31] ^= 1;
            free(*bytes);
            *bytes = pd_from_source_pack(&message, length);
        }
        pair->hello = message.hello;
    }
    pd_from_source_clear(&message);
    return true;
}

static void open_pair(struct pair *pair)
{
    memset(pair, 0, sizeof(*pair));
    kvx_net_init(&pair->net);
    pair->net.tap = tap;
    pair->net.tap_context = pair;
    pair->source = kvx_start(&pair->net, "p0", "tcp", &kvx_small, as_source);
    pair->reader = kvx_start(&pair->net, "d0", "tcp", &kvx_small, as_reader);
}

static void begin_fetch(struct pair *pair)
{
    struct kvx_prompt prompt;
    struct pd_ticket ticket;

    kvx_prompt_init(&prompt, pair->source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &prompt, 1), PD_OK);
    kvx_ticket(pair->source, &prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, 1, &ticket), PD_OK);
}

static void refused(bool forge, const char *says, const char *or_says)
{
    struct pair pair;
    struct kvx_event event;

    open_pair(&pair);
    pair.forge = forge;
    begin_fetch(&pair);
    event = kvx_expect(pair.reader, KVX_CLOSED, 1);
    if (!strstr(event.why, says) && !strstr(event.why, or_says))
        fail_msg("\"%s\" does not say \"%s\"", event.why, says);
    kvx_net_free(&pair.net);
}

static void certificates_of_the_cluster_are_taken(void **state)
{
    struct pair pair;

    (void)state;
    source_shows = KVX_SOURCE;
    reader_shows = KVX_READER;
    source_trusts = reader_trusts = KVX_CA;
    open_pair(&pair);
    begin_fetch(&pair);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    kvx_net_free(&pair.net);
    source_trusts = reader_trusts = KVX_NAMES; /* each end for itself */
    open_pair(&pair);
    begin_fetch(&pair);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    kvx_net_free(&pair.net);
}

/* The source's alert may be overtaken by the end of the connection. */
static void reader_of_another_authority_is_refused(void **state)
{
    (void)state;
    source_shows = KVX_SOURCE;
    reader_shows = KVX_STRANGER;
    source_trusts = KVX_CA;
    reader_trusts = KVX_CA;
    refused(false, "the source did not accept a data connection", "TLS: tlsv1 alert unknown ca");
}

static void source_of_another_authority_is_refused(void **state)
{
    (void)state;
    source_shows = KVX_STRANGER;
    reader_shows = KVX_READER;
    source_trusts = KVX_CA;
    reader_trusts = KVX_CA;
    refused(false, "TLS: the peer's certificate: unable to get local issuer certificate",
            "TLS: the peer's certificate: unable to get local issuer certificate");
}

/* Of the right authority, with the right name, and not the one that the control stream speaks of. */
static void another_certificate_than_the_hello_names_is_refused(void **state)
{
    (void)state;
    source_shows = KVX_SOURCE;
    reader_shows = KVX_READER;
    source_trusts = reader_trusts = KVX_CA;
    refused(true, "TLS: the certificate is not the one that the source's hello names",
            "TLS: the certificate is not the one that the source's hello names");
    source_trusts = reader_trusts = KVX_NAMES;
    refused(true, "TLS: the certificate is not the one that the source's hello names",
            "TLS: the certificate is not the one that the source's hello names");
}

static void plain_and_tls_do_not_pair(void **state)
{
    (void)state;
    source_trusts = reader_trusts = KVX_CA;
    source_shows = KVX_SOURCE;
    reader_shows = KVX_NAMES;
    refused(false, "the source encrypts its data connections, the reader does not",
            "the source encrypts its data connections, the reader does not");
    source_shows = KVX_NAMES;
    reader_shows = KVX_READER;
    refused(false, "the reader encrypts data connections, the source does not",
            "the reader encrypts data connections, the source does not");
}

static int knock(const struct pair *pair)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct timeval patience = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_port = htons((uint16_t)atoi(strchr(pair->hello.data_address, ':') + 1));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Both know the link's key, and neither hears the ack. */
static void key_alone_opens_nothing(void **state)
{
    char hello[16] = "pdkvdat1", heard[64] = {0};
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    struct pair pair;
    SSL *ssl;
    int fd;

    (void)state;
    source_shows = KVX_SOURCE;
    reader_shows = KVX_READER;
    source_trusts = reader_trusts = KVX_CA;
    open_pair(&pair);
    begin_fetch(&pair);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    memcpy(hello + 8, &pair.hello.link_key, 8);

    fd = knock(&pair); /* plain */
    assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    assert_null(recv(fd, heard, sizeof(heard), MSG_WAITALL) > 0 ? memmem(heard, 64, "pdkvack1", 8)
                                                                : NULL);
    close(fd);

    fd = knock(&pair); /* TLS without a certificate */
    ssl = SSL_new(context);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) == 1 && SSL_write(ssl, hello, sizeof(hello)) > 0)
        assert_true(SSL_read(ssl, heard, sizeof(heard)) <= 0);
    SSL_free(ssl);
    SSL_CTX_free(context);
    close(fd);
    assert_int_equal(kvx_count(pair.reader, KVX_CLOSED, 1), 0); /* the link has not noticed */
    kvx_net_free(&pair.net);
}

static void bad_files_are_named(void **state)
{
    struct pd_kvx_options options = {.instance = "p0",
                                     .pool = {NULL, 1, 1, 8, 4, 8, PD_F32},
                                     .transport = "tcp",
                                     .bind_host = "127.0.0.1",
                                     .max_model_len = 64};
    struct kvx_net net;
    struct kvx_worker *worker;
    struct pd_error error;
    struct pd_kvx *kvx;

    (void)state;
    source_shows = KVX_NAMES;
    kvx_net_init(&net);
    worker = kvx_start(&net, "p0", "tcp", &kvx_small, as_source);
    options.pool = worker->options.pool;
    options.memory[0] = worker->options.memory[0];
    options.tls_cert = "/nowhere";
    options.tls_key = kvx_private_key(KVX_SOURCE);
    assert_int_equal(pd_kvx_create(&options, &kvx, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "certificate /nowhere"));
    options.tls_cert = kvx_certificate(KVX_SOURCE);
    options.tls_key = kvx_private_key(KVX_READER);
    assert_int_equal(pd_kvx_create(&options, &kvx, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "key values mismatch"));
    options.tls_key = kvx_private_key(KVX_SOURCE);
    options.tls_ca = kvx_private_key(KVX_CA);
    assert_int_equal(pd_kvx_create(&options, &kvx, &error), PD_INVALID);
    assert_non_null(strstr(error.text, "authorities "));
    options.transport = "rdma";
    assert_int_equal(pd_kvx_create(&options, &kvx, &error), PD_UNSUPPORTED);
    assert_non_null(strstr(error.text, "cannot be encrypted"));
    kvx_net_free(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(certificates_of_the_cluster_are_taken),
        cmocka_unit_test(reader_of_another_authority_is_refused),
        cmocka_unit_test(source_of_another_authority_is_refused),
        cmocka_unit_test(another_certificate_than_the_hello_names_is_refused),
        cmocka_unit_test(plain_and_tls_do_not_pair),
        cmocka_unit_test(key_alone_opens_nothing),
        cmocka_unit_test(bad_files_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
