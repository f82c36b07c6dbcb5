#include "worker/link/report.h"

#include "worker/base/clock.h"
#include "worker/link/clean.h"

/* Link states are copied under kvx's lock: often enough for people and for the dispatcher's choice.
 */
static const uint64_t kv_states_age_ns = 250u * 1000000u;

void pd_report_hello(struct pd_link *link)
{
    const struct pd_link_identity *identity = link->identity;
    Pd__V1__WorkerHello *hello = &link->hello;
    static const Pd__V1__Role roles[] = {[PD_ROLE_PREFILL] = PD__V1__ROLE__ROLE_PREFILL,
                                         [PD_ROLE_DECODE] = PD__V1__ROLE__ROLE_DECODE,
                                         [PD_ROLE_MIXED] = PD__V1__ROLE__ROLE_MIXED};
    struct pd_fingerprint *print = (struct pd_fingerprint *)&identity->fingerprint;

    pd__v1__fingerprint__init(&link->fingerprint);
    link->fingerprint.weights = (ProtobufCBinaryData){PD_DIGEST, print->weights};
    link->fingerprint.tokenizer = (ProtobufCBinaryData){PD_DIGEST, print->tokenizer};
    link->fingerprint.chat_template = (ProtobufCBinaryData){PD_DIGEST, print->chat_template};
    link->fingerprint.layout = (ProtobufCBinaryData){PD_DIGEST, print->layout};
    pd__v1__worker_hello__init(hello);
    hello->protocol = 1;
    hello->protocol_min = 1;
    hello->instance = (char *)identity->instance;
    hello->boot = identity->boot;
    hello->role = roles[identity->role];
    hello->model = (char *)identity->model;
    hello->fingerprint = &link->fingerprint;
    hello->numerics_id = (char *)identity->numerics_id;
    hello->max_model_len = identity->max_model_len;
    hello->block_size = identity->block_size;
    hello->kv_blocks = identity->kv_blocks;
    hello->max_num_seqs = identity->max_num_seqs;
    hello->vocabulary = identity->vocabulary;
    hello->zone = (char *)identity->zone;
    hello->revision = (char *)identity->revision;
    hello->n_kv_transports = identity->kv_transport_count;
    hello->kv_transports = (char **)identity->kv_transports;
    hello->max_submit_bytes = identity->max_submit_bytes;
    hello->max_num_batched_tokens = identity->max_num_batched_tokens;
    hello->capabilities = link->capabilities;
    link->capabilities[hello->n_capabilities++] = (char *)"logprobs";
    if (link->kvx)
        link->capabilities[hello->n_capabilities++] = (char *)"offer";
    if (identity->chat_template)
        link->capabilities[hello->n_capabilities++] = (char *)"chat";
}

/* ---- load ---------------------------------------------------------------------------------------
 */

static void refresh_kv_states(struct pd_link *link)
{
    uint64_t now = pd_clock_ns();

    if (!link->kvx) {
        link->kv_state_count = 0;
        return;
    }
    if (link->kv_states_ns && now - link->kv_states_ns < kv_states_age_ns)
        return;
    link->kv_state_count = pd_kvx_links(link->kvx, link->kv_states, PD_KV_LINKS_MAX);
    link->kv_states_ns = now;
    for (size_t i = 0; i < link->kv_state_count; i++) {
        pd_clean_text(link->kv_states[i].peer);
        pd_clean_text(link->kv_states[i].why);
    }
}

static void add_links(struct pd_link *link, struct pd_scratch *scratch, Pd__V1__LoadReport *report)
{
    refresh_kv_states(link);
    report->links = pd_scratch_array(scratch, link->kv_state_count, sizeof(*report->links));
    for (size_t i = 0; report->links && i < link->kv_state_count; i++) {
        struct pd_kvx_link_state *state = &link->kv_states[i];
        Pd__V1__KvLinkState *out = pd_scratch_alloc(scratch, sizeof(*out));

        if (!out)
            return;
        pd__v1__kv_link_state__init(out);
        out->peer = state->peer;
        out->up = state->up;
        out->transport = state->transport;
        out->why = state->why;
        out->bytes = state->bytes;
        out->transfers = state->transfers;
        out->failures = state->failures;
        report->links[report->n_links++] = out;
    }
}

Pd__V1__LoadReport *pd_report_load(struct pd_link *link, struct pd_scratch *scratch)
{
    Pd__V1__LoadReport *report = pd_scratch_alloc(scratch, sizeof(*report));
    struct pd_load load;

    if (!report)
        return NULL;
    pd_engine_load(link->engine, &load);
    pd__v1__load_report__init(report);
    report->taken = ++link->reports;
    report->steps = load.steps;
    report->step_us = load.step_us;
    report->prefill_queued_tokens = load.prefill_queued_tokens;
    report->prefill_us_per_token_x1000 = load.prefill_us_per_token_x1000;
    report->running = load.running;
    report->waiting = load.waiting;
    report->kv_free = load.kv_free;
    report->kv_reserved = load.kv_reserved;
    report->kv_growth = load.kv_growth;
    report->draining = load.draining || link->draining;
    add_links(link, scratch, report);
    return report;
}

/* ---- placed -------------------------------------------------------------------------------------
 */

static Pd__V1__Ticket *report_ticket(struct pd_scratch *scratch, const struct pd_ticket *ticket)
{
    Pd__V1__Ticket *out = pd_scratch_alloc(scratch, sizeof(*out));
    Pd__V1__Fingerprint *print = pd_scratch_alloc(scratch, sizeof(*print));
    struct pd_ticket *from = (struct pd_ticket *)ticket;

    if (!out || !print)
        return NULL;
    pd__v1__fingerprint__init(print);
    print->weights = (ProtobufCBinaryData){PD_DIGEST, from->fingerprint.weights};
    print->tokenizer = (ProtobufCBinaryData){PD_DIGEST, from->fingerprint.tokenizer};
    print->chat_template = (ProtobufCBinaryData){PD_DIGEST, from->fingerprint.chat_template};
    print->layout = (ProtobufCBinaryData){PD_DIGEST, from->fingerprint.layout};
    pd__v1__ticket__init(out);
    out->instance = from->instance;
    out->address = from->address;
    out->boot = from->boot;
    out->epoch = from->epoch;
    out->generation = from->generation;
    out->tokens = from->tokens;
    out->block_size = from->block_size;
    out->fingerprint = print;
    out->secret = (ProtobufCBinaryData){PD_KVX_SECRET, from->secret};
    return out;
}

Pd__V1__Placed *pd_report_placed(struct pd_scratch *scratch, const struct pd_placed *placed)
{
    Pd__V1__Placed *out = pd_scratch_alloc(scratch, sizeof(*out));

    if (!out)
        return NULL;
    pd__v1__placed__init(out);
    out->request = placed->id.request;
    out->attempt = placed->id.attempt;
    out->prompt_tokens = placed->prompt_tokens;
    out->cached_tokens = placed->cached_tokens;
    out->queued_ahead_tokens = placed->queued_ahead_tokens;
    out->borrowed_tokens = placed->borrowed_tokens;
    out->borrow_failed = (char *)placed->borrow_failed;
    if (placed->has_ticket) {
        out->ticket = report_ticket(scratch, &placed->ticket);
        if (!out->ticket)
            return NULL;
    }
    return out;
}

/* ---- one sequence of a step ---------------------------------------------------------------------
 */

static Pd__V1__TokenLogprob *report_logprob(const struct pd_link *link, struct pd_scratch *scratch,
                                            const struct pd_token_logprob *from)
{
    Pd__V1__TokenLogprob *out = pd_scratch_alloc(scratch, sizeof(*out));
    struct pd_string text = pd_tokenizer_bytes(link->identity->tokenizer, from->token);

    if (!out)
        return NULL;
    pd__v1__token_logprob__init(out);
    out->token = (uint32_t)from->token;
    out->logprob = from->logprob;
    out->text = (ProtobufCBinaryData){text.length, (uint8_t *)text.bytes};
    return out;
}

/* Rows of 1 + alternatives: the sampled token, with the others under it. */
static bool add_logprobs(const struct pd_link *link, struct pd_scratch *scratch,
                         const struct pd_output *output, Pd__V1__SequenceStep *step)
{
    size_t stride = (size_t)output->logprob_stride;

    step->logprobs = pd_scratch_array(scratch, output->token_count, sizeof(*step->logprobs));
    for (size_t i = 0; step->logprobs && i < output->token_count; i++) {
        const struct pd_token_logprob *row = output->logprobs + i * stride;
        Pd__V1__TokenLogprob *token = report_logprob(link, scratch, row);

        if (!token)
            return false;
        token->top = pd_scratch_array(scratch, stride, sizeof(*token->top));
        for (size_t j = 1; token->top && j < stride; j++) {
            token->top[token->n_top] = report_logprob(link, scratch, &row[j]);
            if (!token->top[token->n_top++])
                return false;
        }
        step->logprobs[step->n_logprobs++] = token;
    }
    return step->logprobs != NULL;
}

static Pd__V1__Timing *report_timing(struct pd_scratch *scratch, const struct pd_timing *from)
{
    Pd__V1__Timing *out = pd_scratch_alloc(scratch, sizeof(*out));

    if (!out)
        return NULL;
    pd__v1__timing__init(out);
    out->queue_us = from->queue_us;
    out->prefill_us = from->prefill_us;
    out->decode_us = from->decode_us;
    out->kv_bytes = from->kv.bytes;
    out->kv_chunks = from->kv.chunks;
    out->kv_wait_us = from->kv.wait_us;
    out->kv_wire_us = from->kv.wire_us;
    out->kv_exposed_us = from->kv_exposed_us;
    out->kv_transport = (char *)from->kv.transport;
    out->preemptions = from->preemptions;
    out->kv_rails = from->kv.rails;
    out->kv_round_trip_ns = from->kv.round_trip_ns;
    return out;
}

static bool add_finished(struct pd_scratch *scratch, const struct pd_output *output,
                         Pd__V1__SequenceStep *step)
{
    Pd__V1__Finished *out = pd_scratch_alloc(scratch, sizeof(*out));

    if (!out)
        return false;
    pd__v1__finished__init(out);
    out->reason = (Pd__V1__FinishReason)output->finish;
    out->prompt_tokens = output->prompt_tokens;
    out->cached_tokens = output->cached_tokens;
    out->completion_tokens = output->completion_tokens;
    out->stop_matched = (char *)output->stop_matched;
    out->timing = report_timing(scratch, &output->timing);
    step->finished = out;
    return out->timing != NULL;
}

Pd__V1__SequenceStep *pd_report_sequence(const struct pd_link *link, struct pd_scratch *scratch,
                                         const struct pd_output *output)
{
    Pd__V1__SequenceStep *step = pd_scratch_alloc(scratch, sizeof(*step));

    if (!step)
        return NULL;
    pd__v1__sequence_step__init(step);
    step->request = output->id.request;
    step->attempt = output->id.attempt;
    step->position = output->position;
    step->n_tokens = output->token_count;
    step->tokens = (uint32_t *)output->tokens;
    step->text = (ProtobufCBinaryData){output->text_length, (uint8_t *)output->text};
    if (output->logprob_stride > 0 && !add_logprobs(link, scratch, output, step))
        return NULL;
    if (output->finished && !add_finished(scratch, output, step))
        return NULL;
    return step;
}
