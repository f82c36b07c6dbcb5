/* Peers that lie, stammer or knock at the wrong door, on real connections. What they may achieve is the end
 * of their own link: never a crash, never a byte in a block that is not theirs, never another's link. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

#include "t/unit/kvx_pair.h"
#include "worker/kvx/messages.h"

/* What the tap sees of the source's hello, and what it makes of it. */
struct tapped {
    struct pd_source_hello hello;
    bool seen;
    const char *other_address; /* put in place of the data address */
};

static bool tap(void *context, bool to_source, uint8_t **bytes, size_t *length)
{
    struct tapped *tapped = context;
    struct pd_from_source message;

    if (to_source || pd_from_source_unpack(*bytes, *length, 16384, &message, NULL) != PD_OK)
        return true;
    if (message.kind == PD_FROM_SOURCE_HELLO) {
        tapped->hello = message.hello;
        tapped->seen = true;
        if (tapped->other_address) {
            strcpy(message.hello.data_address, tapped->other_address);
            free(*bytes);
            *bytes = pd_from_source_pack(&message, length);
        }
    }
    pd_from_source_clear(&message);
    return true;
}

struct pair {
    struct kvx_net net;
    struct kvx_worker *source, *reader;
    struct tapped tapped;
    struct kvx_prompt
        prompt; /* generation 1, 8 blocks, claimed by fetch 1 once begin() is through */
};

static const int32_t blocks[8] = {30, 31, 32, 33, 34, 35, 36, 37};

static void quick(struct pd_kvx_options *options)
{
    options->silence_ms = 400;
}

static void open_pair(struct pair *pair, const char *transport)
{
    memset(pair, 0, sizeof(*pair));
    kvx_net_init(&pair->net);
    pair->net.tap = tap;
    pair->net.tap_context = &pair->tapped;
    pair->source = kvx_start(&pair->net, "p0", transport, &kvx_small, quick);
    pair->reader = kvx_start(&pair->net, "d0", transport, &kvx_small, quick);
}

static void fetch(struct pair *pair, uint64_t generation)
{
    struct pd_ticket ticket;

    kvx_prompt_init(&pair->prompt, pair->source, generation, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &pair->prompt, 1), PD_OK);
    kvx_ticket(pair->source, &pair->prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, generation, &ticket), PD_OK);
}

static void begin(struct pair *pair, const char *transport)
{
    open_pair(pair, transport);
    fetch(pair, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    assert_true(pair->tapped.seen);
}

/* The honest reader gets its prompt all the same. */
static void finish(struct pair *pair)
{
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, 8);
    pd_kvx_complete(pair->source->kvx, 1, 4711, 0, 0);
    kvx_expect(pair->reader, KVX_COMPLETE, 1);
    kvx_assert_only(pair->reader, &pair->prompt, 0, blocks);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    kvx_net_free(&pair->net);
}

/* Both workers go on: another fetch, over another link, goes through. */
static void go_on(struct pair *pair)
{
    kvx_junk(pair->reader);
    fetch(pair, 2);
    kvx_expect(pair->reader, KVX_CLAIMED, 2);
    pd_kvx_fetch_want(pair->reader->kvx, 2, 0, blocks, 8);
    pd_kvx_complete(pair->source->kvx, 2, 4711, 0, 0);
    kvx_expect(pair->reader, KVX_COMPLETE, 2);
    kvx_assert_only(pair->reader, &pair->prompt, 0, blocks);
    kvx_net_free(&pair->net);
}

/* The same after a link that never came up: it is not tried again for 100 ms. */
static void go_on_after_a_pause(struct pair *pair)
{
    usleep(110 * 1000);
    go_on(pair);
}

/* The link has died with everything on it, and that is all. */
static void recover(struct pair *pair)
{
    kvx_expect(pair->reader, KVX_CLOSED, 1);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    go_on(pair);
}

/* ---- control bytes -------------------------------------------------------------------------- */

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

static void flood_ends_the_link(void **state)
{
    size_t length = 40 << 20;
    uint8_t *bytes = calloc(length, 1);
    struct pair pair;

    (void)state;
    begin(&pair, "tcp");
    pd_kvx_receive(pair.source->kvx, pair.net.links[0].source_id, bytes, length);
    free(bytes);
    recover(&pair);
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

/* The other end closes, or resets, within the test's patience; bytes that come before are dropped. */
static void assert_closed(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    char bytes[4096];
    ssize_t got;

    do {
        assert_int_equal(poll(&wait, 1, 20000), 1);
        got = recv(fd, bytes, sizeof(bytes), 0);
    } while (got > 0);
    close(fd);
}

static void say_hello(int fd, const char *magic, uint64_t key)
{
    uint8_t hello[16];

    memcpy(hello, magic, 8);
    memcpy(hello + 8, &key, 8); /* this machine's order is the wire's */
    assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
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

static void silent_strangers_do_not_stay(void **state)
{
    struct pair pair;
    int fds[80];

    (void)state;
    begin(&pair, "tcp");
    for (size_t i = 0; i < 80; i++)
        fds[i] = knock(&pair);
    assert_int_equal(send(fds[79], "pdkv", 4, MSG_NOSIGNAL), 4); /* half a hello */
    for (size_t i = 0; i < 80; i++)
        assert_closed(fds[i]);
    finish(&pair);
}

/* ---- readers that ask for what is not theirs -------------------------------------------------- */

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

/* One more data connection of the honest reader's own link, whose key it knows: with a claim of all of
 * ticket 1 and half of it ready, it sends this request. */
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

/* A reader that releases while it has a long read under way must not see what comes next into the blocks:
 * the link ends. Its receive window is full by then. */
static void release_in_mid_read_ends_the_link(void **state)
{
    struct pair pair;
    struct pd_to_source release = {.kind = PD_TO_SOURCE_RELEASE, .generation = 1};
    uint8_t bytes[8192], *message;
    struct range ranges[256];
    size_t length, total = 0;
    int fd, small = 1 << 17;

    (void)state;
    begin(&pair, "tcp");
    pd_kvx_ready(pair.source->kvx, 1, 64);
    fd = knock(&pair);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    say_hello(fd, "pdkvdat1", pair.tapped.hello.link_key);
    assert_int_equal(recv(fd, bytes, 8, MSG_WAITALL), 8);
    for (size_t i = 0; i < 256; i++)
        ranges[i] = (struct range){0, 8 * 256};
    length = request_bytes(bytes, 1, 256, ranges, 256);
    for (int i = 0; i < 20; i++) /* 10 MiB of answers that are not taken */
        assert_int_equal(send(fd, bytes, length, MSG_NOSIGNAL), length);
    usleep(20000);
    message = pd_to_source_pack(&release, &length);
    pd_kvx_receive(pair.source->kvx, pair.net.links[0].source_id, message, length);
    free(message);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    for (;;) { /* take what comes: it must end before all of it has come */
        ssize_t got = recv(fd, bytes, sizeof(bytes), 0);

        if (got <= 0)
            break;
        total += (size_t)got;
    }
    assert_true(total < (size_t)20 * (8 + 256 * 8 * 256));
    close(fd);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    kvx_net_free(&pair.net);
}

/* ---- sources that answer what was not asked --------------------------------------------------- */

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

enum lie { NO_ACK, WRONG_ACK, WRONG_ID, TOO_LONG, TOO_SHORT, CUT_SHORT, UNASKED, SILENT };

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
    if (lie == SILENT)
        return;
    send(fd, header, sizeof(header), MSG_NOSIGNAL);
    send(fd, payload, lie == CUT_SHORT ? 700 : 2048, MSG_NOSIGNAL);
    if (lie == CUT_SHORT)
        shutdown(fd, SHUT_WR);
}

/* The reader's link goes to a liar; its fetch fails, and what it did not ask for is not written. */
static void lie_to_the_reader(enum lie lie)
{
    struct pair pair;
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
    assert_false(kvx_expect(pair.reader, KVX_CLOSED, 1).cancelled);
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
    for (enum lie lie = NO_ACK; lie <= SILENT; lie++)
        lie_to_the_reader(lie);
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

/* ---- shared memory --------------------------------------------------------------------------- */

static socklen_t abstract_name(struct sockaddr_un *address, const char *name)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static int knock_shm(const struct pair *pair)
{
    struct timeval patience = {.tv_sec = 20};
    struct sockaddr_un address;
    socklen_t length = abstract_name(&address, pair->tapped.hello.data_address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    assert_int_equal(connect(fd, (struct sockaddr *)&address, length), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    return fd;
}

static void strangers_do_not_get_the_mapping(void **state)
{
    struct pair pair;
    char byte;
    int fd;

    (void)state;
    begin(&pair, "shm");
    fd = knock_shm(&pair);
    say_hello(fd, "pdkvshm1", pair.tapped.hello.link_key ^ 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    fd = knock_shm(&pair);
    say_hello(fd, "pdkvdat1", pair.tapped.hello.link_key);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    fd = knock_shm(&pair); /* the right key, but its reader has the mapping already */
    say_hello(fd, "pdkvshm1", pair.tapped.hello.link_key);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    fd = knock_shm(&pair); /* and nothing: until the deadline */
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
    finish(&pair);
}

static int receive_descriptor(int from)
{
    char magic[8], control[256];
    struct iovec piece = {magic, sizeof(magic)};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    int fd = -1;

    assert_int_equal(recvmsg(from, &message, 0), sizeof(magic));
    assert_memory_equal(magic, "pdkvmap1", sizeof(magic));
    assert_non_null(CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

static int listen_shm(const char *name)
{
    struct sockaddr_un address;
    socklen_t length = abstract_name(&address, name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&address, length), 0);
    assert_int_equal(listen(fd, 4), 0);
    return fd;
}

/* The test takes the place of the reader at the source's door, while the reader waits at the test's. */
static void mapping_can_only_be_read(void **state)
{
    int listener = listen_shm("pd-kvx-waiting-room"), reader, fd, mapping;
    struct pair pair;

    (void)state;
    open_pair(&pair, "shm");
    pair.tapped.other_address = "pd-kvx-waiting-room";
    fetch(&pair, 1);
    reader = accept(listener, NULL, NULL);
    fd = knock_shm(&pair);
    say_hello(fd, "pdkvshm1", pair.tapped.hello.link_key);
    mapping = receive_descriptor(fd);
    assert_true(fcntl(mapping, F_GET_SEALS) & F_SEAL_SHRINK);
    assert_int_equal(fcntl(mapping, F_GETFL) & O_ACCMODE, O_RDONLY);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, mapping, 0), MAP_FAILED);
    close(mapping);
    close(fd);
    close(reader);
    close(listener);
    kvx_net_free(&pair.net);
}

enum mapping_lie { NO_DESCRIPTOR, TWO_DESCRIPTORS, UNSEALED, TOO_SMALL, NOT_MEMORY, WRONG_WORD };

static int memory(size_t size, bool sealed)
{
    int fd = memfd_create("fake", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    if (sealed)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

static void send_mapping(int to, enum mapping_lie lie, size_t size)
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec piece = {(void *)(uintptr_t)(lie == WRONG_WORD ? "pdkvmap2" : "pdkvmap1"), 8};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    struct cmsghdr *rights;
    int fds[2], count = lie == TWO_DESCRIPTORS ? 2 : 1;

    fds[0] = lie == NOT_MEMORY ? open("/proc/self/exe", O_RDONLY)
                               : memory(lie == TOO_SMALL ? size - 8 : size, lie != UNSEALED);
    fds[1] = memory(8, true);
    if (lie != NO_DESCRIPTOR) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, (size_t)count * sizeof(int));
    }
    assert_int_equal(sendmsg(to, &message, MSG_NOSIGNAL), 8);
    close(fds[0]);
    close(fds[1]);
}

/* The reader is sent to a liar's socket, and what it gets there is not its source's pool. */
static void lie_about_the_mapping(enum mapping_lie lie)
{
    int listener = listen_shm("pd-kvx-liar"), fd;
    struct pair pair;
    char hello[16];

    open_pair(&pair, "shm");
    pair.tapped.other_address = "pd-kvx-liar";
    fetch(&pair, 1);
    fd = accept(listener, NULL, NULL);
    assert_int_equal(recv(fd, hello, sizeof(hello), 0), sizeof(hello));
    send_mapping(fd, lie, pair.source->layout.total);
    assert_false(kvx_expect(pair.reader, KVX_CLOSED, 1).cancelled);
    pair.tapped.other_address = NULL;
    pd_kvx_revoke(pair.source->kvx, 1, "never claimed");
    kvx_expect(pair.source, KVX_RELEASED, 1);
    close(fd);
    close(listener);
    go_on_after_a_pause(&pair);
}

static void lies_about_the_mapping_end_the_link(void **state)
{
    (void)state;
    for (enum mapping_lie lie = NO_DESCRIPTOR; lie <= WRONG_WORD; lie++)
        lie_about_the_mapping(lie);
}

/* The source has given the link up and uses the blocks again, and the reader has heard of nothing: the
 * generation words tell (15). */
static void reused_blocks_are_not_trusted(void **state)
{
    struct pair pair;

    (void)state;
    begin(&pair, "shm");
    pd_kvx_ready(pair.source->kvx, 1, 64);
    pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    pd_kvx_recycled(pair.source->kvx, &pair.prompt.block[7], 1);
    pd_kvx_complete(pair.source->kvx, 1, 4711, 0, 0);
    assert_non_null(strstr(kvx_expect(pair.reader, KVX_CLOSED, 1).why, "reused blocks"));
    assert_int_equal(kvx_count(pair.reader, KVX_COMPLETE, 1), 0);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    go_on(&pair);
}

/* ---- which transport, and why not a better one ------------------------------------------------- */

static void expect_transport(struct pair *pair, const char *transport, const char *why)
{
    struct pd_kvx_link_state link = {.up = false};

    fetch(pair, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    while (pd_kvx_links(pair->reader->kvx, &link, 1) == 0 || !link.up)
        usleep(1000); /* the report is written at the end of the thread's turn */
    assert_string_equal(link.transport, transport);
    if (!strstr(link.why, why))
        fail_msg("'%s' does not say '%s'", link.why, why);
    finish(pair);
}

static void auto_takes_shared_memory_on_one_host(void **state)
{
    struct pair pair;

    (void)state;
    open_pair(&pair, "auto");
    expect_transport(&pair, "shm", "");
}

/* The same pool, but its memory cannot be given to others. */
static void auto_takes_tcp_where_memory_cannot_be_shared(void **state)
{
    struct pair pair;

    (void)state;
    open_pair(&pair, "auto");
    kvx_free(pair.source);
    kvx_unsealed = true;
    pair.source = kvx_start(&pair.net, "p0", "auto", &kvx_small, quick);
    kvx_unsealed = false;
    expect_transport(&pair, "tcp", "no shm: the size of the pool's memory is not sealed");
    open_pair(&pair, "auto");
    kvx_free(pair.source);
    kvx_without_words = true;
    pair.source = kvx_start(&pair.net, "p0", "auto", &kvx_small, quick);
    kvx_without_words = false;
    expect_transport(&pair, "tcp", "no shm: the pool's memory has no room for generation words");
}

static void on_all_addresses(struct pd_kvx_options *options)
{
    options->bind_host = "0.0.0.0";
}

/* A worker without an address of its own reads over tcp, and cannot be read. */
static void wildcard_address_only_reads(void **state)
{
    struct kvx_worker *other;
    struct kvx_prompt prompt;
    struct pd_ticket ticket;
    struct pair pair;

    (void)state;
    open_pair(&pair, "tcp");
    kvx_free(pair.reader);
    pair.reader = kvx_start(&pair.net, "d0", "tcp", &kvx_small, on_all_addresses);
    other = kvx_start(&pair.net, "d1", "tcp", &kvx_small, quick);
    kvx_prompt_init(&prompt, pair.reader, 9, 64, NULL, 0);
    kvx_ticket(pair.reader, &prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(other->kvx, 9, &ticket), PD_OK);
    assert_non_null(strstr(kvx_expect(other, KVX_CLOSED, 9).why,
                           "no tcp: the source has no KV data address of its own (--kv-bind)"));
    kvx_junk(pair.reader);
    expect_transport(&pair, "tcp", "");
}

static void no_transport_in_common_is_refused(void **state)
{
    struct pair pair;

    (void)state;
    open_pair(&pair, "tcp");
    kvx_free(pair.reader);
    pair.reader = kvx_start(&pair.net, "d0", "shm", &kvx_small, quick);
    fetch(&pair, 1);
    assert_non_null(strstr(kvx_expect(pair.reader, KVX_CLOSED, 1).why,
                           "refused by p0: no transport in common: no shm: the source does not"));
    kvx_net_free(&pair.net);
}

static void refuse_options(const char *transport, const char *host, size_t cut, const char *says)
{
    struct pd_kvx_options options = {.instance = "p0",
                                     .transport = transport,
                                     .bind_host = host,
                                     .pool = {NULL, 2, 2, 8, 4, 64, PD_F32},
                                     .max_model_len = 100};
    struct pd_error error;
    struct pd_kvx *kvx;

    options.memory.size = pd_kvx_pool_bytes(&options.pool) - cut;
    options.memory.fd = memory(options.memory.size, true);
    assert_int_not_equal(pd_kvx_create(&options, &kvx, &error), PD_OK);
    if (!strstr(error.text, says))
        fail_msg("'%s' does not say '%s'", error.text, says);
    close(options.memory.fd);
}

static void options_that_cannot_work_are_refused_by_name(void **state)
{
    (void)state;
    refuse_options("rdma", "127.0.0.1", 0, "KV transport 'rdma' is not known");
    refuse_options("tcp", "203.0.113.7", 0, "KV data address 203.0.113.7");
    refuse_options("auto", "127.0.0.1", 8192, "its shape needs");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(garbage_to_the_source_ends_the_link),
        cmocka_unit_test(garbage_to_the_reader_ends_the_link),
        cmocka_unit_test(flood_ends_the_link),
        cmocka_unit_test(messages_of_unknown_links_are_ignored),
        cmocka_unit_test(wrong_key_is_hung_up_on),
        cmocka_unit_test(silent_strangers_do_not_stay),
        cmocka_unit_test(reads_of_what_is_not_theirs_end_the_link),
        cmocka_unit_test(half_a_request_ends_the_link),
        cmocka_unit_test(release_in_mid_read_ends_the_link),
        cmocka_unit_test(lying_sources_end_their_link),
        cmocka_unit_test(unreachable_data_address_fails_the_fetch),
        cmocka_unit_test(strangers_do_not_get_the_mapping),
        cmocka_unit_test(mapping_can_only_be_read),
        cmocka_unit_test(lies_about_the_mapping_end_the_link),
        cmocka_unit_test(reused_blocks_are_not_trusted),
        cmocka_unit_test(auto_takes_shared_memory_on_one_host),
        cmocka_unit_test(auto_takes_tcp_where_memory_cannot_be_shared),
        cmocka_unit_test(wildcard_address_only_reads),
        cmocka_unit_test(no_transport_in_common_is_refused),
        cmocka_unit_test(options_that_cannot_work_are_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
