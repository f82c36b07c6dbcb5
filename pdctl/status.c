/* pdctl status: what a worker says of itself (Worker.Stats), for people or for programs. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "pdctl/command.h"
#include "pdctl/connection.h"

static struct pd_connection_options reach = PD_CONNECTION_DEFAULTS;
static bool json, quiet, counters;

static const struct pd_flag flags[] = {
    {"json", NULL, PD_FLAG_SWITCH, &json, 0, 0, "everything, as one JSON object"},
    {"counters", NULL, PD_FLAG_SWITCH, &counters, 0, 0, "also the counters, one a line"},
    {"quiet", NULL, PD_FLAG_SWITCH, &quiet, 0, 0, "nothing: only the exit status tells"},
    PD_CONNECTION_FLAGS(reach),
    {.name = NULL},
};

static bool reply_message(void *owner, const uint8_t *bytes, size_t length)
{
    *(Pd__V1__StatsReply **)owner = pd__v1__stats_reply__unpack(NULL, length, bytes);
    return false;
}

static const char *role_name(Pd__V1__Role role)
{
    switch (role) {
    case PD__V1__ROLE__ROLE_PREFILL:
        return "prefill";
    case PD__V1__ROLE__ROLE_DECODE:
        return "decode";
    case PD__V1__ROLE__ROLE_MIXED:
        return "mixed";
    default:
        return "unknown";
    }
}

/* ---- for people --------------------------------------------------------------------------------- */

static void print_link(const Pd__V1__KvLinkState *link)
{
    printf("  link to %s: %s over %s, %.1f MB in %" PRIu64 " transfers, %" PRIu64 " failures%s%s\n",
           link->peer, link->up ? "up" : "down", *link->transport ? link->transport : "nothing yet",
           (double)link->bytes / 1e6, link->transfers, link->failures, *link->why ? "; " : "",
           link->why);
}

static void print_text(const Pd__V1__StatsReply *reply)
{
    const Pd__V1__WorkerHello *hello = reply->hello;
    const Pd__V1__LoadReport *load = reply->load;
    uint64_t blocks = hello->kv_blocks, used = blocks > load->kv_free ? blocks - load->kv_free : 0;

    printf("%s: %s of %s, boot %016" PRIx64 "%s\n", hello->instance, role_name(hello->role),
           hello->model, hello->boot, load->draining ? ", DRAINING" : "");
    printf("  running %u, waiting %u, %" PRIu64 " prompt tokens queued\n", load->running,
           load->waiting, load->prefill_queued_tokens);
    printf("  KV blocks: %" PRIu64 " of %" PRIu64 " in use, %" PRIu64 " promised, %" PRIu64
           " for answers to grow, %u tokens each\n",
           used, blocks, load->kv_reserved, load->kv_growth, hello->block_size);
    printf("  %" PRIu64 " steps, the last ones %.1f ms each\n", load->steps, load->step_us / 1e3);
    printf("  numerics %s%s%s%s%s\n", hello->numerics_id, *hello->zone ? ", zone " : "",
           hello->zone, *hello->revision ? ", revision " : "", hello->revision);
    for (size_t i = 0; i < load->n_links; i++)
        print_link(load->links[i]);
    for (size_t i = 0; counters && i < reply->n_counters; i++)
        printf("  %s %.0f\n", reply->counters[i]->name, reply->counters[i]->value);
}

/* ---- for programs ------------------------------------------------------------------------------- */

static json_t *hello_json(const Pd__V1__WorkerHello *hello)
{
    char boot[17];

    snprintf(boot, sizeof(boot), "%016" PRIx64, hello->boot);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "instance",
                     hello->instance, "boot", boot, "role", role_name(hello->role), "model",
                     hello->model, "numerics_id", hello->numerics_id, "zone", hello->zone,
                     "revision", hello->revision, "max_model_len", (json_int_t)hello->max_model_len,
                     "block_size", (json_int_t)hello->block_size, "kv_blocks",
                     (json_int_t)hello->kv_blocks, "max_num_seqs", (json_int_t)hello->max_num_seqs);
}

static json_t *links_json(const Pd__V1__LoadReport *load)
{
    json_t *links = json_array();

    for (size_t i = 0; i < load->n_links; i++) {
        const Pd__V1__KvLinkState *link = load->links[i];

        json_array_append_new(
            links, json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:I}", "peer", link->peer, "up",
                             (int)link->up, "transport", link->transport, "why", link->why, "bytes",
                             (json_int_t)link->bytes, "transfers", (json_int_t)link->transfers,
                             "failures", (json_int_t)link->failures));
    }
    return links;
}

static json_t *load_json(const Pd__V1__LoadReport *load)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "steps",
                     (json_int_t)load->steps, "step_us", (json_int_t)load->step_us,
                     "prefill_queued_tokens", (json_int_t)load->prefill_queued_tokens, "running",
                     (json_int_t)load->running, "waiting", (json_int_t)load->waiting, "kv_free",
                     (json_int_t)load->kv_free, "kv_reserved", (json_int_t)load->kv_reserved,
                     "kv_growth", (json_int_t)load->kv_growth, "draining", (int)load->draining,
                     "links", links_json(load));
}

static int print_json(const Pd__V1__StatsReply *reply, struct pd_error *error)
{
    json_t *all = json_object(), *numbers = json_object();
    int status = PD_EXIT_OK;

    for (size_t i = 0; i < reply->n_counters; i++)
        json_object_set_new(numbers, reply->counters[i]->name,
                            json_real(reply->counters[i]->value));
    json_object_set_new(all, "hello", hello_json(reply->hello));
    json_object_set_new(all, "load", load_json(reply->load));
    json_object_set_new(all, "counters", numbers);
    if (json_object_size(all) != 3 ||
        json_dumpf(all, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17))) {
        pd_fail(error, PD_INVALID, "what the worker says is no text: it does not fit into JSON");
        status = PD_EXIT_FAILED;
    }
    putchar('\n');
    json_decref(all);
    return status;
}

static int run(char **operands, struct pd_error *error)
{
    Pd__V1__StatsRequest request = PD__V1__STATS_REQUEST__INIT;
    Pd__V1__StatsReply *reply = NULL;
    struct pd_connection *connection;
    int status = pd_connection_open(operands[0], &reach, &connection, error);

    if (status != PD_OK)
        return PD_EXIT_FAILED;
    status = pd_connection_call(connection, "/pd.v1.Worker/Stats", &request.base, 0, reply_message,
                                &reply, error);
    pd_connection_close(connection);
    if (status == PD_OK && !(reply && reply->hello && reply->load))
        status = pd_fail(error, PD_INVALID, "the worker's answer cannot be read");
    if (status == PD_OK && json)
        status = print_json(reply, error) == PD_EXIT_OK ? PD_OK : PD_INVALID;
    else if (status == PD_OK && !quiet)
        print_text(reply);
    if (reply)
        pd__v1__stats_reply__free_unpacked(reply, NULL);
    return status == PD_OK ? PD_EXIT_OK : PD_EXIT_FAILED;
}

const struct pd_command pd_command_status = {
    .name = "status",
    .operands = "WORKER",
    .operand_count = 1,
    .summary = "what a worker says of itself",
    .text =
        "Asks the worker at HOST:PORT for its role, load, KV blocks, links and counters. It "
        "answers without\n"
        "waiting for its engine, so also when it is busy; the exit status is 1 if it does not.\n\n"
        "  pdctl status 10.0.0.21:9000\n"
        "  pdctl status 10.0.0.21:9000 --json | jq .load.running\n\n"
        "The counters are explained in the worker's README.\n",
    .flags = flags,
    .run = run,
};
