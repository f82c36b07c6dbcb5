/* The link with doubles of all rooms behind it, as a process that a test drives: events on stdout,
 * commands on stdin, one line each.
 *
 *     kv-open ID HOST:PORT     as kvx would: open a control stream
 *     kv-send ID TEXT
 *     kv-lose ID TEXT          the same, and there is no memory for it
 *     kv-flood ID COUNT        as many messages of 64 KiB
 *     kv-close ID
 *     drain MILLISECONDS
 *     quit                     ends in the order that the real worker uses
 *
 * usage: fake_worker [port=N] [role=prefill|decode|mixed] [kvx=0] [dispatcher=HOST:PORT] [cert=F key=F ca=F]
 */
#include <grpc/grpc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "t/link/fakes.h"
#include "worker/base/log.h"

enum { MODEL_LEN = 64 * 1024, SUBMIT_BYTES = 256 * 1024 };

static struct pd_link *link_room;
static struct pd_kvx_callbacks callbacks;

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    size_t length = strlen(name);

    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], name, length) && argv[i][length] == '=')
            return argv[i] + length + 1;
    return otherwise;
}

/* All of the program's malloc calls come by here (see link.mk). */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

static _Thread_local bool memory_is_out;

void *__wrap_malloc(size_t size)
{
    return memory_is_out ? NULL : __real_malloc(size);
}

static void lose(uint64_t id, const char *text)
{
    uint8_t *bytes = (uint8_t *)strdup(text);

    memory_is_out = true;
    callbacks.send(callbacks.link, id, bytes, strlen(text));
    memory_is_out = false;
}

static void flood(uint64_t id, int count)
{
    for (int i = 0; i < count; i++)
        callbacks.send(callbacks.link, id, calloc(1, 65536), 65536);
}

static void obey(char *line)
{
    char text[4096] = "";
    unsigned long long id = 0;
    int count = 0;

    if (sscanf(line, "kv-open %llu %4095s", &id, text) == 2)
        callbacks.open_link(callbacks.link, id, text);
    else if (sscanf(line, "kv-send %llu %4095s", &id, text) == 2)
        callbacks.send(callbacks.link, id, (uint8_t *)strdup(text), strlen(text));
    else if (sscanf(line, "kv-lose %llu %4095s", &id, text) == 2)
        lose(id, text);
    else if (sscanf(line, "kv-flood %llu %d", &id, &count) == 2)
        flood(id, count);
    else if (sscanf(line, "kv-close %llu", &id) == 1)
        callbacks.close_link(callbacks.link, id);
    else if (sscanf(line, "drain %llu", &id) == 1)
        pd_link_drain(link_room, (uint32_t)id);
    else
        fake_say("cannot obey %s", line);
}

static enum pd_role role_of(const char *name)
{
    return !strcmp(name, "prefill")  ? PD_ROLE_PREFILL
           : !strcmp(name, "decode") ? PD_ROLE_DECODE
                                     : PD_ROLE_MIXED;
}

int main(int argc, char **argv)
{
    static const char *const transports[] = {"shm", "tcp"};
    const char *dispatcher = option(argc, argv, "dispatcher", "");
    struct pd_link_listen where = {.host = "127.0.0.1",
                                   .port = atoi(option(argc, argv, "port", "0")),
                                   .tls_cert = option(argc, argv, "cert", ""),
                                   .tls_key = option(argc, argv, "key", ""),
                                   .tls_ca = option(argc, argv, "ca", "")};
    struct pd_link_identity identity = {
        .instance = "fake",
        .model = "m",
        .zone = "z1",
        .revision = "r1",
        .numerics_id = "none",
        .address = "127.0.0.1:7",
        .boot = 77,
        .role = role_of(option(argc, argv, "role", "mixed")),
        .max_model_len = MODEL_LEN,
        .block_size = 16,
        .max_num_seqs = 64,
        .vocabulary = FAKE_VOCABULARY,
        .max_num_batched_tokens = 512,
        .kv_blocks = 1000,
        .max_submit_bytes = SUBMIT_BYTES,
        .request_timeout_s = 3600,
        .kv_transports = transports,
        .kv_transport_count = 2,
        .tokenizer = fake_tokenizer(),
        .chat_template = fake_template(),
    };
    struct pd_link_registration registration = {&dispatcher, *dispatcher ? 1 : 0, "sesame"};
    struct pd_engine_events events;
    struct pd_engine *engine;
    struct pd_kvx *kvx = NULL;
    struct pd_error error;
    char line[8192];

    memset(identity.fingerprint.weights, 0xaa, PD_DIGEST);
    setenv("GRPC_VERBOSITY", "NONE", 0);
    pd_log_set_level(PD_LOG_DEBUG);
    signal(SIGPIPE, SIG_IGN);
    grpc_init();
    if (pd_link_create(&where, &link_room, &error) != PD_OK) {
        fake_say("error %s", error.text);
        grpc_shutdown_blocking();
        return 1;
    }
    pd_link_engine_events(link_room, &events);
    pd_link_kvx_callbacks(link_room, &callbacks);
    engine = fake_engine_create(&events);
    if (strcmp(option(argc, argv, "kvx", "1"), "0"))
        kvx = fake_kvx_create(&callbacks);
    if (pd_link_start(link_room, &identity, &registration, engine, kvx, &error) != PD_OK)
        return 1;
    fake_say("port %d", pd_link_port(link_room));

    while (fgets(line, sizeof(line), stdin) && strncmp(line, "quit", 4)) {
        line[strcspn(line, "\n")] = '\0';
        obey(line);
    }
    pd_engine_stop(engine);
    pd_link_release_kvx(link_room);
    if (kvx)
        fake_kvx_destroy(kvx);
    pd_link_destroy(link_room);
    pd_engine_destroy(engine);
    grpc_shutdown_blocking();
    fake_say("bye");
    return 0;
}
