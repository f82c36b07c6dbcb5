/* One more token of an answer: what it says, and whether it is the last.
 *
 * The rules stand here once, whoever sampled the token: this worker, the prefill worker before it,
 * or an earlier attempt whose tokens are replayed. An answer ends with a stop string, then with a
 * stop or end-of-sequence token, then with what the source of a ticket has decided, then with its
 * length. */
#include "worker/engine/internal.h"

#include <stdio.h>
#include <string.h>

#include "worker/base/clock.h"

struct ending {
    int finish; /* proto FinishReason */
    bool held;  /* text that was held back is part of the answer */
    char matched[sizeof(((struct pd_output *)0)->stop_matched)];
};

/* A stop token that the client named; the model's own end needs no name. */
static void name_stop_token(const struct pd_sampling *sampling, int32_t token,
                            struct ending *ending)
{
    for (int i = 0; i < sampling->stop_token_count; i++)
        if (sampling->stop_tokens[i] == token)
            snprintf(ending->matched, sizeof(ending->matched), "%d", token);
}

/* A stop string, cut where a character ends. */
static void name_stop_string(const struct pd_text_stream *stream, struct ending *ending)
{
    struct pd_string stop = pd_text_stream_stop(stream);
    size_t length = stop.length;

    if (length >= sizeof(ending->matched))
        for (length = sizeof(ending->matched) - 1; (stop.bytes[length] & 0xc0) == 0x80;)
            length--;
    memcpy(ending->matched, stop.bytes, length);
}

/* Takes the answer's token number `length` - 1 into the text and says whether it is the last.
 * False: the stream failed. */
static bool judge(const struct pd_engine *engine, const struct pd_sequence *s, int32_t token,
                  int length, int forced, struct pd_text_delta *delta, struct ending *ending)
{
    const struct pd_sampling *sampling = &s->request->sampling;
    bool ends = pd_sampling_ends_with(sampling, &engine->eos, token);

    *delta = (struct pd_text_delta){"", 0, -1};
    *ending = (struct ending){.finish = PD__V1__FINISH_REASON__FINISH_NONE, .held = true};
    /* A token that ends the answer is not part of its text. */
    if ((!ends || sampling->include_stop) &&
        pd_text_stream_push(s->request->stream, token, delta) != PD_OK)
        return false;
    if (delta->stop >= 0) {
        ending->finish = PD__V1__FINISH_REASON__FINISH_STOP;
        ending->held = false;
        name_stop_string(s->request->stream, ending);
    } else if (ends) {
        ending->finish = PD__V1__FINISH_REASON__FINISH_STOP;
        name_stop_token(sampling, token, ending);
    } else if (forced != PD__V1__FINISH_REASON__FINISH_NONE) {
        ending->finish = forced;
    } else if (length >= s->max_answer) {
        ending->finish = PD__V1__FINISH_REASON__FINISH_LENGTH;
    }
    return true;
}

static uint64_t microseconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;
}

static void fill_finished(const struct pd_sequence *s, const struct ending *ending,
                          struct pd_output *output)
{
    uint64_t now = pd_clock_ns();
    uint64_t started = s->started_ns ? s->started_ns : now;
    uint64_t first = s->first_ns ? s->first_ns : now;

    output->finished = true;
    output->finish = ending->finish;
    output->prompt_tokens = (uint32_t)s->prompt;
    output->cached_tokens = s->cached;
    output->completion_tokens = output->position + (uint32_t)output->token_count;
    memcpy(output->stop_matched, ending->matched, sizeof(output->stop_matched));
    output->timing = s->timing;
    output->timing.queue_us = microseconds(s->request->arrived_ns, started);
    output->timing.decode_us = microseconds(first, now);
    if (s->request->route != PD_ROUTE_DECODE)
        output->timing.prefill_us = microseconds(started, first);
    else if (s->sampled_ns)
        output->timing.kv_exposed_us = microseconds(s->sampled_ns, first);
}

/* For those who read counters. */
static void count_ended(struct pd_engine *engine, const struct pd_output *output)
{
    struct pd_load *load = &engine->load;

    if (output->finish == PD__V1__FINISH_REASON__FINISH_NONE)
        load->ended_handed_over++;
    else if (output->finish == PD__V1__FINISH_REASON__FINISH_LENGTH)
        load->ended_length++;
    else
        load->ended_stop++;
    load->queue_us += output->timing.queue_us;
    load->prefill_us += output->timing.prefill_us;
    load->decode_us += output->timing.decode_us;
}

static struct pd_output *add_output(struct pd_engine *engine, const struct pd_sequence *s,
                                    int position)
{
    struct pd_output *output;

    if (pd_outbox_full(&engine->outbox))
        pd_engine_flush(engine);
    output = pd_outbox_add(&engine->outbox);
    output->id = s->request->id;
    output->position = (uint32_t)position;
    return output;
}

/* Says what was held back, and that this was all. */
static void finish_output(struct pd_engine *engine, struct pd_sequence *s,
                          const struct ending *ending, struct pd_output *output)
{
    struct pd_text_delta rest;

    if (ending->finish != PD__V1__FINISH_REASON__FINISH_NONE && ending->held &&
        pd_text_stream_finish(s->request->stream, &rest) == PD_OK)
        pd_outbox_text(&engine->outbox, rest.bytes, rest.length);
    fill_finished(s, ending, output);
}

/* What admission expects of the next. */
static void learn_length(struct pd_engine *engine, int length)
{
    engine->usual_answer =
        engine->usual_answer ? (7 * engine->usual_answer + length + 7) / 8 : length;
}

static void fail_text(struct pd_engine *engine, struct pd_sequence *s)
{
    pd_sequence_abort(engine, s, PD__V1__FAILED__CODE__INTERNAL,
                      "the text of the answer cannot be made");
}

bool pd_answer_replay(struct pd_engine *engine, struct pd_sequence *s)
{
    const struct pd_tokens *prompt = &s->request->prompt, *generated = &s->request->generated;
    bool here = s->request->route != PD_ROUTE_DECODE; /* there, the ids come with the claim */
    struct pd_text_delta delta;
    struct pd_output *output;
    struct ending ending;

    for (size_t i = 0; here && i < prompt->count; i++)
        s->tokens[s->count++] = prompt->ids[i];
    for (int i = 0; i < s->replayed; i++) {
        if (!judge(engine, s, generated->ids[i], i + 1, PD__V1__FINISH_REASON__FINISH_NONE, &delta,
                   &ending)) {
            fail_text(engine, s);
            return true;
        }
        if (ending.finish != PD__V1__FINISH_REASON__FINISH_NONE) {
            output = add_output(engine, s, s->replayed);
            finish_output(engine, s, &ending, output);
            count_ended(engine, output);
            pd_sequence_end(engine, s);
            return true;
        }
        if (here)
            s->tokens[s->count++] = generated->ids[i];
    }
    return false;
}

/* The token and all that is said of it: decode may be heard before this worker is. */
static void hand_over(struct pd_engine *engine, const struct pd_sequence *s,
                      const struct pd_sampled *sampled, int finish)
{
    struct pd_kvx_first first = {
        .token = (uint32_t)sampled->token,
        .finish = finish,
        .cached = s->cached,
        .chances = (uint32_t)sampled->stride,
    };

    for (int i = 0; i < sampled->stride; i++)
        first.chance[i] = (struct pd_kvx_chance){(uint32_t)sampled->logprobs[i].token,
                                                 sampled->logprobs[i].logprob};
    pd_kvx_complete(engine->kvx, s->number, &first);
}

void pd_answer_accept(struct pd_engine *engine, struct pd_sequence *s,
                      const struct pd_sampled *sampled)
{
    int position = pd_sequence_answer(s);
    bool handed_over = s->request->route == PD_ROUTE_PREFILL;
    struct pd_text_delta delta;
    struct pd_output *output;
    struct ending ending;

    if (!judge(engine, s, sampled->token, position + 1, sampled->forced, &delta, &ending)) {
        fail_text(engine, s);
        return;
    }
    s->tokens[s->count++] = sampled->token;
    if (!s->first_ns)
        s->first_ns = pd_clock_ns();
    output = add_output(engine, s, position);
    pd_outbox_token(&engine->outbox, sampled->token);
    pd_outbox_text(&engine->outbox, delta.bytes, delta.length);
    if (sampled->stride > 0)
        memcpy(pd_outbox_logprobs(&engine->outbox, sampled->stride), sampled->logprobs,
               (size_t)sampled->stride * sizeof(*sampled->logprobs));
    if (ending.finish == PD__V1__FINISH_REASON__FINISH_NONE && !handed_over)
        return;
    finish_output(engine, s, &ending, output);
    count_ended(engine, output);
    if (!handed_over)
        learn_length(engine, position + 1);
    else
        hand_over(engine, s, sampled, ending.finish);
    pd_sequence_end(engine, s);
}

/* It has no token, and counts as no request: another worker's is behind it. */
void pd_answer_offered(struct pd_engine *engine, struct pd_sequence *s)
{
    static const struct ending ending = {.finish = PD__V1__FINISH_REASON__FINISH_NONE};
    struct pd_kvx_first none = {.cached = s->cached};

    finish_output(engine, s, &ending, add_output(engine, s, s->replayed));
    pd_kvx_complete(engine->kvx, s->number, &none);
    pd_sequence_end(engine, s);
}
