/* pdctl drain: a worker takes no new work, finishes or hands on what it has, and leaves. */
#include <stdio.h>
#include <string.h>

#include "pdctl/command.h"
#include "pdctl/connection.h"

enum { SILENCE_MS = 10000, DAY_MS = 24 * 3600 * 1000 };

static struct pd_connection_options reach = PD_CONNECTION_DEFAULTS;
static uint32_t deadline_ms; /* 0: the worker's own */
static bool no_wait, quiet;

static const struct pd_flag flags[] = {
    {"deadline", "SECONDS", PD_FLAG_SECONDS, &deadline_ms, 1, DAY_MS,
     "when what still runs is cut and goes on elsewhere [the worker's --drain-timeout]"},
    {"no-wait", NULL, PD_FLAG_SWITCH, &no_wait, 0, 0, "return when the worker has begun to drain"},
    {"quiet", NULL, PD_FLAG_SWITCH, &quiet, 0, 0, "no progress"},
    PD_CONNECTION_FLAGS(reach),
    {.name = NULL},
};

/* What the worker has told so far. */
struct watch {
    const char *worker;
    uint32_t attempts, running, waiting;
    uint64_t left_ms;
    bool begun, last, unreadable;
    char shown[160];
};

static void show(struct watch *watch)
{
    char line[sizeof(watch->shown)];

    snprintf(line, sizeof(line), "%s: %u requests to end (%u running, %u waiting), %llu s left",
             watch->worker, watch->attempts, watch->running, watch->waiting,
             (unsigned long long)((watch->left_ms + 999) / 1000));
    if (quiet || !strcmp(line, watch->shown))
        return;
    strcpy(watch->shown, line);
    fprintf(stderr, "%s\n", line);
}

static bool progress_message(void *owner, const uint8_t *bytes, size_t length)
{
    struct watch *watch = owner;
    Pd__V1__DrainProgress *progress = pd__v1__drain_progress__unpack(NULL, length, bytes);

    if (!progress) {
        watch->unreadable = true;
        return false;
    }
    watch->begun = true;
    watch->last = progress->last;
    watch->left_ms = progress->left_ms;
    if (!progress->last) {
        watch->attempts = progress->attempts;
        watch->running = progress->running;
        watch->waiting = progress->waiting;
        show(watch);
    }
    pd__v1__drain_progress__free_unpacked(progress, NULL);
    return !no_wait;
}

static int watch_it(struct pd_connection *connection, struct watch *watch, struct pd_error *error)
{
    Pd__V1__DrainRequest request = PD__V1__DRAIN_REQUEST__INIT;
    int status;

    request.deadline_ms = deadline_ms;
    status = pd_connection_call(connection, "/pd.v1.Worker/Drain", &request.base, SILENCE_MS,
                                progress_message, watch, error);
    if (watch->unreadable)
        return pd_fail(error, PD_INVALID, "the worker's progress cannot be read");
    if (no_wait && watch->begun)
        return PD_OK;
    if (!watch->last) /* after it, the end of the call may be lost with the connection */
        return status != PD_OK ? status
                               : pd_fail(error, PD_CLOSED,
                                         "the worker ended the call without having left");
    if (!pd_connection_wait_gone(connection))
        return pd_fail(error, PD_TIMEOUT,
                       "the worker has nothing left, but its port is still open");
    return PD_OK;
}

static void tell_the_end(const struct watch *watch)
{
    if (no_wait)
        printf("%s drains, for at most %.3g s\n", watch->worker, (double)watch->left_ms / 1e3);
    else if (watch->left_ms > 0 || watch->attempts == 0)
        printf("%s has left: everything that it had has ended\n", watch->worker);
    else
        printf("%s has left: its time was up, and what it still had (%u requests at the last look) "
               "goes on "
               "elsewhere\n",
               watch->worker, watch->attempts);
}

static int run(char **operands, struct pd_error *error)
{
    struct pd_connection *connection;
    struct watch watch = {.worker = operands[0]};
    int status = pd_connection_open(operands[0], &reach, &connection, error);

    if (status != PD_OK)
        return PD_EXIT_FAILED;
    status = watch_it(connection, &watch, error);
    pd_connection_close(connection);
    if (status != PD_OK)
        return PD_EXIT_FAILED;
    tell_the_end(&watch);
    return PD_EXIT_OK;
}

const struct pd_command pd_command_drain = {
    .name = "drain",
    .operands = "WORKER",
    .operand_count = 1,
    .summary = "let a worker finish what it has, and leave",
    .text =
        "Asks the worker at HOST:PORT to leave, as SIGTERM does: frontends send it nothing new "
        "from then\n"
        "on, answers that run are finished, prompts that were handed over are kept until they have "
        "been\n"
        "read. What still runs at the deadline is cut, and the frontends let it go on elsewhere: "
        "clients\n"
        "see a pause. The process ends with status 0; start it again, or do not.\n\n"
        "Shows how far it is on stderr and returns when the worker has left. To give up watching\n"
        "(Ctrl-C) does not stop the drain. On a worker that drains already it only watches, and "
        "the\n"
        "first deadline stands.\n\n"
        "A rolling restart of all workers, one after the other:\n\n"
        "  for worker in 10.0.0.11:9000 10.0.0.12:9000 10.0.0.21:9000; do\n"
        "      pdctl drain $worker --deadline 60 || break\n"
        "      ssh ${worker%:*} systemctl start pd-worker@prefill pd-worker@decode   # what is "
        "down\n"
        "      until pdctl status $worker --quiet; do sleep 1; done\n"
        "  done\n",
    .flags = flags,
    .run = run,
};
