/* Peers that lie, stammer or knock at the wrong door, over the control stream and over tcp. What
 * they may achieve is the end of their own link: never a crash, never a byte in a block that is not
 * theirs, never another's link. */
#include "t/unit/kvx_victims.h"

/* ---- control bytes --------------------------------------------------------------------------- */

static void garbage_to_the_source_ends_the_link(void **state)
{
    struct pair pair;

    (void)state;
    begin(&pair, "tcp");
    pd_kvx_receive(pair.source->kvx, pair.net.links[0].source_id, (const uint8_t *)"\x0a\xff", 2);
    recover(&pair);
}

static void garbage_to_the_reader_ends_the_link(void **state)
{
    struct pair pair;

    (void)state;
    begin(&pair, "tcp");
    pd_kvx_receive(pair.reader->kvx, pair.net.links[0].reader_id, (const uint8_t *)"\x0a\xff", 2);
    recover(&pair);
}

/* The source's thread is busy elsewhere; meanwhile a reader sends 48 MiB of well-formed nothing. */
static void flood_ends_the_link(void **state)
{
    enum { LENGTH = 8000 };
    static uint8_t padding[LENGTH] = {0x7a, (uint8_t)((LENGTH - 3) | 0x80), (LENGTH - 3) >> 7};
    struct kvx_prompt other;
    struct pair pair;

    (void)state;
    begin(&pair, "tcp");
    kvx_prompt_init(&other, pair.source, 9, 64, NULL, 20);
    assert_int_equal(kvx_offer(pair.source, &other, 1), PD_OK);
    kvx_stick(pair.source, true);
    pd_kvx_revoke(pair.source->kvx, 9, "");
    kvx_expect(pair.source, KVX_RELEASED, 9);
    for (size_t sent = 0; sent < 48 << 20; sent += LENGTH)
        pd_kvx_receive(pair.source->kvx, pair.net.links[0].source_id, padding, LENGTH);
    kvx_stick(pair.source, false);
    recover(&pair);
}

/* The same much slower is no flood. */
static void well_formed_nothing_is_read(void **state)
{
    static const uint8_t padding[] = {0x7a, 0x01, 0x00};
    struct pair pair;

    (void)state;
    begin(&pair, "tcp");
    for (int i = 0; i < 1000; i++)
        pd_kvx_receive(pair.source->kvx, pair.net.links[0].source_id, padding, sizeof(padding));
    finish(&pair);
}

static void messages_of_unknown_links_are_ignored(void **state)
{
    struct pair pair;

    (void)state;
    begin(&pair, "tcp");
    pd_kvx_receive(pair.source->kvx, 999, (const uint8_t *)"\x0a\xff", 2);
    pd_kvx_link_up(pair.reader->kvx, 999);
    pd_kvx_link_down(pair.reader->kvx, 999, "?");
    finish(&pair);
}

/* ---- strangers at the source's tcp door ------------------------------------------------------ */

static int knock(const struct pair *pair)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    const char *colon = strchr(pair->tapped.hello.data_address, ':');
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_non_null(colon);
    address.sin_port = htons((uint16_t)atoi(colon + 1));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void wrong_key_is_hung_up_on(void **state)
{
    struct pair pair;
    int fd;

    (void)state;
    begin(&pair, "tcp");
    fd = knock(&pair);
    say_hello(fd, "pdkvdat1", pair.tapped.hello.link_key ^ 1);
    assert_closed(fd);
    fd = knock(&pair);
    say_hello(fd, "pdkvdat2", pair.tapped.hello.link_key);
    assert_closed(fd);
    fd = knock(&pair);
    say_hello(fd, "GET / HT", 0);
    assert_closed(fd);
    finish(&pair);
}

static bool knock_in_silence(uint32_t ms)
{
    struct pair pair;
    int fds[80];

    if (!begin_hastily(&pair, "tcp", ms))
        return false;
    for (size_t i = 0; i < 80; i++)
        fds[i] = knock(&pair);
    assert_int_equal(send(fds[79], "pdkv", 4, MSG_NOSIGNAL), 4); /* half a hello */
    for (size_t i = 0; i < 80; i++)
        assert_closed(fds[i]);
    return finish_undisturbed(&pair);
}

static void silent_strangers_do_not_stay(void **state)
{
    (void)state;
    until_undisturbed(knock_in_silence);
}

/* ---- readers that ask for what is not theirs ------------------------------------------------- */

struct range {
    uint64_t offset;
    uint32_t length;
};

static size_t request_bytes(uint8_t *to, uint64_t generation, uint32_t count,
                            const struct range *ranges, size_t given)
{
    uint32_t id = 0;

    memcpy(to, &generation, 8);
    memcpy(to + 8, &id, 4);
    memcpy(to + 12, &count, 4);
    for (size_t i = 0; i < given; i++) {
        memcpy(to + 16 + i * 12, &ranges[i].offset, 8);
        memcpy(to + 24 + i * 12, &ranges[i].length, 4);
    }
    return 16 + given * 12;
}

/* One more data connection of the honest reader's own link, whose key it knows: with a claim of all
 * of ticket 1 and half of it ready, it sends this request. */
static void ask(uint64_t generation, uint32_t count, const struct range *ranges, size_t given)
{
    struct pair pair;
    uint8_t bytes[8192];
    char ack[8];
    size_t length;
    int fd;

    begin(&pair, "tcp");
    pd_kvx_ready(pair.source->kvx, 1, 32);
    fd = knock(&pair);
    say_hello(fd, "pdkvdat1", pair.tapped.hello.link_key);
    assert_int_equal(recv(fd, ack, sizeof(ack), MSG_WAITALL), sizeof(ack));
    assert_memory_equal(ack, "pdkvack1", sizeof(ack));
    length = request_bytes(bytes, generation, count, ranges, given);
    assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
    assert_closed(fd);
    recover(&pair);
}

static void reads_of_what_is_not_theirs_end_the_link(void **state)
{
    struct range range = {0, 256};
    struct range many[256];

    (void)state;
    ask(2, 1, &range, 1); /* no such ticket */
    range.offset = 4 * 256;
    ask(1, 1, &range, 1); /* block 4: not ready */
    range.offset = 20 * 256;
    ask(1, 1, &range, 1); /* block 20: not of the ticket */
    range = (struct range){3 * 256, 512};
    ask(1, 1, &range, 1); /* over the end of what is ready */
    range = (struct range){128, 256};
    ask(1, 1, &range, 1); /* no whole block */
    range = (struct range){0, 0};
    ask(1, 1, &range, 1);
    range = (struct range){UINT64_MAX - 255, 256};
    ask(1, 1, &range, 1); /* out of the pool */
    range = (struct range){0, UINT32_MAX};
    ask(1, 1, &range, 1);
    range = (struct range){0, 256};
    ask(1, 0, &range, 0); /* no range */
    ask(1, 257, &range, 1);
    ask(1, UINT32_MAX, &range, 1);
    for (size_t i = 0; i < 256; i++)
        many[i] = (struct range){0, 256};
    many[255].offset = 20 * 256;
    ask(1, 256, many, 256); /* the last of many */
}

static void half_a_request_ends_the_link(void **state)
{
    struct pair pair;
    char ack[8];
    int fd;

    (void)state;
    begin(&pair, "tcp");
    fd = knock(&pair);
    say_hello(fd, "pdkvdat1", pair.tapped.hello.link_key);
    assert_int_equal(recv(fd, ack, sizeof(ack), MSG_WAITALL), sizeof(ack));
    assert_int_equal(send(fd, ack, 7, MSG_NOSIGNAL), 7);
    close(fd); /* a data connection of the link is gone: so is the link (9) */
    recover(&pair);
}

/* ---- bytes under way when a ticket ends ------------------------------------------------------ */

enum { LONG_BLOCKS = 50, SLOW_WINDOW = 1 << 17 };

/* The source's end of this connection: it is in this process. */
static int other_end(int fd)
{
    struct sockaddr_in mine, peer;
    socklen_t length = sizeof(mine);

    getsockname(fd, (struct sockaddr *)&mine, &length);
    for (int other = 0; other < 1024; other++) {
        length = sizeof(peer);
        if (other != fd && getpeername(other, (struct sockaddr *)&peer, &length) == 0 &&
            peer.sin_family == AF_INET && peer.sin_port == mine.sin_port)
            return other;
    }
    fail_msg("no other end");
    return -1;
}

/* A claimed and ready ticket of 50 blocks, and a data connection of its link that does not read. */
static int begin_slow(struct pair *pair)
{
    struct timeval patience = {.tv_sec = 20};
    struct pd_ticket ticket;
    char ack[8];
    int fd, window = SLOW_WINDOW, small = 4096;

    open_pair(pair, "tcp");
    kvx_prompt_init(&pair->prompt, pair->source, 1, LONG_BLOCKS * 8, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &pair->prompt, 1), PD_OK);
    pd_kvx_ready(pair->source->kvx, 1, LONG_BLOCKS * 8);
    kvx_ticket(pair->source, &pair->prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, 1, &ticket), PD_OK);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    fd = knock(pair);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    say_hello(fd, "pdkvdat1", pair->tapped.hello.link_key);
    assert_int_equal(recv(fd, ack, sizeof(ack), MSG_WAITALL), sizeof(ack));
    setsockopt(other_end(fd), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    return fd;
}

/* Asks for the same `blocks` blocks `ranges` times over. */
static void ask_for(int fd, uint32_t ranges, uint32_t count)
{
    struct range many[256];
    uint8_t bytes[8192];
    size_t length;

    for (size_t i = 0; i < 256; i++)
        many[i] = (struct range){0, count * 256};
    length = request_bytes(bytes, 1, ranges, many, ranges);
    assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
}

/* Reads to the end, which must be a reset. Returns the bytes; fails if a run of the junk that the
 * source has put into its pool since is among them. */
static size_t read_to_the_reset(int fd)
{
    static uint8_t bytes[65536];
    size_t total = 0, run = 0;
    ssize_t got;

    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            run = bytes[i] == 0xee ? run + 1 : 0;
            assert_true(run < 64);
        }
        total += (size_t)got;
    }
    assert_int_equal(got, -1);
    assert_int_equal(errno, ECONNRESET);
    close(fd);
    return total;
}

/* A reader that releases while a read of its own is under way gets no byte of what comes into the
 * blocks next: the link ends instead (21). */
static void release_in_mid_read_ends_the_link(void **state)
{
    struct pd_to_source release = {.kind = PD_TO_SOURCE_RELEASE, .generation = 1};
    struct pair pair;
    size_t length;
    uint8_t *message;
    int fd;

    (void)state;
    fd = begin_slow(&pair);
    ask_for(fd, 80, LONG_BLOCKS); /* 1 MB: far more than both sockets hold */
    usleep(20000);
    message = pd_to_source_pack(&release, &length);
    pd_kvx_receive(pair.source->kvx, pair.net.links[0].source_id, message, length);
    free(message);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    kvx_junk(pair.source); /* the engine uses its blocks again */
    assert_true(read_to_the_reset(fd) < 80u * LONG_BLOCKS * 256);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    kvx_net_free(&pair.net);
}

/* The link is lost while an answer lies in the socket's buffers: they are thrown away (16). */
static void lost_link_resets_its_connections(void **state)
{
    struct pair pair;
    int fd;

    (void)state;
    fd = begin_slow(&pair);
    ask_for(fd, 80, LONG_BLOCKS);
    usleep(20000);
    kvx_cut(&pair.net);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    kvx_junk(pair.source);
    assert_true(read_to_the_reset(fd) < 80u * LONG_BLOCKS * 256);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    kvx_net_free(&pair.net);
}

/* One request asks for more than a read may be long. */
static void too_long_a_read_ends_the_link(void **state)
{
    struct pair pair;
    int fd;

    (void)state;
    fd = begin_slow(&pair);
    ask_for(fd, 82, LONG_BLOCKS); /* a little over 1 MiB */
    assert_int_equal(read_to_the_reset(fd), 0);
    recover(&pair);
}

/* ---- sources that answer what was not asked -------------------------------------------------- */

/* A listener of the test's own, that the tap puts in place of the source's. */
static int listen_tcp(char *address)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof(here);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *)&here, &length);
    sprintf(address, "127.0.0.1:%d", ntohs(here.sin_port));
    return fd;
}

static int take_caller(int listener, bool welcome)
{
    struct timeval patience = {.tv_sec = 20};
    char hello[16];
    int fd = accept(listener, NULL, NULL);

    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(recv(fd, hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
    assert_memory_equal(hello, "pdkvdat1", 8);
    if (welcome)
        assert_int_equal(send(fd, "pdkvack1", 8, MSG_NOSIGNAL), 8);
    return fd;
}

/* What the engine hears of each. One that says nothing at all is test_kvx_reader.c's (21), with a clock. */
static const char *const heard[] = {
    "did not accept",    "did not accept",    "answered what was not asked", "answered what was",
    "answered what was", "answered what was", "answered what was",
};

enum lie { NO_ACK, WRONG_ACK, WRONG_ID, TOO_LONG, TOO_SHORT, CUT_SHORT, UNASKED };

static void answer(int fd, enum lie lie)
{
    uint8_t header[8] = {0}, payload[4096];
    uint32_t id = lie == WRONG_ID, length = 8 * 256;

    memset(payload, 0xaa, sizeof(payload));
    if (lie == TOO_LONG)
        length++;
    if (lie == TOO_SHORT)
        length--;
    memcpy(header, &id, 4);
    memcpy(header + 4, &length, 4);
    send(fd, header, sizeof(header), MSG_NOSIGNAL);
    send(fd, payload, lie == CUT_SHORT ? 700 : 2048, MSG_NOSIGNAL);
    if (lie == CUT_SHORT)
        shutdown(fd, SHUT_WR);
}

/* The reader's link goes to a liar; its fetch fails, and what it did not ask for is not written. */
static void lie_to_the_reader(enum lie lie)
{
    struct pair pair;
    struct kvx_event event;
    char address[32];
    int listener = listen_tcp(address), first, second;
    uint8_t request[8192];

    open_pair(&pair, "tcp");
    pair.tapped.other_address = address;
    fetch(&pair, 1);
    first = take_caller(listener, lie > WRONG_ACK);
    second = take_caller(listener, lie > WRONG_ACK);
    if (lie == NO_ACK)
        shutdown(first, SHUT_WR);
    if (lie == WRONG_ACK)
        send(first, "pdkvack2", 8, MSG_NOSIGNAL);
    if (lie > WRONG_ACK) {
        kvx_expect(pair.reader, KVX_CLAIMED, 1);
        pd_kvx_ready(pair.source->kvx, 1, 16);
        pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
        if (lie == UNASKED) /* on the connection that has nothing to answer */
            answer(second, UNASKED);
        else {
            assert_true(recv(first, request, sizeof(request), 0) > 0);
            answer(first, lie);
        }
    }
    event = kvx_expect(pair.reader, KVX_CLOSED, 1);
    assert_false(event.cancelled);
    if (!strstr(event.why, heard[lie]))
        fail_msg("'%s' does not say '%s'", event.why, heard[lie]);
    for (int32_t block = 0; block < 64; block++) {
        const uint8_t *at = pair.reader->pool + block * 256;

        if (block != 30 && block != 31)
            for (int i = 0; i < 256; i++)
                assert_int_equal(at[i], 0xee);
    }
    pair.tapped.other_address = NULL;
    if (lie <= WRONG_ACK)
        pd_kvx_revoke(pair.source->kvx, 1, "never claimed");
    kvx_expect(pair.source, KVX_RELEASED, 1);
    if (lie <= WRONG_ACK)
        go_on_after_a_pause(&pair);
    else
        go_on(&pair);
    close(first);
    close(second);
    close(listener);
}

static void lying_sources_end_their_link(void **state)
{
    (void)state;
    for (enum lie lie = NO_ACK; lie <= UNASKED; lie++)
        lie_to_the_reader(lie);
}

/* A ticket that measures the second data connection asks nothing over the first; its first request is a small
 * one. When that connection is lost the fetch fails, and so does its link. */
static void rail_is_the_connection_that_is_asked(void **state)
{
    struct pair pair;
    struct pd_ticket ticket;
    char address[32];
    uint8_t request[8192];
    int listener = listen_tcp(address), first, second;

    (void)state;
    open_pair(&pair, "tcp");
    pair.tapped.other_address = address;
    kvx_prompt_init(&pair.prompt, pair.source, 1, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair.source, &pair.prompt, 1), 0);
    pd_kvx_ready(pair.source->kvx, 1, 64);
    kvx_ticket(pair.source, &pair.prompt, &ticket);
    ticket.rail = 2;
    assert_int_equal(pd_kvx_fetch(pair.reader->kvx, 1, &ticket), 0);
    first = take_caller(listener, true);
    second = take_caller(listener, true);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    assert_int_equal(recv(second, request, sizeof(request), 0), 16 + 12);
    assert_int_equal(recv(first, request, sizeof(request), MSG_DONTWAIT), -1);
    close(second);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    pair.tapped.other_address = NULL;
    kvx_expect(pair.source, KVX_RELEASED, 1);
    go_on(&pair);
    close(first);
    close(listener);
}

static void unreachable_data_address_fails_the_fetch(void **state)
{
    static const char *const addresses[] = {
        "127.0.0.1:1",    "", ":", "127.0.0.1", "localhost:80", "[::1", "300.1.1.1:80",
        "127.0.0.1:http",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        struct pair pair;

        open_pair(&pair, "tcp");
        pair.tapped.other_address = addresses[i];
        fetch(&pair, 1);
        kvx_expect(pair.reader, KVX_CLOSED, 1);
        pair.tapped.other_address = NULL;
        pd_kvx_revoke(pair.source->kvx, 1, "never claimed");
        kvx_expect(pair.source, KVX_RELEASED, 1);
        go_on_after_a_pause(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_to_the_source_ends_the_link),
        cmocka_unit_test(garbage_to_the_reader_ends_the_link),
        cmocka_unit_test(flood_ends_the_link),
        cmocka_unit_test(well_formed_nothing_is_read),
        cmocka_unit_test(messages_of_unknown_links_are_ignored),
        cmocka_unit_test(wrong_key_is_hung_up_on),
        cmocka_unit_test(silent_strangers_do_not_stay),
        cmocka_unit_test(reads_of_what_is_not_theirs_end_the_link),
        cmocka_unit_test(half_a_request_ends_the_link),
        cmocka_unit_test(release_in_mid_read_ends_the_link),
        cmocka_unit_test(lost_link_resets_its_connections),
        cmocka_unit_test(too_long_a_read_ends_the_link),
        cmocka_unit_test(lying_sources_end_their_link),
        cmocka_unit_test(rail_is_the_connection_that_is_asked),
        cmocka_unit_test(unreachable_data_address_fails_the_fetch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
