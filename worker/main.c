/* pd-worker: flags in, a service out, signals until the end.
 *
 *   start ──▶ load ──▶ ready ──SIGTERM──▶ drain ──idle, or its time is up──▶ exit 0
 *                        │                  └──second SIGTERM──▶ exit 1 at once
 *                        └──the device is lost──▶ exit 1, for a supervisor to start it again
 *
 * Signals are blocked before the first thread exists, so that every thread inherits the mask and the
 * main thread alone takes them. */
#include <errno.h>
#include <grpc/grpc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/base/clock.h"
#include "worker/link/address.h"
#include "worker/link/link.h"
#include "worker/options.h"
#include "worker/plan.h"
#include "worker/service.h"
#include "worker/version.h"

enum { FILES_MIN = 256, DRAIN_POLL_MS = 20, DEVICE_POLL_MS = 500 };

static sigset_t ending; /* SIGTERM, SIGINT */

static int complain(const struct pd_error *error)
{
    fprintf(stderr, "pd-worker: %s\n", error->text);
    return 1;
}

static void block_signals(void)
{
    sigset_t blocked;

    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    blocked = ending;
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* While loading there is nothing to drain. Any thread. */
static void end_if_asked(void)
{
    sigset_t pending;

    if (sigpending(&pending) == 0 &&
        (sigismember(&pending, SIGTERM) || sigismember(&pending, SIGINT))) {
        pd_log(PD_LOG_INFO, "worker", "asked to end while loading");
        _exit(1);
    }
}

/* Every frontend, KV link and data connection is a file. */
static int check_limits(struct pd_error *error)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return PD_OK;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < FILES_MIN)
        return pd_fail(error, PD_INVALID,
                       "only %llu files may be open: raise the limit to %d or more (ulimit -n, or "
                       "LimitNOFILE= in the unit)",
                       (unsigned long long)files.rlim_cur, FILES_MIN);
    return PD_OK;
}

static void warn_of_public(const char *flag, const char *host)
{
    if (*host && !pd_address_is_private(host))
        pd_log(PD_LOG_WARN, "worker",
               "%s %s is not a private address: whoever reaches it can use this worker%s", flag,
               host, pd_address_is_wildcard(host) ? " on every interface" : "");
}

/* Whole or not at all: a reader never sees half a number. */
static int write_port_file(const char *path, int port, struct pd_error *error)
{
    char temporary[4200];
    FILE *file;
    bool written;

    snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
    file = fopen(temporary, "we");
    written = file && fprintf(file, "%d\n", port) > 0;
    if (file && fclose(file))
        written = false;
    if (written && rename(temporary, path) == 0)
        return PD_OK;
    pd_fail(error, PD_IO, "--port-file %s cannot be written: %s", path, strerror(errno));
    unlink(temporary);
    return PD_IO;
}

/* Waits for a signal at most `timeout_ms`; its number, or 0. */
static int wait_for_signal(int timeout_ms)
{
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    int signal_number;

    do {
        signal_number = sigtimedwait(&ending, NULL, &timeout);
    } while (signal_number < 0 && errno == EINTR);
    return signal_number > 0 ? signal_number : 0;
}

/* Until a signal asks for the end. A lost device ends the process here and now: what would be taken
 * down in order may stand still for ever. */
static void wait_for_the_end(const struct pd_service *service)
{
    char why[256];

    while (!wait_for_signal(DEVICE_POLL_MS)) {
        if (!pd_service_lost(service, why, sizeof(why)))
            continue;
        pd_log(PD_LOG_ERROR, "worker", "the device is lost (%s): ending with status 1", why);
        _exit(1);
    }
}

static void drain(struct pd_service *service, const struct pd_options *options)
{
    uint32_t asked_ms = pd_service_asked_drain_ms(service);
    uint32_t patience_ms = asked_ms ? asked_ms : (uint32_t)options->drain_timeout * 1000u;
    uint64_t until_ns;

    pd_log(PD_LOG_INFO, "worker", "draining for at most %.3g s", patience_ms / 1e3);
    pd_service_drain(service, patience_ms);
    until_ns = pd_clock_ns() + patience_ms * 1000000ull; /* not before the link's own reckoning */
    while (!pd_service_idle(service)) {
        if (pd_clock_ns() >= until_ns) {
            pd_log(PD_LOG_WARN, "worker", "still busy after %.3g s: what runs is cut (%s)",
                   patience_ms / 1e3, asked_ms ? "pdctl drain" : "--drain-timeout");
            return;
        }
        if (wait_for_signal(DRAIN_POLL_MS)) {
            pd_log(PD_LOG_WARN, "worker", "asked again: ending at once");
            _exit(1);
        }
    }
}

static int serve(struct pd_service *service, const struct pd_options *options,
                 struct pd_error *error)
{
    int status = pd_service_start(service, error);

    if (status == PD_OK && *options->port_file)
        status = write_port_file(options->port_file, pd_service_port(service), error);
    if (status != PD_OK)
        return complain(error);
    pd_service_log_ready(service);
    wait_for_the_end(service);
    drain(service, options);
    return 0;
}

static int run(const struct pd_options *options)
{
    struct pd_service *service = NULL;
    struct pd_error error = {0};
    int code = 0;

    if (check_limits(&error) != PD_OK)
        return complain(&error);
    if (options->check && strcmp(options->load_format, "dummy") == 0)
        return pd_plan_print(options, stdout, &error) == PD_OK ? 0 : complain(&error);
    if (!options->check && pd_link_probe(options->host, (int)options->port, &error) != PD_OK)
        return complain(&error);
    warn_of_public("--host", options->host);
    warn_of_public("--kv-bind", options->kv_bind);
    if (pd_service_load(options, end_if_asked, &service, &error) != PD_OK)
        return complain(&error);
    if (options->check)
        pd_service_describe(service, stdout);
    else
        code = serve(service, options, &error);
    pd_service_destroy(service);
    if (!options->check && code == 0)
        pd_log(PD_LOG_INFO, "worker", "ended");
    return code;
}

int main(int argc, char **argv)
{
    struct pd_options options;
    struct pd_error error = {0};

    if (pd_options_parse(argc, argv, &options, &error) != PD_OK)
        return complain(&error);
    if (options.help || options.version) {
        if (options.help)
            pd_options_help(stdout);
        else
            printf("pd-worker %s (gRPC %s)\n", PD_VERSION, grpc_version_string());
        return 0;
    }
    pd_log_set_level((enum pd_log_level)options.log_level);
    block_signals();
    return run(&options);
}
