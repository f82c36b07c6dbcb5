/* A worker without a model, for what is to be measured in front of it: the real link room (the real
 * gRPC service and protocol) over an engine that only keeps time.
 *
 *     submit ──▶ placed, at once ──▶ prefill: the first token and the hand-over, at once
 *                                └─▶ decode, mixed: a token per sequence at every tick, on decode too
 *                                    from the first, as the real one does, whichever arrives first;
 *                                    interval=0: the whole answer in one step, at once
 *
 * One thread plays the engine. Between ticks it sleeps on a condition that a submission signals.
 * What is due at once is given by the thread that submits: with no time to keep, there is nothing to
 * sleep for, and the frontend that is measured does not wait for a wake-up of ours.
 *
 * usage: mock_worker [role=prefill|decode|mixed] [interval=MS (0)] [tokens=N (16)] [instance=NAME (its role)]
 *                    [hold=placed|first] [tell=1]
 *
 * `tokens` is the length of answers to requests without a max_tokens. `hold` stops every request
 * before it is placed, or before its first token, until it is cancelled. Prints "port N", with
 * `tell` a line "submit NANOSECONDS" or "cancel NANOSECONDS" (CLOCK_MONOTONIC) for each as it comes,
 * and serves until its input ends. */
#include <grpc/grpc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "proto/pd.pb-c.h"
#include "t/link/fakes.h"
#include "worker/base/clock.h"
#include "worker/base/log.h"

enum { SEQUENCES_MAX = 4096, ANSWER_MAX = 1024, MODEL_LEN = 1048576, WORD_BYTES = 5 };

struct sequence {
    struct pd_request *request;
    uint32_t position, length;
    bool placed;
};

struct pd_engine {
    struct pd_engine_events events;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct sequence sequences[SEQUENCES_MAX];
    size_t count, fresh; /* fresh: not yet placed */
    uint64_t interval_ns, tick_ns, step;
    uint32_t tokens;
    bool hold_placed, hold_first, tell;
    bool stopping;
};

/* The one answer that every request gets a beginning of. */
static int32_t answer_ids[ANSWER_MAX];
static char answer_text[ANSWER_MAX * WORD_BYTES];
static struct pd_output outputs[2 * SEQUENCES_MAX];

static void remove_at(struct pd_engine *engine, size_t i)
{
    if (!engine->sequences[i].placed)
        engine->fresh--;
    pd_request_free(engine->sequences[i].request);
    engine->sequences[i] = engine->sequences[--engine->count];
}

static void fail(struct pd_engine *engine, size_t i)
{
    struct pd_failure failure = {.id = engine->sequences[i].request->id,
                                 .code = PD__V1__FAILED__CODE__CANCELLED,
                                 .message = "cancelled",
                                 .param = ""};

    remove_at(engine, i);
    engine->events.failed(engine->events.context, &failure);
}

/* ---- the engine's thread ------------------------------------------------------------------------ */

static void place(struct pd_engine *engine, struct sequence *s)
{
    struct pd_placed placed = {.id = s->request->id,
                               .prompt_tokens = (uint32_t)s->request->prompt.count};

    if (s->request->route == PD_ROUTE_PREFILL) {
        placed.has_ticket = true;
        strcpy(placed.ticket.instance, "mock");
        strcpy(placed.ticket.address, "127.0.0.1:1");
        placed.ticket.generation = ++engine->step;
        placed.ticket.tokens = placed.prompt_tokens;
        placed.ticket.block_size = 16;
    }
    s->placed = true;
    engine->fresh--;
    engine->events.placed(engine->events.context, &placed);
}

/* Gives `count` more tokens of the answer. */
static void advance(struct sequence *s, uint32_t count, struct pd_output *out)
{
    bool prefill = s->request->route == PD_ROUTE_PREFILL;

    memset(out, 0, sizeof(*out));
    out->id = s->request->id;
    out->position = s->position;
    out->tokens = answer_ids + s->position;
    out->token_count = count;
    out->text = answer_text + s->position * WORD_BYTES;
    out->text_length = count * WORD_BYTES;
    s->position += count;
    out->finished = prefill || s->position >= s->length;
    if (!out->finished)
        return;
    out->finish = s->position < s->length ? PD__V1__FINISH_REASON__FINISH_NONE
                                          : PD__V1__FINISH_REASON__FINISH_LENGTH;
    out->prompt_tokens = (uint32_t)s->request->prompt.count;
    out->completion_tokens = s->position;
}

/* What one step does for a sequence: prefills are due always, the others at a tick. The first token
 * comes by itself, since from decode it is a repeat of prefill's. */
static size_t step_of(const struct pd_engine *engine, struct sequence *s, bool tick,
                      struct pd_output *out)
{
    bool prefill = s->request->route == PD_ROUTE_PREFILL;

    if ((!prefill && !tick) || !s->placed || engine->hold_first)
        return 0;
    advance(s, 1, &out[0]);
    if (prefill || engine->interval_ns || s->position == s->length)
        return 1;
    advance(s, s->length - s->position, &out[1]);
    return 2;
}

static void one_step(struct pd_engine *engine, bool tick)
{
    size_t count = 0;

    for (size_t i = 0; i < engine->count && engine->fresh && !engine->hold_placed; i++)
        if (!engine->sequences[i].placed)
            place(engine, &engine->sequences[i]);
    for (size_t i = 0; i < engine->count; i++)
        count += step_of(engine, &engine->sequences[i], tick, &outputs[count]);
    if (count)
        engine->events.step(engine->events.context, ++engine->step, outputs, count);
    for (size_t i = engine->count; i-- > 0;) {
        struct sequence *s = &engine->sequences[i];

        if (s->request->route == PD_ROUTE_PREFILL || s->position >= s->length)
            remove_at(engine, i);
    }
}

static void wait_for_work(struct pd_engine *engine)
{
    struct timespec until = {(time_t)(engine->tick_ns / 1000000000),
                             (long)(engine->tick_ns % 1000000000)};

    if ((engine->fresh && !engine->hold_placed) || engine->stopping)
        return;
    if (engine->count)
        pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    else
        pthread_cond_wait(&engine->changed, &engine->lock);
}

static void *run(void *argument)
{
    struct pd_engine *engine = argument;

    pthread_mutex_lock(&engine->lock);
    while (!engine->stopping) {
        uint64_t now = pd_clock_ns();
        bool tick = now >= engine->tick_ns;

        if (tick)
            engine->tick_ns = now + engine->interval_ns;
        if (engine->count)
            one_step(engine, tick);
        wait_for_work(engine);
    }
    while (engine->count)
        fail(engine, 0);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

static struct pd_engine *engine_create(const struct pd_engine_events *events, long interval_ms,
                                       long tokens, const char *hold, bool tell)
{
    struct pd_engine *engine = calloc(1, sizeof(*engine));
    pthread_condattr_t monotonic;

    for (int i = 0; i < ANSWER_MAX; i++) {
        answer_ids[i] = 'a' + i % 26;
        memcpy(answer_text + i * WORD_BYTES, "word ", WORD_BYTES);
    }
    engine->events = *events;
    engine->interval_ns = (uint64_t)interval_ms * 1000000;
    engine->tokens = (uint32_t)tokens;
    engine->hold_placed = !strcmp(hold, "placed");
    engine->hold_first = !strcmp(hold, "first");
    engine->tell = tell;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->changed, &monotonic);
    pthread_create(&engine->thread, NULL, run, engine);
    return engine;
}

/* ---- the header's functions --------------------------------------------------------------------- */

static void tell(const struct pd_engine *engine, const char *what)
{
    if (engine->tell) {
        printf("%s %llu\n", what, (unsigned long long)pd_clock_ns());
        fflush(stdout);
    }
}

int pd_engine_submit(struct pd_engine *engine, struct pd_request *request)
{
    uint32_t length = request->sampling.max_tokens ? request->sampling.max_tokens : engine->tokens;
    int status = PD_FULL;

    tell(engine, "submit");
    pthread_mutex_lock(&engine->lock);
    if (engine->count < SEQUENCES_MAX) {
        engine->sequences[engine->count++] = (struct sequence){
            .request = request, .length = length > ANSWER_MAX ? ANSWER_MAX : length};
        engine->fresh++;
        status = PD_OK;
        if (request->route == PD_ROUTE_PREFILL || engine->interval_ns == 0)
            one_step(engine, engine->interval_ns == 0);
        else
            pthread_cond_signal(&engine->changed);
    }
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void pd_engine_cancel(struct pd_engine *engine, struct pd_attempt id)
{
    tell(engine, "cancel");
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->count; i++) {
        const struct pd_attempt *own = &engine->sequences[i].request->id;

        if (own->attach == id.attach && own->request == id.request && own->attempt == id.attempt) {
            fail(engine, i);
            break;
        }
    }
    pthread_mutex_unlock(&engine->lock);
}

void pd_engine_forget(struct pd_engine *engine, uint64_t attach)
{
    pthread_mutex_lock(&engine->lock);
    for (size_t i = engine->count; i-- > 0;)
        if (engine->sequences[i].request->id.attach == attach)
            remove_at(engine, i);
    pthread_mutex_unlock(&engine->lock);
}

void pd_engine_load(const struct pd_engine *engine, struct pd_load *load)
{
    struct pd_engine *e = (struct pd_engine *)engine;

    memset(load, 0, sizeof(*load));
    pthread_mutex_lock(&e->lock);
    load->steps = e->step;
    load->running = (uint32_t)e->count;
    pthread_mutex_unlock(&e->lock);
    load->kv_total = load->kv_free = 1000000;
}

/* ---- the process -------------------------------------------------------------------------------- */

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    size_t length = strlen(name);

    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], name, length) && argv[i][length] == '=')
            return argv[i] + length + 1;
    return otherwise;
}

static enum pd_role role_of(const char *name)
{
    return !strcmp(name, "prefill")  ? PD_ROLE_PREFILL
           : !strcmp(name, "decode") ? PD_ROLE_DECODE
                                     : PD_ROLE_MIXED;
}

int main(int argc, char **argv)
{
    static const char *const transports[] = {"shm"};
    const char *role = option(argc, argv, "role", "mixed");
    struct pd_link_listen where = {
        .host = "127.0.0.1", .tls_cert = "", .tls_key = "", .tls_ca = ""};
    struct pd_link_identity identity = {
        .instance = option(argc, argv, "instance", role),
        .model = "m",
        .zone = "",
        .revision = "",
        .numerics_id = "none",
        .address = ":0",
        .boot = pd_clock_ns(),
        .role = role_of(role),
        .max_model_len = MODEL_LEN,
        .block_size = 16,
        .max_num_seqs = SEQUENCES_MAX,
        .vocabulary = FAKE_VOCABULARY,
        .max_num_batched_tokens = 8192,
        .kv_blocks = 1000000,
        .max_submit_bytes = 1024 * 1024,
        .request_timeout_s = 3600,
        .kv_transports = transports,
        .kv_transport_count = 1,
        .tokenizer = fake_tokenizer(),
        .chat_template = fake_template(),
    };
    struct pd_link_registration registration = {0};
    struct pd_engine_events events;
    struct pd_engine *engine;
    struct pd_link *link;
    struct pd_error error;

    setenv("GRPC_VERBOSITY", "NONE", 0);
    signal(SIGPIPE, SIG_IGN);
    pd_log_set_level(PD_LOG_WARN);
    grpc_init();
    if (pd_link_create(&where, &link, &error) != PD_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    pd_link_engine_events(link, &events);
    engine = engine_create(&events, atol(option(argc, argv, "interval", "0")),
                           atol(option(argc, argv, "tokens", "16")), option(argc, argv, "hold", ""),
                           *option(argc, argv, "tell", "") != 0);
    if (pd_link_start(link, &identity, &registration, engine, NULL, &error) != PD_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    printf("port %d\n", pd_link_port(link));
    fflush(stdout);
    while (getchar() != EOF)
        ;
    /* Only told to stop between measurements: nothing is worth draining. */
    _Exit(0);
}
