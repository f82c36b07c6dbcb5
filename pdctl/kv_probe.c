#include "pdctl/kv_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "worker/base/clock.h"
#include "worker/link/stream.h"

enum {
    PROTOCOL = 1,
    REPORT_MS = 250,
    PART_BYTES = 32 << 10,
    TICKET_BYTES_MAX = 2048,
    ANSWER_TOKENS = 2, /* P's, and one by which D shows that it has all of the prompt */
    ROOM_TOKENS = 16,  /* of the longest sequence, left for them */
    LINGER_NS = 1000000,
};

struct session;

/* One of the two workers. */
struct side {
    struct session *session;
    struct pd_stream *stream; /* NULL: it is over */
    const char *address;
    bool greeted;
    Pd__V1__Role role;
    uint32_t vocabulary, max_model_len, block_size;
    uint8_t fingerprint[4][32];
};

struct session {
    struct pd_loop loop;
    struct pd_streams streams;
    struct side prefill, decode;
    uint64_t deadline_ns;
    uint64_t request; /* of the try under way */
    uint8_t ticket[TICKET_BYTES_MAX];
    size_t ticket_bytes;
    uint64_t failures_before;
    bool link_seen, finished;
    struct pd_kv_probe *probe;
    struct pd_error *error;
    int status;
};

/* ---- the end ---------------------------------------------------------------------------------- */

static void close_side(struct side *side)
{
    if (side->stream)
        pd_stream_close(side->stream, GRPC_STATUS_CANCELLED, "");
    side->stream = NULL;
}

/* Both streams go, and with them whatever the workers still keep for this probe. */
static void finish(struct session *session, int status)
{
    if (!session->finished)
        session->status = status;
    session->finished = true;
    close_side(&session->prefill);
    close_side(&session->decode);
    pd_loop_tick_at(&session->loop, 0);
}

static void fail(struct side *side, const char *what, const char *why)
{
    struct session *session = side->session;

    if (!session->finished)
        pd_fail(session->error, PD_IO, "%s %s%s%s", side->address, what, *why ? ": " : "", why);
    finish(session, PD_IO);
}

/* ---- what is asked ---------------------------------------------------------------------------- */

static void send(struct side *side, Pd__V1__ToWorker *message)
{
    size_t length = protobuf_c_message_get_packed_size(&message->base);
    grpc_slice slice = grpc_slice_malloc(length);

    protobuf_c_message_pack(&message->base, GRPC_SLICE_START_PTR(slice));
    if (pd_stream_send(side->stream, slice) != PD_OK)
        fail(side, "does not read what it is sent", "");
}

static void greet(struct side *side, const char *frontend)
{
    Pd__V1__FrontendHello hello = PD__V1__FRONTEND_HELLO__INIT;
    Pd__V1__ToWorker message = PD__V1__TO_WORKER__INIT;

    hello.protocol = hello.protocol_min = PROTOCOL;
    hello.frontend_id = (char *)frontend;
    hello.report_interval_ms = REPORT_MS;
    message.kind_case = PD__V1__TO_WORKER__KIND_HELLO;
    message.hello = &hello;
    send(side, &message);
}

static void submit(struct side *side, Pd__V1__Submit *what)
{
    Pd__V1__Sampling sampling = PD__V1__SAMPLING__INIT;
    Pd__V1__ToWorker message = PD__V1__TO_WORKER__INIT;
    Pd__V1__SubmitPart part = PD__V1__SUBMIT_PART__INIT;
    size_t total, at = 0;
    uint8_t *bytes;

    sampling.max_tokens = sampling.min_tokens = ANSWER_TOKENS;
    sampling.ignore_eos = true;
    what->sampling = &sampling;
    what->model = side->session->probe->model;
    what->tenant = what->request_id = "pdctl-check";
    total = protobuf_c_message_get_packed_size(&what->base);
    bytes = malloc(total);
    if (!bytes) {
        fail(side, "cannot be asked", "no memory");
        return;
    }
    protobuf_c_message_pack(&what->base, bytes);
    part.request = side->session->request;
    part.attempt = 1;
    part.total = total;
    message.kind_case = PD__V1__TO_WORKER__KIND_SUBMIT;
    message.submit = &part;
    while (at < total && side->stream) {
        part.data.data = bytes + at;
        part.data.len = total - at < PART_BYTES ? total - at : PART_BYTES;
        at += part.data.len;
        part.last = at == total;
        send(side, &message);
        part.total = 0;
    }
    free(bytes);
}

/* Tokens that nobody has seen: neither worker finds any of them in its cache. */
static bool draw(uint32_t *ids, size_t count, uint32_t vocabulary)
{
    for (size_t at = 0; at < count;) {
        size_t some = count - at < 64 ? count - at : 64;

        if (getrandom(ids + at, some * sizeof(*ids), 0) != (ssize_t)(some * sizeof(*ids)))
            return false;
        at += some;
    }
    for (size_t i = 0; i < count; i++)
        ids[i] %= vocabulary;
    return true;
}

/* What comes next: see the head of kv_probe.h. */
static uint32_t rail_of_try(const struct session *session)
{
    size_t at = session->probe->count;

    return at >= PD_KV_SHORT_TRIES && at < PD_KV_SHORT_TRIES + session->probe->rails
               ? (uint32_t)(at - PD_KV_SHORT_TRIES + 1)
               : 0;
}

static uint32_t size_of_try(const struct session *session)
{
    uint32_t size =
        session->probe->count < PD_KV_SHORT_TRIES ? PD_KV_SHORT_TOKENS : PD_KV_LONG_TOKENS;
    uint32_t most = session->prefill.max_model_len < session->decode.max_model_len
                        ? session->prefill.max_model_len
                        : session->decode.max_model_len;

    return most <= ROOM_TOKENS ? 1 : size < most - ROOM_TOKENS ? size : most - ROOM_TOKENS;
}

static void begin_try(struct session *session)
{
    Pd__V1__Submit what = PD__V1__SUBMIT__INIT;
    Pd__V1__TokenList tokens = PD__V1__TOKEN_LIST__INIT;
    uint32_t count, *ids;

    if (session->probe->count == PD_KV_SHORT_TRIES + session->probe->rails + PD_KV_LONG_TRIES) {
        finish(session, PD_OK);
        return;
    }
    count = size_of_try(session);
    ids = calloc(count, sizeof(*ids));
    if (!ids || !draw(ids, count, session->prefill.vocabulary)) {
        free(ids);
        fail(&session->prefill, "cannot be asked", "no memory or no random numbers");
        return;
    }
    session->request++;
    session->ticket_bytes = 0;
    tokens.ids = ids;
    tokens.n_ids = count;
    what.route = PD__V1__ROUTE__ROUTE_PREFILL;
    what.tokens = &tokens;
    session->probe->tries[session->probe->count].tokens = count;
    session->probe->tries[session->probe->count].rail = rail_of_try(session);
    submit(&session->prefill, &what);
    free(ids);
}

static void hand_over(struct session *session)
{
    Pd__V1__Submit what = PD__V1__SUBMIT__INIT;

    what.route = PD__V1__ROUTE__ROUTE_DECODE;
    what.ticket = pd__v1__ticket__unpack(NULL, session->ticket_bytes, session->ticket);
    if (!what.ticket) {
        fail(&session->prefill, "gave no ticket", "");
        return;
    }
    what.ticket->rail = session->probe->tries[session->probe->count].rail;
    submit(&session->decode, &what);
    pd__v1__ticket__free_unpacked(what.ticket, NULL);
}

/* ---- what is answered ------------------------------------------------------------------------- */

static void text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

static bool take_digests(struct side *side, const Pd__V1__Fingerprint *print)
{
    const ProtobufCBinaryData *digests[4];

    if (!print)
        return false;
    digests[0] = &print->weights;
    digests[1] = &print->tokenizer;
    digests[2] = &print->chat_template;
    digests[3] = &print->layout;
    for (size_t i = 0; i < 4; i++) {
        if (digests[i]->len != sizeof(side->fingerprint[i]))
            return false;
        memcpy(side->fingerprint[i], digests[i]->data, sizeof(side->fingerprint[i]));
    }
    return true;
}

static const char *other_blocks(const struct side *prefill, const struct side *decode,
                                char why[PD_KV_TEXT])
{
    snprintf(why, PD_KV_TEXT, "%u tokens, %s has %u; give both the same --block-size",
             decode->block_size, prefill->address, prefill->block_size);
    return why;
}

/* Both have said who they are: whether they can be a pair at all. */
static void pair_up(struct session *session)
{
    const struct side *p = &session->prefill, *d = &session->decode;
    char why[PD_KV_TEXT];

    if (p->role != PD__V1__ROLE__ROLE_PREFILL && p->role != PD__V1__ROLE__ROLE_MIXED)
        fail(&session->prefill, "does not compute prompts for others",
             "name the prefill worker first");
    else if (d->role != PD__V1__ROLE__ROLE_DECODE && d->role != PD__V1__ROLE__ROLE_MIXED)
        fail(&session->decode, "does not decode", "name the prefill worker first");
    else if (p->block_size != d->block_size)
        fail(&session->decode, "has KV blocks of another size", other_blocks(p, d, why));
    else if (memcmp(p->fingerprint, d->fingerprint, sizeof(p->fingerprint)) != 0)
        fail(&session->decode, "serves another model, tokenizer, template or KV layout",
             session->probe->prefill);
    else
        begin_try(session);
}

static void on_hello(struct side *side, const Pd__V1__WorkerHello *hello)
{
    struct session *session = side->session;
    struct pd_kv_probe *probe = session->probe;

    if (side->greeted || hello->vocabulary == 0 || !take_digests(side, hello->fingerprint)) {
        fail(side, "says nonsense of itself", "");
        return;
    }
    side->greeted = true;
    side->role = hello->role;
    side->vocabulary = hello->vocabulary;
    side->max_model_len = hello->max_model_len;
    side->block_size = hello->block_size;
    if (side == &session->prefill) {
        text(probe->prefill, sizeof(probe->prefill), hello->instance);
        text(probe->model, sizeof(probe->model), hello->model);
        probe->max_model_len = hello->max_model_len;
    } else {
        text(probe->decode, sizeof(probe->decode), hello->instance);
    }
    if (session->prefill.greeted && session->decode.greeted)
        pair_up(session);
}

static void on_placed(struct side *side, const Pd__V1__Placed *placed)
{
    struct session *session = side->session;

    if (side != &session->prefill || placed->request != session->request)
        return;
    if (!placed->ticket ||
        pd__v1__ticket__get_packed_size(placed->ticket) > sizeof(session->ticket)) {
        fail(side, "gives no ticket", "");
        return;
    }
    session->ticket_bytes = pd__v1__ticket__pack(placed->ticket, session->ticket);
}

static void on_finished(struct side *side, const Pd__V1__Finished *finished)
{
    struct session *session = side->session;
    struct pd_kv_try *try = &session->probe->tries[session->probe->count];
    const Pd__V1__Timing *timing = finished->timing;

    if (!timing) {
        fail(side, "tells no times", "");
    } else if (side == &session->prefill) {
        try->prefill_us = timing->prefill_us;
        hand_over(session);
    } else {
        try->bytes = timing->kv_bytes;
        try->wire_us = timing->kv_wire_us;
        try->round_trip_ns = timing->kv_round_trip_ns;
        text(try->transport, sizeof(try->transport), timing->kv_transport);
        if (session->probe->count++ == 0)
            session->probe->rails =
                timing->kv_rails < PD_KV_RAILS_MAX ? timing->kv_rails : PD_KV_RAILS_MAX;
        begin_try(session);
    }
}

/* What D says of its link to P; the first look tells what had failed before. */
static void on_load(struct side *side, const Pd__V1__LoadReport *load)
{
    struct session *session = side->session;

    for (size_t i = 0; load && side == &session->decode && i < load->n_links; i++) {
        const Pd__V1__KvLinkState *link = load->links[i];

        if (strcmp(link->peer, session->probe->prefill) != 0)
            continue;
        if (!session->link_seen)
            session->failures_before = session->request > 0 ? 0 : link->failures;
        session->link_seen = true;
        session->probe->failures = link->failures - session->failures_before;
        text(session->probe->why, sizeof(session->probe->why), link->why);
    }
}

static void on_step(struct side *side, const Pd__V1__Step *step)
{
    struct session *session = side->session;

    on_load(side, step->load);
    for (size_t i = 0; i < step->n_sequences && !session->finished; i++)
        if (step->sequences[i]->request == session->request && step->sequences[i]->finished)
            on_finished(side, step->sequences[i]->finished);
}

/* Of a rail that is tried alone it is known that the others have nothing to do with it. */
static void on_failed(struct side *side, const Pd__V1__Failed *failed)
{
    const struct pd_kv_probe *probe = side->session->probe;
    uint32_t rail = rail_of_try(side->session);
    char what[64] = "failed to hand over";

    if (rail > 0)
        snprintf(what, sizeof(what), "failed to hand over on rail %u of %u alone", rail,
                 probe->rails);
    fail(side, what, failed->message);
}

static void got_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct side *side = owner;
    Pd__V1__FromWorker *message = pd__v1__from_worker__unpack(NULL, length, bytes);

    if (!message) {
        fail(side, "sends what is no message", "");
        return;
    }
    switch (message->kind_case) {
    case PD__V1__FROM_WORKER__KIND_HELLO:
        on_hello(side, message->hello);
        break;
    case PD__V1__FROM_WORKER__KIND_LOAD:
        on_load(side, message->load);
        break;
    case PD__V1__FROM_WORKER__KIND_PLACED:
        on_placed(side, message->placed);
        break;
    case PD__V1__FROM_WORKER__KIND_STEP:
        on_step(side, message->step);
        break;
    case PD__V1__FROM_WORKER__KIND_FAILED:
        on_failed(side, message->failed);
        break;
    default:
        break;
    }
    pd__v1__from_worker__free_unpacked(message, NULL);
}

static void ended(void *owner, grpc_status_code code, const char *why)
{
    struct side *side = owner;

    (void)code;
    side->stream = NULL;
    fail(side, side->greeted ? "was lost" : "is not reached", why);
}

/* ---- the loop --------------------------------------------------------------------------------- */

static void woken(void *owner)
{
    (void)owner; /* no other thread speaks to this loop */
}

static void tick(void *owner, uint64_t now_ns)
{
    struct session *session = owner;

    pd_streams_tick(&session->streams, now_ns);
    if (!session->finished && now_ns >= session->deadline_ns)
        fail(session->ticket_bytes ? &session->decode : &session->prefill,
             "did not do it in time (--deadline)", "");
    if (!session->finished)
        pd_loop_tick_at(&session->loop, session->deadline_ns);
    else if (session->streams.count)
        pd_loop_tick_at(&session->loop, now_ns + LINGER_NS);
    else
        pd_loop_stop(&session->loop);
}

static void attach(struct session *session, struct side *side, struct pd_connection *connection,
                   const char *frontend)
{
    static const struct pd_stream_events events = {NULL, got_message, ended};

    side->session = session;
    side->address = pd_connection_address(connection);
    side->stream =
        pd_connection_stream(connection, &session->streams, "/pd.v1.Worker/Attach", &events, side);
    if (!side->stream)
        fail(side, "cannot be dialled", "gRPC gave no call");
    else
        greet(side, frontend);
}

int pd_kv_probe_run(struct pd_connection *prefill, struct pd_connection *decode,
                    uint32_t deadline_ms, struct pd_kv_probe *probe, struct pd_error *error)
{
    struct session session = {.probe = probe, .error = error};
    char frontend[32];
    uint64_t unique = 0;
    int status = pd_loop_create(&session.loop, &session, woken, tick, error);

    if (status != PD_OK) {
        pd_loop_destroy(&session.loop);
        return status;
    }
    memset(probe, 0, sizeof(*probe));
    session.streams.loop = &session.loop;
    session.deadline_ns = pd_clock_ns() + deadline_ms * 1000000ull;
    pd_loop_tick_at(&session.loop, session.deadline_ns);
    if (getrandom(&unique, sizeof(unique), 0) < 0)
        unique = session.deadline_ns;
    snprintf(frontend, sizeof(frontend), "pdctl-%016llx", (unsigned long long)unique);
    attach(&session, &session.prefill, prefill, frontend);
    if (!session.finished)
        attach(&session, &session.decode, decode, frontend);
    pd_loop_run(&session.loop);
    pd_loop_destroy(&session.loop);
    return session.status;
}
