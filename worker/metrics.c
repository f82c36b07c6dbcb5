#include "worker/metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/log.h"
#include "worker/link/address.h"

enum { CONNECTIONS_MAX = 8, TIMEOUT_S = 5, CONNECTION_BYTES = 8192 };

struct pd_metrics {
    struct MHD_Daemon *daemon;
    struct pd_metrics_identity identity;
    const struct pd_engine *engine;
};

/* ---- the page -------------------------------------------------------------------------------- */

enum kind { GAUGE, COUNTER, SECONDS, RATIO }; /* SECONDS: a counter kept in microseconds */

struct line {
    const char *name, *help;
    enum kind kind;
    uint64_t value, of; /* RATIO: value / of */
};

/* A label's value, quoted as the format wants it. */
static void write_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            fputc('\\', out);
        if (*value == '\n')
            fputs("\\n", out);
        else
            fputc(*value, out);
    }
    fputc('"', out);
}

static void write_name(FILE *out, const struct pd_metrics_identity *identity, const char *name,
                       const char *more)
{
    fprintf(out, "pd_worker_%s{", name);
    write_label(out, "model_name", identity->model);
    fputc(',', out);
    write_label(out, "instance_name", identity->instance);
    fputc(',', out);
    write_label(out, "role", identity->role);
    fprintf(out, "%s} ", more);
}

static void write_head(FILE *out, const char *name, const char *help, bool counter)
{
    fprintf(out, "# HELP pd_worker_%s %s\n# TYPE pd_worker_%s %s\n", name, help, name,
            counter ? "counter" : "gauge");
}

static void write_line(FILE *out, const struct pd_metrics_identity *identity,
                       const struct line *line)
{
    write_head(out, line->name, line->help, line->kind == COUNTER || line->kind == SECONDS);
    write_name(out, identity, line->name, "");
    if (line->kind == SECONDS)
        fprintf(out, "%.6f\n", (double)line->value / 1e6);
    else if (line->kind == RATIO)
        fprintf(out, "%.6f\n", line->of ? (double)line->value / (double)line->of : 0);
    else
        fprintf(out, "%" PRIu64 "\n", line->value);
}

static void write_ends(FILE *out, const struct pd_metrics_identity *identity,
                       const struct pd_load *load)
{
    const struct {
        const char *label;
        uint64_t value;
    } ends[] = {
        {",finished_reason=\"stop\"", load->ended_stop},
        {",finished_reason=\"length\"", load->ended_length},
        {",finished_reason=\"handed_over\"", load->ended_handed_over},
        {",finished_reason=\"failed\"", load->ended_failed},
    };

    write_head(out, "requests_ended_total", "requests that have had their last word", true);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        write_name(out, identity, "requests_ended_total", ends[i].label);
        fprintf(out, "%" PRIu64 "\n", ends[i].value);
    }
}

static void write_info(FILE *out, const struct pd_metrics_identity *identity)
{
    write_head(out, "info", "what this worker is", false);
    fputs("pd_worker_info{", out);
    write_label(out, "model_name", identity->model);
    fputc(',', out);
    write_label(out, "instance_name", identity->instance);
    fputc(',', out);
    write_label(out, "role", identity->role);
    fputc(',', out);
    write_label(out, "version", identity->version);
    fputc(',', out);
    write_label(out, "numerics_id", identity->numerics_id);
    fprintf(out, ",block_size=\"%u\"} 1\n", identity->block_size);
}

void pd_metrics_write(FILE *out, const struct pd_metrics_identity *identity,
                      const struct pd_load *load)
{
    const struct line lines[] = {
        {"requests_running", "sequences that decode", GAUGE, load->running, 0},
        {"requests_waiting", "requests that wait for room", GAUGE, load->waiting, 0},
        {"prefill_queued_tokens", "tokens of prompts that are still to be computed", GAUGE,
         load->prefill_queued_tokens, 0},
        {"prefill_chunk_tokens", "tokens that a step of prompts alone has now", GAUGE,
         load->prefill_chunk_tokens, 0},
        {"draining", "1 while no request is taken any more", GAUGE, load->draining, 0},
        {"kv_blocks", "blocks of the KV pool", GAUGE, load->kv_total, 0},
        {"kv_blocks_free", "of them free, or cached and free to be evicted", GAUGE, load->kv_free,
         0},
        {"kv_blocks_reserved", "of them promised and not yet written", GAUGE, load->kv_reserved, 0},
        {"kv_blocks_growth", "of those free, what running answers will as a rule still take", GAUGE,
         load->kv_growth, 0},
        {"kv_cache_usage_ratio", "share of the KV pool that requests hold", RATIO,
         load->kv_total - load->kv_free, load->kv_total},
        {"requests_total", "requests that were taken", COUNTER, load->requests, 0},
        {"prompt_tokens_total", "tokens of prompts that were given room", COUNTER,
         load->prompt_tokens, 0},
        {"prefill_tokens_total", "tokens of prompts that were computed", COUNTER,
         load->tokens_prefilled, 0},
        {"generation_tokens_total", "tokens of answers that were computed here", COUNTER,
         load->tokens_decoded, 0},
        {"prefix_cache_hit_tokens_total", "tokens of prompts that were found in the prefix cache",
         COUNTER, load->cache_hit_tokens, 0},
        {"prefix_cache_offered_tokens_total",
         "tokens of prompts whose KV was offered to another worker out of the prefix cache",
         COUNTER, load->offered_tokens, 0},
        {"prefix_cache_borrowed_tokens_total",
         "tokens of prompts whose KV was read into the prefix cache from another worker's", COUNTER,
         load->borrowed_tokens, 0},
        {"steps_cut_total", "steps of prompts that were left for somebody who came", COUNTER,
         load->steps_cut, 0},
        {"cache_evictions_total", "cached blocks that were given up for room", COUNTER,
         load->evictions, 0},
        {"preemptions_total", "answers sent back to the queue because blocks ran out", COUNTER,
         load->preemptions, 0},
        {"steps_total", "steps of the engine", COUNTER, load->steps, 0},
        {"step_seconds_total", "time in which steps ran", SECONDS, load->steps_us, 0},
        {"step_delay_seconds_total",
         "time in which threads of a step could have run and others had their cores", SECONDS,
         load->steps_delay_us, 0},
        {"queue_seconds_total", "time that ended requests waited for their first step", SECONDS,
         load->queue_us, 0},
        {"prefill_seconds_total", "time of ended requests from there to the first token", SECONDS,
         load->prefill_us, 0},
        {"decode_seconds_total", "time of ended requests from the first token to the last", SECONDS,
         load->decode_us, 0},
    };

    write_info(out, identity);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        write_line(out, identity, &lines[i]);
    write_ends(out, identity, load);
}

/* ---- the port -------------------------------------------------------------------------------- */

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, char *text,
                             size_t length, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(length, text, mode);
    enum MHD_Result result;

    if (!response) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE,
                            "text/plain; version=0.0.4; charset=utf-8");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *text)
{
    return reply(connection, status, (char *)(uintptr_t)text, strlen(text), MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *body,
                              size_t *body_length, void **state)
{
    const struct pd_metrics *metrics = context;
    struct pd_load load;
    char *text = NULL;
    size_t length = 0;
    FILE *out;

    (void)version;
    (void)body;
    (void)state;
    if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    if (*body_length > 0)
        return MHD_NO;
    if (strcmp(path, "/metrics"))
        return refuse(connection, MHD_HTTP_NOT_FOUND, "only /metrics is here\n");
    out = open_memstream(&text, &length);
    if (!out)
        return MHD_NO;
    pd_engine_load(metrics->engine, &load);
    pd_metrics_write(out, &metrics->identity, &load);
    if (fclose(out)) {
        free(text);
        return MHD_NO;
    }
    return reply(connection, MHD_HTTP_OK, text, length, MHD_RESPMEM_MUST_FREE);
}

static struct MHD_Daemon *listen_at(const struct addrinfo *where, struct pd_metrics *metrics)
{
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;

    if (where->ai_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    return MHD_start_daemon(flags, 0, NULL, NULL, answer, metrics, MHD_OPTION_SOCK_ADDR,
                            where->ai_addr, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                            MHD_OPTION_END);
}

int pd_metrics_start(const char *host, int port, const struct pd_metrics_identity *identity,
                     const struct pd_engine *engine, struct pd_metrics **result,
                     struct pd_error *error)
{
    const char *inside =
        pd_address_is_wildcard(host) || !pd_address_is_private(host) ? "127.0.0.1" : host;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *where = NULL;
    struct pd_metrics *metrics = calloc(1, sizeof(*metrics));
    char service[16];

    *result = NULL;
    if (!metrics)
        return pd_fail(error, PD_NO_MEMORY, "no memory for --metrics-port");
    metrics->identity = *identity;
    metrics->engine = engine;
    snprintf(service, sizeof(service), "%d", port);
    errno = 0;
    if (getaddrinfo(inside, service, &hints, &where) == 0)
        metrics->daemon = listen_at(where, metrics);
    if (where)
        freeaddrinfo(where);
    if (!metrics->daemon) {
        free(metrics);
        return pd_fail(error, PD_IO, "--metrics-port %d cannot be listened on at %s: %s", port,
                       inside, errno ? strerror(errno) : "is it a numeric address?");
    }
    pd_log(PD_LOG_INFO, "worker", "metrics at http://%s:%d/metrics", inside, port);
    *result = metrics;
    return PD_OK;
}

void pd_metrics_stop(struct pd_metrics *metrics)
{
    if (!metrics)
        return;
    MHD_stop_daemon(metrics->daemon);
    free(metrics);
}
