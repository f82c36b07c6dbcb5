#include "step_view.h"

#include <string.h>

static bool bytes_are(ngx_str_t bytes, const void *data, size_t length)
{
    return bytes.len == length && (length == 0 || !memcmp(bytes.data, data, length));
}

/* Strings of protobuf-c end at their first zero. */
static bool string_is(ngx_str_t bytes, const char *string)
{
    size_t length = strlen(string);

    return bytes.len >= length && (length == 0 || !memcmp(bytes.data, string, length)) &&
           (bytes.len == length || bytes.data[length] == 0);
}

static bool timing_is(ngx_str_t packed, const Pd__V1__Timing *expected)
{
    ngx_http_pd_timing_t timing;

    if (!expected)
        return packed.data == NULL;
    return ngx_http_pd_step_timing(&timing, &packed) == NGX_OK &&
           timing.prefill_us == expected->prefill_us && timing.kv_bytes == expected->kv_bytes &&
           timing.kv_exposed_us == expected->kv_exposed_us &&
           string_is(timing.kv_transport, expected->kv_transport);
}

static bool finished_is(const ngx_http_pd_finished_t *finished, const Pd__V1__Finished *expected)
{
    return finished->reason == expected->reason &&
           finished->prompt_tokens == expected->prompt_tokens &&
           finished->cached_tokens == expected->cached_tokens &&
           finished->completion_tokens == expected->completion_tokens &&
           string_is(finished->stop_matched, expected->stop_matched) &&
           timing_is(finished->timing, expected->timing);
}

/* The ids, read again as a TokenList would be. */
static bool tokens_are(const ngx_http_pd_sequence_t *seq, const Pd__V1__SequenceStep *expected)
{
    const u_char *p = seq->tokens.data;

    if (seq->ntokens != expected->n_tokens || seq->tokens.len > 5 * seq->ntokens)
        return false;
    if (seq->ntokens == 0)
        return true;
    for (size_t i = 0; i < seq->ntokens; i++) {
        uint64_t id = 0;

        for (int shift = 0;; shift += 7) {
            id |= (uint64_t)(*p & 127) << shift;
            if (*p++ < 128)
                break;
        }
        if (id != expected->tokens[i])
            return false;
    }
    return p == seq->tokens.data + seq->tokens.len;
}

static bool sequence_is(const ngx_http_pd_sequence_t *seq, const Pd__V1__SequenceStep *expected)
{
    return seq->request == expected->request && seq->attempt == expected->attempt &&
           seq->position == expected->position && tokens_are(seq, expected) &&
           bytes_are(seq->text, expected->text.data, expected->text.len) &&
           bytes_are(seq->reasoning, expected->reasoning.data, expected->reasoning.len) &&
           seq->tools == (expected->n_tool_calls > 0) &&
           seq->logprobs == (expected->n_logprobs > 0) && seq->ended == !!expected->finished &&
           (!seq->ended || finished_is(&seq->finished, expected->finished));
}

static bool load_is(const Pd__V1__LoadReport *load, const Pd__V1__LoadReport *expected)
{
    size_t streams =
        expected->n_seen < NGX_HTTP_PD_STEP_STREAMS ? expected->n_seen : NGX_HTTP_PD_STEP_STREAMS;

    if (!load || load->n_seen != streams)
        return false;
    for (size_t i = 0; i < streams; i++)
        if (load->seen[i]->stream != expected->seen[i]->stream ||
            load->seen[i]->last_submission != expected->seen[i]->last_submission)
            return false;
    return load->number == expected->number && load->taken == expected->taken &&
           load->last_submission == expected->last_submission && load->steps == expected->steps &&
           load->step_us == expected->step_us &&
           load->prefill_queued_tokens == expected->prefill_queued_tokens &&
           load->prefill_us_per_token_x1000 == expected->prefill_us_per_token_x1000 &&
           load->running == expected->running && load->waiting == expected->waiting &&
           load->kv_free == expected->kv_free && load->kv_reserved == expected->kv_reserved &&
           load->kv_growth == expected->kv_growth && !load->draining == !expected->draining;
}

static bool ticket_is(ngx_str_t packed, const Pd__V1__Ticket *expected)
{
    Pd__V1__Ticket *ticket;
    bool same;

    if (!expected || !packed.data)
        return !expected && !packed.data;
    ticket = pd__v1__ticket__unpack(NULL, packed.len, packed.data);
    if (!ticket) /* D will refuse it */
        return true;
    same = ticket->generation == expected->generation && ticket->epoch == expected->epoch &&
           ticket->boot == expected->boot && !strcmp(ticket->address, expected->address);
    pd__v1__ticket__free_unpacked(ticket, NULL);
    return same;
}

static bool placed_is(const ngx_http_pd_placed_t *placed, const Pd__V1__Placed *expected)
{
    return placed->request == expected->request && placed->attempt == expected->attempt &&
           placed->prompt_tokens == expected->prompt_tokens &&
           placed->cached_tokens == expected->cached_tokens &&
           placed->borrowed_tokens == expected->borrowed_tokens &&
           strlen(expected->borrow_failed) <= placed->borrow_failed.len &&
           (!placed->borrow_failed.len ||
            !strncmp((char *)placed->borrow_failed.data, expected->borrow_failed,
                     placed->borrow_failed.len)) &&
           ticket_is(placed->ticket, expected->ticket);
}

bool step_view_is(const ngx_http_pd_step_t *step, const Pd__V1__FromWorker *message)
{
    if (step->kind != message->kind_case)
        return false;
    if (step->kind == PD__V1__FROM_WORKER__KIND_PLACED)
        return placed_is(&step->placed, message->placed);
    if (step->nsequences != message->step->n_sequences)
        return false;
    for (size_t i = 0; i < step->nsequences; i++)
        if (!sequence_is(&step->sequences[i], message->step->sequences[i]))
            return false;
    return message->step->load ? load_is(step->load, message->step->load) : step->load == NULL;
}
