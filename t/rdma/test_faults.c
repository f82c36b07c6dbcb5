/* Real queue pairs in a world that goes wrong: the wire is cut, peers lie or die, strangers knock. Runs
 * in the guest only (t/rdma/guest), where rxe0 is 10.9.0.1 and rxe1 is 10.9.0.2.
 *
 * Each case ends with what the devices hold being what they held before its first link: no queue pair,
 * completion queue or registration stays behind. */
#include <linux/capability.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "t/unit/kvx_victims.h"

#define SOURCE "10.9.0.1"
#define READER "10.9.0.2"

/* ---- what the devices hold ------------------------------------------------------------------- */

struct held {
    char text[512];
};

static struct held count_held(void)
{
    struct held held = {""};
    FILE *pipe = popen("rdma resource", "r");
    size_t length;

    assert_non_null(pipe);
    length = fread(held.text, 1, sizeof(held.text) - 1, pipe);
    held.text[length] = '\0';
    assert_int_equal(pclose(pipe), 0);
    assert_non_null(strstr(held.text, "rxe1"));
    return held;
}

/* The kernel takes connections apart behind the calls that end them. */
static void expect_held(const struct held *before)
{
    struct held now = count_held();

    for (int tries = 0; tries < 100 && strcmp(now.text, before->text) != 0; tries++) {
        usleep(50 * 1000);
        now = count_held();
    }
    assert_string_equal(now.text, before->text);
}

/* ---- a source made of lies ------------------------------------------------------------------- */

enum lie { HONEST, WRONG_RKEY, SHORT_POOL, WRONG_MAGIC, NO_ANSWER, REFUSAL };

struct liar {
    pid_t pid;
    char address[64];
};

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;

    return rdma_get_cm_event(channel, &event) == 0 ? event : NULL;
}

/* Grants the reader a pool of zeros, as the lie says. Never returns: it is killed. */
static void lie_to(struct rdma_cm_id *id, enum lie lie)
{
    static uint8_t pool[1 << 20];
    struct ibv_pd *domain = ibv_alloc_pd(id->verbs);
    struct ibv_mr *region = ibv_reg_mr(domain, pool, sizeof(pool), IBV_ACCESS_REMOTE_READ);
    struct ibv_cq *idle = ibv_create_cq(id->verbs, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC, .send_cq = idle, .recv_cq = idle, .cap = {1, 1, 1, 1, 0}};
    struct {
        char magic[8];
        uint64_t base, bytes;
        uint32_t rkey;
    } __attribute__((packed)) grant = {"", (uintptr_t)pool, sizeof(pool), region->rkey};
    struct rdma_conn_param answer = {
        .private_data = &grant, .private_data_len = sizeof(grant), .responder_resources = 16};

    memcpy(grant.magic, lie == WRONG_MAGIC ? "pdkvrdm9" : "pdkvrdm1", 8);
    if (lie == WRONG_RKEY)
        grant.rkey ^= 0x5a5a00;
    if (lie == SHORT_POOL)
        grant.bytes = 4096;
    rdma_create_qp(id, domain, &attributes);
    rdma_accept(id, &answer);
}

static void be_a_liar(enum lie lie, int port_to)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_event *event;
    struct rdma_cm_id *door;
    uint16_t port;

    inet_pton(AF_INET, SOURCE, &at.sin_addr);
    rdma_create_id(channel, &door, NULL, RDMA_PS_TCP);
    rdma_bind_addr(door, (struct sockaddr *)&at);
    rdma_listen(door, 8);
    port = ntohs(rdma_get_src_port(door));
    if (write(port_to, &port, sizeof(port)) != sizeof(port))
        _exit(1);
    while ((event = next_event(channel)) != NULL) {
        struct rdma_cm_id *id = event->id;
        bool asked = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;

        rdma_ack_cm_event(event);
        if (asked && lie == REFUSAL)
            rdma_reject(id, NULL, 0);
        else if (asked && lie != NO_ANSWER)
            lie_to(id, lie);
    }
    _exit(0);
}

/* A program of its own: what a fork would share with the workers would outlive its death. */
static void start_liar(struct liar *liar, enum lie lie)
{
    char number[2][16];
    uint16_t port = 0;
    int pipe_of[2];

    assert_int_equal(pipe(pipe_of), 0);
    snprintf(number[0], sizeof(number[0]), "%d", (int)lie);
    snprintf(number[1], sizeof(number[1]), "%d", pipe_of[1]);
    liar->pid = fork();
    assert_true(liar->pid >= 0);
    if (liar->pid == 0) {
        execl("/proc/self/exe", "liar", number[0], number[1], (char *)NULL);
        _exit(127);
    }
    assert_int_equal(read(pipe_of[0], &port, sizeof(port)), sizeof(port));
    close(pipe_of[0]);
    close(pipe_of[1]);
    snprintf(liar->address, sizeof(liar->address), "%s:%u", SOURCE, port);
}

static void kill_liar(const struct liar *liar)
{
    kill(liar->pid, SIGKILL);
    waitpid(liar->pid, NULL, 0);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The reader meets a liar where the source should be; it says so, nothing lands, and the next ticket is
 * read from the honest source. `why` is part of the sentence. */
static void meet(enum lie lie, const char *why)
{
    struct kvx_event event;
    struct liar liar;
    struct held before;
    struct pair pair;

    open_pair(&pair, "rdma");
    before = count_held();
    start_liar(&liar, lie);
    pair.tapped.other_address = liar.address;
    fetch(&pair, 1);
    if (lie == WRONG_RKEY) {
        kvx_expect(pair.reader, KVX_CLAIMED, 1);
        pd_kvx_ready(pair.source->kvx, 1, 64);
        pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    }
    event = kvx_expect(pair.reader, KVX_CLOSED, 1);
    assert_false(event.cancelled);
    if (!strstr(event.why, why))
        fail_msg("'%s' does not say '%s'", event.why, why);
    kvx_assert_only(pair.reader, &pair.prompt, pair.prompt.blocks, blocks);
    pd_kvx_revoke(pair.source->kvx, 1, "");
    kvx_expect(pair.source, KVX_RELEASED, 1);
    kill_liar(&liar);
    expect_held(&before);
    pair.tapped.other_address = NULL;
    go_on_after_a_pause(&pair);
}

static void wrong_rkey_ends_the_link(void **state)
{
    (void)state;
    meet(WRONG_RKEY, "remote access error");
}

static void short_grant_is_refused(void **state)
{
    (void)state;
    meet(SHORT_POOL, "grants less than its pool");
}

static void other_protocol_is_refused(void **state)
{
    (void)state;
    meet(WRONG_MAGIC, "not of this protocol");
}

static void refusal_is_told(void **state)
{
    (void)state;
    meet(REFUSAL, "refused a queue pair");
}

static void source_that_never_answers_is_given_up(void **state)
{
    (void)state;
    meet(NO_ANSWER, "did not answer in time");
}

/* The control stream lives; the process behind the queue pairs is killed: the fetch ends by what the
 * queue pairs tell. */
static void killed_source_ends_the_link(void **state)
{
    struct liar liar;
    struct held before;
    struct pair pair;

    (void)state;
    open_pair(&pair, "rdma");
    before = count_held();
    start_liar(&liar, HONEST);
    pair.tapped.other_address = liar.address;
    fetch(&pair, 1);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    kill_liar(&liar);
    pd_kvx_ready(pair.source->kvx, 1, 64);
    pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    kvx_expect(pair.reader, KVX_CLOSED, 1);
    kvx_junk(pair.reader); /* the engine's again: nothing may land any more */
    kvx_expect(pair.source, KVX_RELEASED, 1);
    kvx_assert_only(pair.reader, &pair.prompt, pair.prompt.blocks, blocks);
    expect_held(&before);
    pair.tapped.other_address = NULL;
    go_on_after_a_pause(&pair);
}

static void shell(const char *command)
{
    assert_int_equal(system(command), 0);
}

/* A prompt of 23 MiB is about to be read when `command` cuts the wire: the reads fail within the stated
 * time, what was the reader's is its own again and stays as it is, and so are the source's blocks. */
static void cut(struct pair *pair, struct kvx_prompt *prompt, int32_t *wanted, const char *command)
{
    struct pd_ticket ticket;
    struct held before;

    memset(pair, 0, sizeof(*pair));
    kvx_net_init(&pair->net);
    pair->source = kvx_start(&pair->net, "p0", "rdma", &kvx_large, set_silence);
    pair->reader = kvx_start(&pair->net, "d0", "rdma", &kvx_large, set_silence);
    before = count_held();
    for (int32_t i = 0; i < 384; i++)
        wanted[i] = i;
    kvx_prompt_init(prompt, pair->source, 1, 360 * 16, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, prompt, 1), PD_OK);
    kvx_ticket(pair->source, prompt, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, 1, &ticket), PD_OK);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, wanted, 360);
    pd_kvx_ready(pair->source->kvx, 1, 180 * 16);
    while (!kvx_holds(pair->reader, 1, 0, 0)) /* the first half is on its way */
        usleep(1000);
    shell(command);
    pd_kvx_ready(pair->source->kvx, 1, 360 * 16);
    assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, 1).why, "a read failed"));
    kvx_junk(pair->reader); /* the engine's again: nothing may land any more */
    kvx_expect(pair->source, KVX_RELEASED, 1);
    usleep(200 * 1000);
    kvx_assert_only(pair->reader, prompt, prompt->blocks, wanted);
    expect_held(&before);
}

/* Packets are lost for a while: a new link carries the next prompt. */
static void lossy_wire_is_survived(void **state)
{
    static struct kvx_prompt prompt;
    struct pd_ticket ticket;
    int32_t wanted[384];
    struct pair pair;
    uint64_t id;

    (void)state;
    cut(&pair, &prompt, wanted, "tc qdisc add dev pd0 root netem loss 100%");
    shell("tc qdisc del dev pd0 root");
    kvx_prompt_init(&prompt, pair.source, 2, 360 * 16, NULL, 0);
    assert_int_equal(kvx_offer(pair.source, &prompt, 1), PD_OK);
    kvx_ticket(pair.source, &prompt, &ticket);
    id = ask_until_claimed(&pair, &ticket, 2);
    pd_kvx_fetch_want(pair.reader->kvx, id, 0, wanted, 360);
    pd_kvx_complete(pair.source->kvx, 2, &(struct pd_kvx_first){.token = 1});
    kvx_expect(pair.reader, KVX_COMPLETE, id);
    kvx_assert_only(pair.reader, &prompt, 0, wanted);
    kvx_net_free(&pair.net);
}

/* A link that goes down takes rxe's own management queue pair along: each of these two wants devices of
 * its own, which `cases` makes anew. */
static void link_goes_down(void **state)
{
    static struct kvx_prompt prompt;
    int32_t wanted[384];
    struct pair pair;

    cut(&pair, &prompt, wanted, *state);
    kvx_net_free(&pair.net);
}

/* ---- strangers at the source's door ---------------------------------------------------------- */

/* A client of rdma_cm's own, blocking: connects with this private data; false if it is refused. */
static bool knock(const struct pair *pair, const char *magic, uint64_t key, struct rdma_cm_id **out)
{
    struct sockaddr_in to = {.sin_family = AF_INET}, from = {.sin_family = AF_INET};
    struct ibv_qp_init_attr attributes = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    struct {
        char magic[8];
        uint64_t key;
    } request = {"", key};
    struct rdma_conn_param ask = {.private_data = &request,
                                  .private_data_len = sizeof(request),
                                  .initiator_depth = 4,
                                  .retry_count = 3};
    struct rdma_cm_id *id;

    memcpy(request.magic, magic, 8);
    inet_pton(AF_INET, SOURCE, &to.sin_addr);
    inet_pton(AF_INET, READER, &from.sin_addr);
    to.sin_port = htons((uint16_t)atoi(strchr(pair->tapped.hello.data_address, ':') + 1));
    assert_int_equal(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
    assert_int_equal(rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 2000),
                     0);
    assert_int_equal(rdma_resolve_route(id, 2000), 0);
    assert_int_equal(rdma_create_qp(id, NULL, &attributes), 0);
    if (rdma_connect(id, &ask) != 0) {
        rdma_destroy_ep(id);
        return false;
    }
    *out = id;
    return true;
}

static void strangers_are_refused(void **state)
{
    struct rdma_cm_id *id;
    struct pair pair;

    (void)state;
    begin(&pair, "rdma");
    assert_false(knock(&pair, "pdkvrdm1", pair.tapped.hello.link_key ^ 1, &id));
    assert_false(knock(&pair, "pdkvrdm2", pair.tapped.hello.link_key, &id));
    finish(&pair);
}

/* Who has the key of a link has its rkey, and may read; the pool stays as it is. */
static void nobody_writes_into_the_pool(void **state)
{
    static uint8_t bytes[256];
    struct ibv_send_wr write = {.num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    const uint8_t *grant;
    struct rdma_cm_id *id;
    struct ibv_sge piece;
    struct ibv_mr *own;
    struct ibv_wc done;
    struct pair pair;

    (void)state;
    begin(&pair, "rdma");
    assert_true(knock(&pair, "pdkvrdm1", pair.tapped.hello.link_key, &id));
    grant = id->event->param.conn.private_data;
    assert_memory_equal(grant, "pdkvrdm1", 8);
    memcpy(&write.wr.rdma.remote_addr, grant + 8, 8);
    memcpy(&write.wr.rdma.rkey, grant + 24, 4);
    own = ibv_reg_mr(id->pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
    assert_non_null(own);
    piece = (struct ibv_sge){(uintptr_t)bytes, sizeof(bytes), own->lkey};
    write.sg_list = &piece;
    assert_int_equal(ibv_post_send(id->qp, &write, &bad), 0);
    while (ibv_poll_cq(id->send_cq, 1, &done) == 0)
        usleep(1000);
    assert_int_equal(done.status, IBV_WC_REM_ACCESS_ERR);
    assert_true(kvx_holds(pair.source, 1, 0, 0));
    ibv_dereg_mr(own);
    rdma_destroy_ep(id);
    recover(&pair); /* it was a queue pair of the link, and takes the link along (9) */
}

/* ---- what cannot be ---------------------------------------------------------------------------- */

/* RDMA is there at both ends, and chosen; its address leads nowhere: the link is opened anew over tcp, and says
 * why. Its pool is not sealed, or shm would be better than both. */
static void where_rdma_leads_nowhere_tcp_takes_over(void **state)
{
    struct pd_kvx_link_state link;
    struct kvx_event event;
    struct held before;
    struct pair pair;

    (void)state;
    kvx_unsealed = true;
    open_pair(&pair, "auto");
    kvx_unsealed = false;
    before = count_held();
    pair.tapped.other_address = "10.77.0.1:4791";
    pair.tapped.of_transport = "rdma";
    fetch(&pair, 1);
    kvx_expect(pair.reader, KVX_CLAIMED, 1);
    pd_kvx_fetch_want(pair.reader->kvx, 1, 0, blocks, 8);
    pd_kvx_complete(pair.source->kvx, 1, &(struct pd_kvx_first){.token = 4711});
    event = kvx_expect(pair.reader, KVX_COMPLETE, 1);
    assert_string_equal(event.stats.transport, "tcp");
    kvx_assert_only(pair.reader, &pair.prompt, 0, blocks);
    assert_int_equal(pd_kvx_links(pair.reader->kvx, &link, 1), 1);
    if (!strstr(link.why, "no rdma: ") || !strstr(link.why, "no shm: "))
        fail_msg("'%s' does not say why it is neither rdma nor shm", link.why);
    kvx_expect(pair.source, KVX_RELEASED, 1);
    expect_held(&before);
    kvx_net_free(&pair.net);
}

enum { LOCKED = 64 << 10 };

/* A worker that may lock no more than LOCKED bytes: gives its error to the pipe. Never returns. */
static void be_limited(int why_to)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct capabilities[2];
    struct pd_kvx_options options = {
        .instance = "p0",
        .pool = {NULL, 4, 2, 16, 64, 384, PD_F32},
        .transport = "rdma",
        .bind_host = SOURCE,
        .max_model_len = 64,
    };
    size_t bytes = pd_kvx_pool_bytes(&options.pool, 0);
    int fd = memfd_create("limited", MFD_CLOEXEC);
    struct pd_error error = {.text = "it was made"};
    struct pd_kvx *kvx;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        syscall(SYS_capget, &header, capabilities) != 0)
        _exit(1);
    capabilities[0].effective &= ~(1u << CAP_IPC_LOCK); /* whose holders have no limit */
    if (syscall(SYS_capset, &header, capabilities) != 0 ||
        setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){LOCKED, LOCKED}) != 0)
        _exit(1);
    options.memory[0] = (struct pd_export){.kind = PD_EXPORT_MEMFD, .fd = fd, .size = bytes};
    pd_kvx_create(&options, &kvx, &error);
    _exit(write(why_to, error.text, strlen(error.text) + 1) < 0);
}

static void limit_of_locked_memory_is_named_with_its_cure(void **state)
{
    char number[16], why[512] = "";
    int pipe_of[2], status;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(pipe_of), 0);
    snprintf(number, sizeof(number), "%d", pipe_of[1]);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "limited", number, (char *)NULL);
        _exit(127);
    }
    close(pipe_of[1]);
    assert_true(read(pipe_of[0], why, sizeof(why) - 1) > 0);
    close(pipe_of[0]);
    waitpid(pid, &status, 0);
    if (!strstr(why, "does not take the KV pool of ") ||
        !strstr(why, "may lock 64 KiB (ulimit -l; LimitMEMLOCK=infinity in systemd)"))
        fail_msg("'%s' names no limit and no cure", why);
}

/* Everything, or with a command that takes a link down only what it cuts. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_rkey_ends_the_link),
        cmocka_unit_test(short_grant_is_refused),
        cmocka_unit_test(other_protocol_is_refused),
        cmocka_unit_test(refusal_is_told),
        cmocka_unit_test(source_that_never_answers_is_given_up),
        cmocka_unit_test(killed_source_ends_the_link),
        cmocka_unit_test(lossy_wire_is_survived),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(nobody_writes_into_the_pool),
        cmocka_unit_test(where_rdma_leads_nowhere_tcp_takes_over),
        cmocka_unit_test(limit_of_locked_memory_is_named_with_its_cure),
    };

    if (argc == 3 && strcmp(argv[0], "liar") == 0)
        be_a_liar((enum lie)atoi(argv[1]), atoi(argv[2]));
    if (argc == 2 && strcmp(argv[0], "limited") == 0)
        be_limited(atoi(argv[1]));
    silence_ms = 4000; /* some tests wait for it; and the guest is emulated */
    setenv("PD_SOURCE_ADDRESS", SOURCE, 1);
    setenv("PD_READER_ADDRESS", READER, 1);
    if (argc == 2) {
        const struct CMUnitTest down[] = {cmocka_unit_test_prestate(link_goes_down, argv[1])};

        return cmocka_run_group_tests(down, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
