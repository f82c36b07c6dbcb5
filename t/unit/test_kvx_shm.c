/* Shared memory: who gets the mapping, what of a mapping is believed, and when it is chosen. */
#include "t/unit/kvx_victims.h"
#include "worker/kvx/copy.h"

/* ---- shared memory --------------------------------------------------------------------------- */

static socklen_t abstract_name(struct sockaddr_un *address, const char *name)
{
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

/* A name of this process alone: suites may run side by side on one machine. */
static const char *own_name(const char *what)
{
    static char name[64];

    snprintf(name, sizeof(name), "pd-kvx-%s-%d", what, (int)getpid());
    return name;
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
    finish(&pair);
}

static bool knock_in_silence(uint32_t ms)
{
    struct pair pair;

    if (!begin_hastily(&pair, "shm", ms))
        return false;
    assert_closed(knock_shm(&pair));
    return finish_undisturbed(&pair);
}

static void silent_strangers_do_not_stay(void **state)
{
    (void)state;
    until_undisturbed(knock_in_silence);
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

/* The test takes the place of the reader at the source's door, while the reader waits at the
 * test's. */
static void mapping_can_only_be_read(void **state)
{
    int listener = listen_shm(own_name("waiting-room")), reader, fd, mapping;
    struct pair pair;
    char byte;

    (void)state;
    open_pair(&pair, "shm");
    pair.tapped.other_address = own_name("waiting-room");
    fetch(&pair, 1);
    reader = accept(listener, NULL, NULL);
    fd = knock_shm(&pair);
    say_hello(fd, "pdkvshm1", pair.tapped.hello.link_key + 1);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
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
    int listener = listen_shm(own_name("liar")), fd;
    struct pair pair;
    char hello[16];

    open_pair(&pair, "shm");
    pair.tapped.other_address = own_name("liar");
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

/* Mappings of pools in this process. */
static size_t mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    size_t count = 0;

    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:kvx-test") != NULL;
    fclose(maps);
    return count;
}

/* A dead source's pool is not kept (22): the memory goes back with the last mapping. */
static void pool_is_unmapped_with_its_link(void **state)
{
    struct pair pair;
    size_t before;

    (void)state;
    open_pair(&pair, "shm");
    before = mappings();
    fetch(&pair, 1);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    assert_int_equal(mappings(), before + 1);
    kvx_cut(&pair.net);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    assert_int_equal(mappings(), before);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    go_on(&pair);
}

/* The source has given the link up and uses the blocks again, and the reader has heard of nothing:
 * the generation words tell (15). */
static void reused_blocks_are_not_trusted(void **state)
{
    struct pair pair;

    (void)state;
    begin(&pair, "shm");
    pd_kvx_ready(pair.source->kvx, 1, 64);
    pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    pd_kvx_recycled(pair.source->kvx, &pair.prompt.block[7], 1);
    pd_kvx_complete(pair.source->kvx, 1, &(struct pd_kvx_first){.token = 4711});
    assert_non_null(strstr(kvx_expect(pair.reader, KVX_CLOSED, 1).why, "reused blocks"));
    assert_int_equal(kvx_count(pair.reader, KVX_COMPLETE, 1), 0);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    go_on(&pair);
}

/* ---- which transport, and why not a better one ----------------------------------------------- */

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
    pair.source = kvx_start(&pair.net, "p0", "auto", &kvx_small, set_silence);
    kvx_unsealed = false;
    expect_transport(&pair, "tcp", "no shm: the size of the pool's memory is not sealed");
    open_pair(&pair, "auto");
    kvx_free(pair.source);
    kvx_without_words = true;
    pair.source = kvx_start(&pair.net, "p0", "auto", &kvx_small, set_silence);
    kvx_without_words = false;
    expect_transport(&pair, "tcp", "no shm: the pool's memory has no room for generation words");
}

/* Two pools on devices: past the host's memory where the reader's device can map what the source's lends;
 * else through their stages, and the link says why. */
static void auto_takes_what_devices_lend(void **state)
{
    struct pair pair;

    (void)state;
    kvx_on_device = true;
    open_pair(&pair, "auto");
    expect_transport(&pair, "gpu", "");
    kvx_lends_nothing = true;
    open_pair(&pair, "auto");
    expect_transport(&pair, "shm", "no gpu: this device cannot map the source's memory");
    kvx_lends_nothing = false;
    open_pair(&pair, "auto");
    kvx_free(pair.source);
    kvx_on_device = false;
    pair.source = kvx_start(&pair.net, "p0", "auto", &kvx_small, set_silence);
    expect_transport(&pair, "shm", "no gpu: the source does not offer it");
}

enum loan_lie { LENT_NOTHING, LENT_TOO_LITTLE, LENT_TOO_MUCH, LENT_SHORT, LOAN_LIES };

/* In the source's place: the stage is right, and what is said to be lent is not. */
static void lend(int to, enum loan_lie lie, size_t size)
{
    uint64_t record[2] = {0, lie == LENT_TOO_LITTLE ? 8
                             : lie == LENT_TOO_MUCH ? UINT64_C(1) << 60
                                                    : size};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec piece = {record, lie == LENT_SHORT ? 8 : sizeof(record)};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes};
    size_t count = lie == LENT_NOTHING ? 1 : 2;
    int fds[2] = {memory(size, true), memory(size, true)};
    struct cmsghdr *rights;

    memcpy(record, "pdkvgpu1", 8);
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    assert_int_equal(sendmsg(to, &message, MSG_NOSIGNAL), piece.iov_len);
    close(fds[0]);
    close(fds[1]);
}

static void loans_that_are_none_are_refused(void **state)
{
    static const char *const why[LOAN_LIES] = {
        [LENT_NOTHING] = "what is not its mapping",
        [LENT_TOO_LITTLE] = "lent less, or far more, than its pool",
        [LENT_TOO_MUCH] = "lent less, or far more, than its pool",
        [LENT_SHORT] = "what is not its mapping",
    };

    (void)state;
    kvx_on_device = true;
    for (enum loan_lie lie = LENT_NOTHING; lie < LOAN_LIES; lie++) {
        int listener = listen_shm(own_name("lender")), reader;
        struct pair pair;

        open_pair(&pair, "gpu");
        pair.tapped.other_address = own_name("lender");
        fetch(&pair, 1);
        reader = accept(listener, NULL, NULL);
        lend(reader, lie, pair.source->layout.total);
        assert_non_null(strstr(kvx_expect(pair.reader, KVX_CLOSED, 1).why, why[lie]));
        close(reader);
        close(listener);
        kvx_net_free(&pair.net);
    }
    kvx_on_device = false;
}

/* The source's shm door is not where its hello says: the second hello, over tcp, is left as it is. */
static bool mislead(void *context, bool to_source, uint8_t **bytes, size_t *length)
{
    struct pd_from_source message;

    (void)context;
    if (to_source || pd_from_source_unpack(*bytes, *length, 16384, &message, NULL) != PD_OK)
        return true;
    if (message.kind == PD_FROM_SOURCE_HELLO && strcmp(message.hello.transport, "shm") == 0) {
        strcpy(message.hello.data_address, "pd-kvx-nobody-lives-here");
        free(*bytes);
        *bytes = pd_from_source_pack(&message, length);
    }
    pd_from_source_clear(&message);
    return true;
}

static void auto_goes_on_where_shared_memory_leads_nowhere(void **state)
{
    struct pair pair;

    (void)state;
    open_pair(&pair, "auto");
    pair.net.tap = mislead;
    expect_transport(&pair, "tcp", "no shm: shm: the source's socket: Connection refused");
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
    other = kvx_start(&pair.net, "d1", "tcp", &kvx_small, set_silence);
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
    pair.reader = kvx_start(&pair.net, "d0", "shm", &kvx_small, set_silence);
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

    options.memory[0].size = pd_kvx_pool_bytes(&options.pool, 0) - cut;
    options.memory[0].fd = memory(options.memory[0].size, true);
    assert_int_not_equal(pd_kvx_create(&options, &kvx, &error), PD_OK);
    if (!strstr(error.text, says))
        fail_msg("'%s' does not say '%s'", error.text, says);
    close(options.memory[0].fd);
}

static void options_that_cannot_work_are_refused_by_name(void **state)
{
    (void)state;
    refuse_options("pigeon", "127.0.0.1", 0, "KV transport 'pigeon' is not known");
    refuse_options("tcp", "203.0.113.7", 0, "KV data address 203.0.113.7");
    refuse_options("auto", "127.0.0.1", 8192, "its shape needs");
}

/* Every beginning and end within a line, and nothing beside them. */
static void copies_past_the_cache_are_exact(void **state)
{
    static uint8_t from[512], to[512];

    (void)state;
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 37 + 11);
    for (size_t at = 0; at < 70; at++)
        for (size_t bytes = 0; bytes < 270; bytes++) {
            memset(to, 0xee, sizeof(to));
            pd_copy_past_cache(to + at, from + bytes % 16, bytes);
            assert_memory_equal(to + at, from + bytes % 16, bytes);
            for (size_t i = 0; i < sizeof(to); i++)
                if ((i < at || i >= at + bytes) && to[i] != 0xee)
                    fail_msg("byte %zu was written by a copy of %zu bytes to %zu", i, bytes, at);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_do_not_get_the_mapping),
        cmocka_unit_test(silent_strangers_do_not_stay),
        cmocka_unit_test(mapping_can_only_be_read),
        cmocka_unit_test(lies_about_the_mapping_end_the_link),
        cmocka_unit_test(pool_is_unmapped_with_its_link),
        cmocka_unit_test(reused_blocks_are_not_trusted),
        cmocka_unit_test(auto_takes_shared_memory_on_one_host),
        cmocka_unit_test(auto_takes_tcp_where_memory_cannot_be_shared),
        cmocka_unit_test(auto_takes_what_devices_lend),
        cmocka_unit_test(loans_that_are_none_are_refused),
        cmocka_unit_test(auto_goes_on_where_shared_memory_leads_nowhere),
        cmocka_unit_test(wildcard_address_only_reads),
        cmocka_unit_test(no_transport_in_common_is_refused),
        cmocka_unit_test(options_that_cannot_work_are_refused_by_name),
        cmocka_unit_test(copies_past_the_cache_are_exact),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
