#include "worker/link/submit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/pd.pb-c.h"
#include "worker/link/address.h"
#include "worker/link/clean.h"
#include "worker/link/scratch.h"
#include "worker/sample/sampling.h"

enum {
    MESSAGES_MAX = 4096,
    ROLE_BYTES_MAX = 32,
    NAME_BYTES_MAX = 64,
    TOOL_CALL_ID_BYTES_MAX = 128,
    TOOLS_BYTES_MAX = 1 << 20,
    TOOL_CHOICE_BYTES_MAX = 4096,
    ARGUMENTS_BYTES_MAX = 64 * 1024,
    STOP_BYTES_MAX = 256,
    TOP_LOGPROBS_MAX = 20,
    MODEL_BYTES_MAX = 256,
};

enum {
    INVALID = PD__V1__FAILED__CODE__INVALID,
    INTERNAL = PD__V1__FAILED__CODE__INTERNAL,
    CONTEXT_LENGTH = PD__V1__FAILED__CODE__CONTEXT_LENGTH,
    TICKET = PD__V1__FAILED__CODE__TICKET,
};

int pd_refuse(struct pd_refusal *refusal, int code, const char *param, const char *format, ...)
{
    va_list arguments;

    memset(refusal, 0, sizeof(*refusal));
    refusal->code = code;
    snprintf(refusal->param, sizeof(refusal->param), "%s", param);
    va_start(arguments, format);
    vsnprintf(refusal->message, sizeof(refusal->message), format, arguments);
    va_end(arguments);
    pd_clean_text(refusal->message);
    return PD_INVALID;
}

/* What every step below works on. */
struct reading {
    const struct pd_link_identity *identity;
    const Pd__V1__Submit *submit;
    struct pd_request *request;
    struct pd_refusal *refusal;
};

/* A room's own failure, passed on: its sentence is the client's if the client is to blame. */
static int refuse_error(const struct reading *r, const char *param, const struct pd_error *error)
{
    bool client = error->status == PD_INVALID || error->status == PD_UNSUPPORTED;

    return pd_refuse(r->refusal, client ? INVALID : INTERNAL, client ? param : "", "%s",
                     error->text);
}

static struct pd_string string_of(ProtobufCBinaryData data)
{
    return (struct pd_string){(const char *)data.data, data.len};
}

static struct pd_string string_of_text(const char *text)
{
    return (struct pd_string){text, strlen(text)};
}

/* ---- labels -------------------------------------------------------------------------------------
 */

static int check_length(const struct reading *r, const char *param, size_t length, size_t most)
{
    if (length <= most)
        return PD_OK;
    return pd_refuse(r->refusal, INVALID, param, "%s is longer than %zu bytes", param, most);
}

static int read_route(const struct reading *r)
{
    enum pd_role role = r->identity->role;

    switch (r->submit->route) {
    case PD__V1__ROUTE__ROUTE_PREFILL:
        r->request->route = PD_ROUTE_PREFILL;
        break;
    case PD__V1__ROUTE__ROUTE_DECODE:
        r->request->route = PD_ROUTE_DECODE;
        break;
    case PD__V1__ROUTE__ROUTE_OFFER:
        r->request->route = PD_ROUTE_OFFER;
        return PD_OK; /* whoever has a cache */
    default:
        r->request->route = PD_ROUTE_DIRECT;
    }
    if ((role == PD_ROLE_PREFILL && r->request->route != PD_ROUTE_PREFILL) ||
        (role == PD_ROLE_DECODE && r->request->route == PD_ROUTE_PREFILL))
        return pd_refuse(r->refusal, INTERNAL, "", "worker %s has not the role for this route",
                         r->identity->instance);
    return PD_OK;
}

/* Every request has a deadline: without one a peer that stalls could keep its blocks for ever. */
static uint64_t deadline_us(const struct reading *r)
{
    uint64_t most = (uint64_t)r->identity->request_timeout_s * 1000000;

    return r->submit->deadline_us && r->submit->deadline_us < most ? r->submit->deadline_us : most;
}

static int read_labels(const struct reading *r)
{
    const Pd__V1__Submit *submit = r->submit;
    struct pd_request *request = r->request;

    if (check_length(r, "tenant", strlen(submit->tenant), sizeof(request->tenant) - 1) != PD_OK ||
        check_length(r, "request_id", strlen(submit->request_id),
                     sizeof(request->request_id) - 1) != PD_OK ||
        check_length(r, "traceparent", strlen(submit->traceparent),
                     sizeof(request->traceparent) - 1) != PD_OK ||
        check_length(r, "model", strlen(submit->model), MODEL_BYTES_MAX) != PD_OK)
        return PD_INVALID;
    strcpy(request->tenant, submit->tenant);
    strcpy(request->request_id, submit->request_id);
    strcpy(request->traceparent, submit->traceparent);
    request->interactive = submit->class_ == PD__V1__REQUEST_CLASS__CLASS_INTERACTIVE;
    request->deadline_ns = request->arrived_ns + deadline_us(r) * 1000;
    request->redirect_above = submit->redirect_above;
    if (strcmp(submit->model, r->identity->model))
        return pd_refuse(r->refusal, INVALID, "model", "this worker serves %s, not %s",
                         r->identity->model, submit->model);
    return read_route(r);
}

/* ---- the prompt ---------------------------------------------------------------------------------
 */

static int refuse_context(const struct reading *r, const char *param, size_t tokens, bool exact)
{
    pd_refuse(r->refusal, CONTEXT_LENGTH, param,
              "This model's maximum context length is %u tokens. However, your %s resulted in "
              "%s%zu tokens. Please reduce the length of the %s.",
              r->identity->max_model_len, param, exact ? "" : "more than ", tokens, param);
    if (exact)
        r->refusal->prompt_tokens = (uint32_t)tokens;
    return PD_INVALID;
}

/* Tokens of a whole prompt; at least one more token must fit behind them. */
static int encode(const struct reading *r, const char *param, const char *text, size_t length,
                  const struct pd_span *literal, size_t literal_count)
{
    size_t limit = r->identity->max_model_len;
    struct pd_tokens *prompt = &r->request->prompt;
    struct pd_error error = {0};
    int status = pd_tokenizer_encode(r->identity->tokenizer, text, length, literal, literal_count,
                                     limit, prompt, &error);

    if (status == PD_FULL)
        return refuse_context(r, param, limit, false);
    if (status != PD_OK)
        return refuse_error(r, param, &error);
    if (prompt->count >= limit)
        return refuse_context(r, param, prompt->count, true);
    return PD_OK;
}

static int check_message(const struct reading *r, const Pd__V1__ChatMessage *message)
{
    if (check_length(r, "messages.role", strlen(message->role), ROLE_BYTES_MAX) != PD_OK ||
        check_length(r, "messages.name", strlen(message->name), NAME_BYTES_MAX) != PD_OK ||
        check_length(r, "messages.tool_call_id", strlen(message->tool_call_id),
                     TOOL_CALL_ID_BYTES_MAX) != PD_OK)
        return PD_INVALID;
    if (!*message->role)
        return pd_refuse(r->refusal, INVALID, "messages", "a message has no role");
    return PD_OK;
}

static int read_messages(const struct reading *r, struct pd_chat_message **out)
{
    const Pd__V1__ChatPrompt *chat = r->submit->chat;
    struct pd_chat_message *messages;

    if (chat->n_messages == 0 || chat->n_messages > MESSAGES_MAX)
        return pd_refuse(r->refusal, INVALID, "messages", "messages holds %zu entries, not 1 to %d",
                         chat->n_messages, MESSAGES_MAX);
    for (size_t i = 0; i < chat->n_messages; i++)
        if (check_message(r, chat->messages[i]) != PD_OK)
            return PD_INVALID;
    messages = calloc(chat->n_messages, sizeof(*messages));
    if (!messages)
        return pd_refuse(r->refusal, INTERNAL, "", "out of memory");
    for (size_t i = 0; i < chat->n_messages; i++) {
        const Pd__V1__ChatMessage *from = chat->messages[i];

        messages[i] = (struct pd_chat_message){
            .role = string_of_text(from->role),
            .content = string_of(from->content),
            .content_null = from->content_null,
            .name = string_of_text(from->name),
            .tool_calls = string_of(from->tool_calls_json),
            .tool_call_id = string_of_text(from->tool_call_id),
            .reasoning = string_of(from->reasoning),
        };
    }
    *out = messages;
    return PD_OK;
}

static bool choice_is_free(ProtobufCBinaryData choice)
{
    static const char *const free_choices[] = {"", "null", "\"auto\"", "\"none\""};

    for (size_t i = 0; i < sizeof(free_choices) / sizeof(*free_choices); i++)
        if (choice.len == strlen(free_choices[i]) &&
            (choice.len == 0 || !memcmp(choice.data, free_choices[i], choice.len)))
            return true;
    return false;
}

static int check_chat(const struct reading *r)
{
    const Pd__V1__ChatPrompt *chat = r->submit->chat;

    if (!r->identity->chat_template)
        return pd_refuse(r->refusal, INVALID, "messages",
                         "the model %s has no chat template: use /v1/completions",
                         r->identity->model);
    if (check_length(r, "tools", chat->tools_json.len, TOOLS_BYTES_MAX) != PD_OK ||
        check_length(r, "tool_choice", chat->tool_choice_json.len, TOOL_CHOICE_BYTES_MAX) !=
            PD_OK ||
        check_length(r, "chat_template_kwargs", chat->template_arguments_json.len,
                     ARGUMENTS_BYTES_MAX) != PD_OK)
        return PD_INVALID;
    if (!choice_is_free(chat->tool_choice_json))
        return pd_refuse(r->refusal, INVALID, "tool_choice",
                         "tool_choice can only be \"auto\" or \"none\" with this worker");
    if (chat->continue_final_message)
        return pd_refuse(r->refusal, INVALID, "continue_final_message",
                         "continue_final_message is not supported by this worker");
    return PD_OK;
}

static int read_chat(const struct reading *r)
{
    const Pd__V1__ChatPrompt *chat = r->submit->chat;
    const struct pd_tokenizer *tokenizer = r->identity->tokenizer;
    /* Templates repeat what they are given, but not without end. */
    size_t limit = 2 * (size_t)r->identity->max_submit_bytes + ARGUMENTS_BYTES_MAX;
    struct pd_chat_message *messages = NULL;
    struct pd_rendered rendered = {0};
    struct pd_error error = {0};
    int status = check_chat(r);

    if (status == PD_OK)
        status = read_messages(r, &messages);
    if (status != PD_OK)
        return status;

    struct pd_chat_input input = {
        .messages = messages,
        .message_count = chat->n_messages,
        .tools = string_of(chat->tools_json),
        .arguments = string_of(chat->template_arguments_json),
        .add_generation_prompt = !chat->no_generation_prompt,
        .bos_token = pd_tokenizer_bytes(tokenizer, pd_tokenizer_bos(tokenizer)),
        .eos_token = pd_tokenizer_bytes(tokenizer, pd_tokenizer_eos(tokenizer)),
    };

    status = pd_chat_template_render(r->identity->chat_template, &input, limit, &rendered, &error);
    free(messages);
    if (status != PD_OK)
        return refuse_error(r, "messages", &error);
    status = encode(r, "messages", rendered.text, rendered.length, rendered.literal,
                    rendered.literal_count);
    pd_rendered_free(&rendered);
    return status;
}

/* Ids that came over the wire; `limit` entries at most. */
static int copy_tokens(const struct reading *r, const char *param, const Pd__V1__TokenList *list,
                       struct pd_tokens *out)
{
    for (size_t i = 0; i < list->n_ids; i++)
        if (list->ids[i] >= r->identity->vocabulary)
            return pd_refuse(r->refusal, INVALID, param,
                             "%s: the model has no token %u; its vocabulary is %u", param,
                             list->ids[i], r->identity->vocabulary);
    out->ids = malloc((list->n_ids + 1) * sizeof(*out->ids));
    if (!out->ids)
        return pd_refuse(r->refusal, INTERNAL, "", "out of memory");
    out->count = out->capacity = list->n_ids;
    for (size_t i = 0; i < list->n_ids; i++)
        out->ids[i] = (int32_t)list->ids[i];
    return PD_OK;
}

static int read_token_prompt(const struct reading *r)
{
    const Pd__V1__TokenList *list = r->submit->tokens;

    if (list->n_ids >= r->identity->max_model_len)
        return refuse_context(r, "prompt", list->n_ids, true);
    return copy_tokens(r, "prompt", list, &r->request->prompt);
}

static int read_prompt(const struct reading *r)
{
    const Pd__V1__Submit *submit = r->submit;
    int forms = (submit->chat != NULL) + (submit->text.len != 0) + (submit->tokens != NULL);
    int status;

    if (r->request->route == PD_ROUTE_DECODE) {
        if (forms)
            return pd_refuse(r->refusal, INTERNAL, "", "a submission to decode carries a prompt");
        return PD_OK;
    }
    if (forms > 1)
        return pd_refuse(r->refusal, INVALID, "prompt", "the prompt is given in two forms");
    if (submit->chat) {
        status = read_chat(r);
    } else if (submit->tokens) {
        status = read_token_prompt(r);
    } else {
        struct pd_span all = {0, submit->text.len};

        /* The whole text is a client's: no special token is read out of it. */
        status = encode(r, "prompt", (const char *)submit->text.data, submit->text.len, &all, 1);
    }
    if (status == PD_OK && r->request->prompt.count == 0)
        return pd_refuse(r->refusal, INVALID, submit->chat ? "messages" : "prompt",
                         "the prompt is empty");
    return status;
}

/* ---- the ticket ---------------------------------------------------------------------------------
 */

static bool copy_digest(uint8_t *out, ProtobufCBinaryData digest)
{
    if (digest.len != PD_DIGEST)
        return false;
    memcpy(out, digest.data, PD_DIGEST);
    return true;
}

static bool copy_fingerprint(struct pd_fingerprint *out, const Pd__V1__Fingerprint *fingerprint)
{
    return fingerprint && copy_digest(out->weights, fingerprint->weights) &&
           copy_digest(out->tokenizer, fingerprint->tokenizer) &&
           copy_digest(out->chat_template, fingerprint->chat_template) &&
           copy_digest(out->layout, fingerprint->layout);
}

static bool copy_ticket(struct pd_ticket *out, const Pd__V1__Ticket *ticket)
{
    struct pd_address address;

    if (strlen(ticket->instance) >= sizeof(out->instance) ||
        strlen(ticket->address) >= sizeof(out->address) ||
        !pd_address_parse(ticket->address, &address) || ticket->secret.len != PD_KVX_SECRET ||
        ticket->block_size < 8 || ticket->block_size > 32 ||
        !copy_fingerprint(&out->fingerprint, ticket->fingerprint))
        return false;
    strcpy(out->instance, ticket->instance);
    strcpy(out->address, ticket->address);
    out->boot = ticket->boot;
    out->epoch = ticket->epoch;
    out->generation = ticket->generation;
    out->tokens = ticket->tokens;
    out->block_size = ticket->block_size;
    out->rail = ticket->rail;
    memcpy(out->secret, ticket->secret.data, PD_KVX_SECRET);
    return true;
}

/* To be borrowed from: what cannot be read is computed. */
static void read_loan(const struct reading *r)
{
    const Pd__V1__Ticket *ticket = r->submit->ticket;

    if (!ticket || !copy_ticket(&r->request->ticket, ticket) ||
        ticket->tokens >= r->identity->max_model_len)
        r->request->ticket.tokens = 0;
    r->request->ticket_wait_ms = r->submit->ticket_wait_ms;
}

static int read_ticket(const struct reading *r)
{
    const Pd__V1__Ticket *ticket = r->submit->ticket;

    if (r->request->route == PD_ROUTE_PREFILL)
        read_loan(r);
    if (r->request->route != PD_ROUTE_DECODE)
        return PD_OK;
    if (!ticket)
        return pd_refuse(r->refusal, TICKET, "", "a submission to decode carries no ticket");
    if (!copy_ticket(&r->request->ticket, ticket))
        return pd_refuse(r->refusal, TICKET, "", "the KV ticket of %.64s is malformed",
                         ticket->instance);
    if (ticket->tokens == 0 || ticket->tokens >= r->identity->max_model_len)
        return pd_refuse(r->refusal, TICKET, "",
                         "the KV ticket of %.64s covers %u tokens; this worker holds 1 to %u",
                         ticket->instance, ticket->tokens, r->identity->max_model_len - 1);
    return PD_OK;
}

/* ---- sampling -----------------------------------------------------------------------------------
 */

static int copy_lists(const struct reading *r, const Pd__V1__Sampling *from)
{
    struct pd_sampling *to = &r->request->sampling;

    if (from->n_stop_token_ids > PD_STOP_TOKENS_MAX)
        return pd_refuse(r->refusal, INVALID, "stop_token_ids",
                         "stop_token_ids holds more than %d ids", PD_STOP_TOKENS_MAX);
    if (from->n_logit_bias > PD_BIAS_MAX)
        return pd_refuse(r->refusal, INVALID, "logit_bias", "logit_bias holds more than %d entries",
                         PD_BIAS_MAX);
    for (size_t i = 0; i < from->n_stop_token_ids; i++)
        to->stop_tokens[i] = (int32_t)from->stop_token_ids[i];
    to->stop_token_count = (int)from->n_stop_token_ids;
    if (from->n_logit_bias == 0)
        return PD_OK;
    to->bias = calloc(from->n_logit_bias, sizeof(*to->bias));
    if (!to->bias)
        return pd_refuse(r->refusal, INTERNAL, "", "out of memory");
    for (size_t i = 0; i < from->n_logit_bias; i++) {
        to->bias[i].token = (int32_t)from->logit_bias[i]->token;
        to->bias[i].bias = from->logit_bias[i]->bias;
    }
    to->bias_count = (int)from->n_logit_bias;
    return PD_OK;
}

static int read_sampling(const struct reading *r)
{
    static const Pd__V1__Sampling defaults = PD__V1__SAMPLING__INIT;
    const Pd__V1__Sampling *from = r->submit->sampling ? r->submit->sampling : &defaults;
    struct pd_sampling *to = &r->request->sampling;
    struct pd_error error = {0};
    const char *param = "";

    if (from->top_logprobs > TOP_LOGPROBS_MAX)
        return pd_refuse(r->refusal, INVALID, "top_logprobs", "top_logprobs is at most %d",
                         TOP_LOGPROBS_MAX);
    to->temperature = from->temperature;
    to->top_p = from->top_p;
    to->min_p = from->min_p;
    to->typical_p = from->typical_p;
    to->presence = from->presence_penalty;
    to->frequency = from->frequency_penalty;
    to->repetition = from->repetition_penalty;
    to->top_k = from->top_k > INT32_MAX ? 0 : (int32_t)from->top_k;
    to->seed = from->seed;
    to->max_tokens = from->max_tokens;
    to->min_tokens = from->min_tokens;
    to->ignore_eos = from->ignore_eos;
    to->include_stop = from->include_stop;
    to->logprobs = from->logprobs ? 1 + (int)from->top_logprobs : 0;
    if (copy_lists(r, from) != PD_OK)
        return PD_INVALID;
    if (pd_sampling_normalise(to, (int)r->identity->vocabulary, &param, &error) != PD_OK)
        return refuse_error(r, param, &error);
    if (r->submit->response_format &&
        r->submit->response_format->kind != PD__V1__RESPONSE_FORMAT__KIND__TEXT)
        return pd_refuse(r->refusal, INVALID, "response_format",
                         "response_format can only be text with this worker");
    return PD_OK;
}

/* The prompt's tokens: of a ticket, which covers what earlier attempts generated too, the rest. */
static uint32_t prompt_length(const struct reading *r)
{
    const Pd__V1__TokenList *generated = r->submit->generated;
    size_t behind = generated ? generated->n_ids : 0;

    if (r->request->route != PD_ROUTE_DECODE)
        return (uint32_t)r->request->prompt.count;
    return behind < r->request->ticket.tokens ? r->request->ticket.tokens - (uint32_t)behind : 0;
}

/* The answer must fit behind the prompt, and what earlier attempts generated is part of it. */
static int read_lengths(const struct reading *r)
{
    struct pd_request *request = r->request;
    uint32_t most = r->identity->max_model_len;
    uint32_t prompt = prompt_length(r);
    const Pd__V1__TokenList *generated = r->submit->generated;
    const char *param = r->submit->chat ? "messages" : "prompt";

    if (prompt == 0)
        return pd_refuse(r->refusal, TICKET, "", "the KV ticket covers no prompt");
    if (request->sampling.max_tokens == 0)
        request->sampling.max_tokens = most - prompt;
    if (request->sampling.max_tokens > most - prompt) {
        pd_refuse(r->refusal, CONTEXT_LENGTH, "max_tokens",
                  "This model's maximum context length is %u tokens. However, you requested %llu "
                  "tokens (%u in the %s, %u in the completion). Please reduce the length of the %s "
                  "or completion.",
                  most, (unsigned long long)prompt + request->sampling.max_tokens, prompt, param,
                  request->sampling.max_tokens, param);
        r->refusal->prompt_tokens = prompt;
        return PD_INVALID;
    }
    if (!generated || generated->n_ids == 0)
        return PD_OK;
    if (generated->n_ids >= request->sampling.max_tokens)
        return pd_refuse(r->refusal, INTERNAL, "",
                         "%zu tokens are generated already, of %u that were asked for",
                         generated->n_ids, request->sampling.max_tokens);
    return copy_tokens(r, "generated", generated, &request->generated);
}

static int make_stream(const struct reading *r)
{
    const Pd__V1__Sampling *sampling = r->submit->sampling;
    struct pd_string strings[PD_STOP_STRINGS_MAX];
    struct pd_stop_rules rules = {strings, 0, false};
    struct pd_error error = {0};

    if (sampling) {
        if (sampling->n_stop > PD_STOP_STRINGS_MAX)
            return pd_refuse(r->refusal, INVALID, "stop", "stop holds more than %d strings",
                             PD_STOP_STRINGS_MAX);
        for (size_t i = 0; i < sampling->n_stop; i++) {
            if (sampling->stop[i].len == 0 || sampling->stop[i].len > STOP_BYTES_MAX)
                return pd_refuse(r->refusal, INVALID, "stop", "a stop string has 1 to %d bytes",
                                 STOP_BYTES_MAX);
            strings[i] = string_of(sampling->stop[i]);
        }
        rules.count = sampling->n_stop;
        rules.include = sampling->include_stop;
    }
    if (pd_text_stream_create(r->identity->tokenizer, &rules, &r->request->stream, &error) != PD_OK)
        return refuse_error(r, "stop", &error);
    return PD_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------
 */

static int read_fields(const struct reading *r)
{
    /* Cheap checks first: a template and a tokenizer are only asked for what can be run. */
    static int (*const steps[])(const struct reading *) = {
        read_labels, read_sampling, read_ticket, make_stream, read_prompt, read_lengths};

    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++)
        if (steps[i](r) != PD_OK)
            return PD_INVALID;
    return PD_OK;
}

int pd_submit_read(const struct pd_link_identity *identity, const struct pd_job *job,
                   struct pd_request **request, struct pd_refusal *refusal)
{
    struct reading reading = {.identity = identity, .refusal = refusal};
    struct pd_scratch scratch;
    int status;

    /* A token id of one byte becomes four; the rest is small and counted. */
    pd_scratch_init(&scratch, 5 * job->length + (4 << 20));
    reading.submit = pd__v1__submit__unpack(&scratch.protobuf, job->length, job->bytes);
    reading.request = reading.submit ? pd_request_create() : NULL;
    if (!reading.submit) {
        status = pd_refuse(refusal, INVALID, "",
                           "the submission is not a valid message, or has too many parts");
    } else if (!reading.request) {
        status = pd_refuse(refusal, INTERNAL, "", "out of memory");
    } else {
        reading.request->id = job->id;
        reading.request->arrived_ns = job->arrived_ns;
        status = read_fields(&reading);
    }
    *request = reading.request;
    pd_scratch_free(&scratch);
    return status;
}
