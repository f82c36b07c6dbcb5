#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/pd.pb-c.h"
#include "t/link/fakes.h"

enum {
    RUNNING_MAX = 8192,
    STEP_MAX = 64, /* sequences in one step */
    FLOOD_BYTES = 64 * 1024,
    STUBBORN_STEPS = 50,
    CANCELLED = PD__V1__FAILED__CODE__CANCELLED,
    CAPACITY = PD__V1__FAILED__CODE__CAPACITY,
};

struct sequence {
    struct pd_request *request;
    bool placed, cancelled, offered;
    uint32_t position;
    int patience; /* steps to go on after a cancel */
};

struct pd_engine {
    struct pd_engine_events events;
    pthread_mutex_t lock;
    pthread_t thread;
    struct sequence sequences[RUNNING_MAX];
    size_t count;
    bool draining, stopping;
    uint64_t step;
};

static pthread_mutex_t say_lock = PTHREAD_MUTEX_INITIALIZER;

void fake_say(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    pthread_mutex_lock(&say_lock);
    vprintf(format, arguments);
    putchar('\n');
    fflush(stdout);
    pthread_mutex_unlock(&say_lock);
    va_end(arguments);
}

static bool behaves(const struct sequence *s, const char *how)
{
    return !strncmp(s->request->request_id, how, strlen(how));
}

static void remove_at(struct pd_engine *engine, size_t i)
{
    pd_request_free(engine->sequences[i].request);
    engine->sequences[i] = engine->sequences[--engine->count];
}

static void fail(struct pd_engine *engine, size_t i, int code, const char *message)
{
    struct pd_failure failure = {.id = engine->sequences[i].request->id,
                                 .code = code,
                                 .message = message,
                                 .param = "",
                                 .retry_after_ms = 1500};

    remove_at(engine, i);
    engine->events.failed(engine->events.context, &failure);
}

/* A ticket, and little else. */
static bool hands_out(const struct sequence *s)
{
    return s->request->route == PD_ROUTE_PREFILL || s->request->route == PD_ROUTE_OFFER;
}

static void place(struct pd_engine *engine, struct sequence *s)
{
    struct pd_placed placed = {.id = s->request->id,
                               .prompt_tokens = (uint32_t)s->request->prompt.count,
                               .cached_tokens = 3};

    s->placed = true;
    if (hands_out(s)) {
        placed.borrowed_tokens = s->request->ticket.tokens;
        snprintf(placed.borrow_failed, sizeof(placed.borrow_failed), "%s",
                 s->request->ticket.instance);
        placed.has_ticket = true;
        strcpy(placed.ticket.instance, "fake");
        strcpy(placed.ticket.address, "127.0.0.1:1");
        placed.ticket.generation = 4711;
        placed.ticket.tokens = placed.prompt_tokens;
        placed.ticket.block_size = 16;
        memset(placed.ticket.secret, 7, sizeof(placed.ticket.secret));
    }
    engine->events.placed(engine->events.context, &placed);
}

/* ---- the thread ---------------------------------------------------------------------------------
 */

/* Memory behind one output. */
struct material {
    int32_t token;
    char text[FLOOD_BYTES];
    struct pd_token_logprob logprobs[3];
};

static void finish(const struct sequence *s, struct pd_output *out)
{
    out->finished = hands_out(s) || s->position >= s->request->sampling.max_tokens;
    if (!out->finished)
        return;
    out->finish =
        hands_out(s) ? PD__V1__FINISH_REASON__FINISH_NONE : PD__V1__FINISH_REASON__FINISH_LENGTH;
    out->prompt_tokens = (uint32_t)s->request->prompt.count;
    out->completion_tokens = s->position;
    out->timing.queue_us = 11;
    strcpy(out->timing.kv.transport, "shm");
}

static void advance(struct sequence *s, struct material *material, struct pd_output *out)
{
    char letter = (char)('a' + s->position % 26);

    memset(out, 0, sizeof(*out));
    out->id = s->request->id;
    out->position = s->position;
    if (s->request->route == PD_ROUTE_OFFER) {
        out->text = "";
        finish(s, out);
        return;
    }
    s->position++;
    material->token = letter;
    out->tokens = &material->token;
    out->token_count = 1;
    material->text[0] = letter;
    out->text = material->text;
    out->text_length = 1;
    if (behaves(s, "flood")) {
        memset(material->text, letter, FLOOD_BYTES);
        out->text_length = FLOOD_BYTES;
    }
    if (s->request->sampling.logprobs) {
        for (int i = 0; i < 3; i++)
            material->logprobs[i] = (struct pd_token_logprob){letter + i, -0.5f * (float)(1 + i)};
        out->logprobs = material->logprobs;
        out->logprob_stride = 3;
    }
    finish(s, out);
}

/* Ends what is to end before the step, and places what is new. */
static void before_step(struct pd_engine *engine)
{
    for (size_t i = 0; i < engine->count;) {
        struct sequence *s = &engine->sequences[i];

        if (s->cancelled && s->patience-- <= 0)
            fail(engine, i, CANCELLED, "cancelled");
        else if (behaves(s, "refuse"))
            fail(engine, i, CAPACITY, "no room");
        else
            i++;
    }
    for (size_t i = 0; i < engine->count; i++)
        if (!engine->sequences[i].placed && !behaves(&engine->sequences[i], "mute"))
            place(engine, &engine->sequences[i]);
}

static void one_step(struct pd_engine *engine)
{
    static struct material materials[STEP_MAX];
    static struct pd_output outputs[STEP_MAX];
    size_t ended[STEP_MAX], ended_count = 0, count = 0;

    before_step(engine);
    engine->step++;
    for (size_t i = 0; i < engine->count && count < STEP_MAX; i++) {
        struct sequence *s = &engine->sequences[i];

        if (!s->placed || s->offered || behaves(s, "hold"))
            continue;
        advance(s, &materials[count], &outputs[count]);
        if (outputs[count].finished && hands_out(s))
            s->offered = true;
        else if (outputs[count].finished)
            ended[ended_count++] = i;
        count++;
    }
    engine->events.step(engine->events.context, engine->step, outputs, count);
    while (ended_count)
        remove_at(engine, ended[--ended_count]);
}

static void *run(void *argument)
{
    struct pd_engine *engine = argument;
    struct timespec pause = {0, 2000000};

    pthread_mutex_lock(&engine->lock);
    while (!engine->stopping) {
        if (engine->count)
            one_step(engine);
        pthread_mutex_unlock(&engine->lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&engine->lock);
    }
    while (engine->count)
        fail(engine, 0, CANCELLED, "the engine stops");
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

struct pd_engine *fake_engine_create(const struct pd_engine_events *events)
{
    struct pd_engine *engine = calloc(1, sizeof(*engine));

    engine->events = *events;
    pthread_mutex_init(&engine->lock, NULL);
    pthread_create(&engine->thread, NULL, run, engine);
    return engine;
}

/* ---- the header's functions ---------------------------------------------------------------------
 */

static void say_submit(const struct pd_request *request)
{
    char tokens[256] = "";
    long long deadline_ms = (long long)(request->deadline_ns - request->arrived_ns) / 1000000;

    for (size_t i = 0; i < request->prompt.count && i < 24; i++)
        snprintf(tokens + strlen(tokens), sizeof(tokens) - strlen(tokens), "%s%d", i ? "," : "",
                 request->prompt.ids[i]);
    fake_say(
        "submit attach=%llu request=%llu attempt=%u route=%d id=%s tenant=%s tokens=%s "
        "count=%zu generated=%zu max_tokens=%u ticket=%s deadline_ms=%lld class=%s traceparent=%s",
        (unsigned long long)request->id.attach, (unsigned long long)request->id.request,
        request->id.attempt, (int)request->route, request->request_id, request->tenant, tokens,
        request->prompt.count, request->generated.count, request->sampling.max_tokens,
        request->ticket.instance, deadline_ms, request->interactive ? "interactive" : "standard",
        request->traceparent);
}

int pd_engine_submit(struct pd_engine *engine, struct pd_request *request)
{
    int status = PD_OK;

    pthread_mutex_lock(&engine->lock);
    if (engine->draining)
        status = PD_CLOSED;
    else if (engine->count == RUNNING_MAX)
        status = PD_FULL;
    else
        engine->sequences[engine->count++] = (struct sequence){.request = request};
    if (status == PD_OK)
        say_submit(request);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void pd_engine_cancel(struct pd_engine *engine, struct pd_attempt id)
{
    fake_say("cancel attach=%llu request=%llu attempt=%u", (unsigned long long)id.attach,
             (unsigned long long)id.request, id.attempt);
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->count; i++) {
        struct sequence *s = &engine->sequences[i];

        if (s->request->id.attach != id.attach || s->request->id.request != id.request ||
            s->request->id.attempt != id.attempt)
            continue;
        if (s->offered) {
            fake_say("revoke request=%llu", (unsigned long long)id.request);
            remove_at(engine, i);
        } else {
            s->cancelled = true;
            s->patience = behaves(s, "stubborn") ? STUBBORN_STEPS : 0;
            fake_say("position request=%llu is %u", (unsigned long long)id.request, s->position);
        }
        break;
    }
    pthread_mutex_unlock(&engine->lock);
}

void pd_engine_forget(struct pd_engine *engine, uint64_t attach)
{
    fake_say("forget attach=%llu", (unsigned long long)attach);
    pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->count;)
        if (engine->sequences[i].request->id.attach == attach)
            remove_at(engine, i);
        else
            i++;
    pthread_mutex_unlock(&engine->lock);
}

void pd_engine_drain(struct pd_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->draining = true;
    pthread_mutex_unlock(&engine->lock);
}

bool pd_engine_idle(const struct pd_engine *engine)
{
    struct pd_engine *e = (struct pd_engine *)engine;
    bool idle;

    pthread_mutex_lock(&e->lock);
    idle = e->count == 0;
    pthread_mutex_unlock(&e->lock);
    return idle;
}

void pd_engine_load(const struct pd_engine *engine, struct pd_load *load)
{
    struct pd_engine *e = (struct pd_engine *)engine;

    memset(load, 0, sizeof(*load));
    pthread_mutex_lock(&e->lock);
    load->steps = e->step;
    load->running = (uint32_t)e->count;
    pthread_mutex_unlock(&e->lock);
    load->kv_total = 1000;
    load->kv_free = 900;
    load->tokens_decoded = 42;
}

void pd_engine_stop(struct pd_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->draining = engine->stopping = true;
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
}

void pd_engine_destroy(struct pd_engine *engine)
{
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}
