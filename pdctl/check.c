/* pdctl check --kv: how good the KV link between two workers is, and whether it is good enough. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "pdctl/command.h"
#include "pdctl/connection.h"
#include "pdctl/kv_probe.h"

enum { UNSTEADY = 2 };

static struct pd_connection_options reach = PD_CONNECTION_DEFAULTS;
static bool kv, quiet;
static uint32_t deadline_ms = 120000;

static const struct pd_flag flags[] = {
    {"kv", NULL, PD_FLAG_SWITCH, &kv, 0, 0, "measure the KV link: what there is to check so far"},
    {"deadline", "SECONDS", PD_FLAG_SECONDS, &deadline_ms, 1000, 3600 * 1000,
     "longest time that all of it may take [120]"},
    {"quiet", NULL, PD_FLAG_SWITCH, &quiet, 0, 0, "nothing: only the exit status tells"},
    PD_CONNECTION_FLAGS(reach),
    {.name = NULL},
};

/* ---- figures ------------------------------------------------------------------------------------ */

static double bytes_per_us(const struct pd_kv_try *try)
{
    return (double)try->bytes / (double)(try->wire_us ? try->wire_us : 1);
}

static int by_wire(const void *a, const void *b)
{
    const struct pd_kv_try *x = a, *y = b;

    return (x->wire_us > y->wire_us) - (x->wire_us < y->wire_us);
}

/* Each group sorted: the middle one is the typical, the ends the spread. */
struct figures {
    const struct pd_kv_try *one_block, *fastest, *typical, *slowest;
    const struct pd_kv_try *best_rail, *worst_rail; /* NULL: D knows none */
    double speed, made; /* bytes per microsecond: over the link, and as P computes them */
};

static struct figures figures_of(struct pd_kv_probe *probe)
{
    struct pd_kv_try *rails = probe->tries + PD_KV_SHORT_TRIES, *longs = rails + probe->rails;
    struct figures f = {0};

    qsort(probe->tries, PD_KV_SHORT_TRIES, sizeof(*probe->tries), by_wire);
    qsort(rails, probe->rails, sizeof(*rails), by_wire);
    qsort(longs, PD_KV_LONG_TRIES, sizeof(*longs), by_wire);
    f.one_block = &probe->tries[PD_KV_SHORT_TRIES / 2];
    if (probe->rails > 0) {
        f.best_rail = &rails[0];
        f.worst_rail = &rails[probe->rails - 1];
    }
    f.fastest = &longs[0];
    f.typical = &longs[PD_KV_LONG_TRIES / 2];
    f.slowest = &longs[PD_KV_LONG_TRIES - 1];
    f.speed = bytes_per_us(f.typical);
    f.made = (double)f.typical->bytes / (double)(f.typical->prefill_us ? f.typical->prefill_us : 1);
    return f;
}

/* By their numbers again. */
static void print_rails(const struct pd_kv_probe *probe, const struct figures *f)
{
    const struct pd_kv_try *rails = probe->tries + PD_KV_SHORT_TRIES;

    for (uint32_t rail = 1; rail <= probe->rails; rail++)
        for (uint32_t i = 0; i < probe->rails; i++)
            if (rails[i].rail == rail)
                printf("  rail %u of %u alone: round trip %.3f ms, %.0f MB/s, %.3g times what the "
                       "prefill worker makes\n",
                       rail, probe->rails, (double)rails[i].round_trip_ns / 1e6,
                       bytes_per_us(&rails[i]), bytes_per_us(&rails[i]) / f->made);
}

static void print_figures(const struct pd_kv_probe *probe, const struct figures *f)
{
    printf("%s reads from %s over %s%s%s\n", probe->decode, probe->prefill, f->typical->transport,
           *probe->why ? "; " : "", probe->why);
    printf("  one block (%u tokens): %.3f ms, claimed and ready to read\n", f->one_block->tokens,
           (double)f->one_block->wire_us / 1e3);
    printf("  %u tokens, %.1f MB: %.2f ms, %.0f MB/s; %.2f to %.2f ms in %d tries\n",
           f->typical->tokens, (double)f->typical->bytes / 1e6, (double)f->typical->wire_us / 1e3,
           f->speed, (double)f->fastest->wire_us / 1e3, (double)f->slowest->wire_us / 1e3,
           PD_KV_LONG_TRIES);
    print_rails(probe, f);
    printf(
        "  the prefill worker makes %.0f MB/s of KV (%.1f KB a token): the link moves %.3g times "
        "that\n",
        f->made, (double)f->typical->bytes / f->typical->tokens / 1e3, f->speed / f->made);
}

/* Two things that a busy machine does as well: said, not judged. */
static void warn(const struct pd_kv_probe *probe, const struct figures *f)
{
    if (f->slowest->wire_us > UNSTEADY * f->fastest->wire_us)
        fprintf(stderr,
                "the slowest try took %.1f times as long as the fastest: either the machines are "
                "busy, or the link loses packets\n",
                (double)f->slowest->wire_us /
                    (double)(f->fastest->wire_us ? f->fastest->wire_us : 1));
    if (f->worst_rail && bytes_per_us(f->worst_rail) * UNSTEADY < bytes_per_us(f->best_rail))
        fprintf(
            stderr,
            "rail %u of %u moves %.0f MB/s, rail %u %.0f MB/s: either the machines are busy, or "
            "packets of rail %u are lost or take a slower way\n",
            f->worst_rail->rail, probe->rails, bytes_per_us(f->worst_rail), f->best_rail->rail,
            bytes_per_us(f->best_rail), f->worst_rail->rail);
}

/* A link that is slower than prefill delays every answer by the difference. */
static int judge(const struct pd_kv_probe *probe, const struct figures *f, struct pd_error *error)
{
    if (probe->failures > 0)
        return pd_fail(error, PD_IO,
                       "the link was lost %" PRIu64 " times while it was measured: %s",
                       probe->failures, probe->why);
    if (f->speed < f->made)
        return pd_fail(
            error, PD_INVALID,
            "the link is slower (%.0f MB/s) than the prefill worker makes KV (%.0f MB/s): "
            "long prompts will wait for it",
            f->speed, f->made);
    if (!quiet)
        warn(probe, f);
    return PD_OK;
}

/* ---- the command -------------------------------------------------------------------------------- */

static int measure(struct pd_connection *prefill, struct pd_connection *decode,
                   struct pd_error *error)
{
    struct pd_kv_probe probe;
    struct figures figures;
    int status = pd_kv_probe_run(prefill, decode, deadline_ms, &probe, error);

    if (status != PD_OK)
        return status;
    figures = figures_of(&probe);
    if (!quiet)
        print_figures(&probe, &figures);
    return judge(&probe, &figures, error);
}

static int run(char **operands, struct pd_error *error)
{
    struct pd_connection *prefill, *decode;
    int status;

    if (!kv) {
        pd_fail(error, PD_INVALID, "say what to check: --kv");
        return PD_EXIT_MISUSED;
    }
    if (pd_connection_open(operands[0], &reach, &prefill, error) != PD_OK)
        return PD_EXIT_FAILED;
    status = pd_connection_open(operands[1], &reach, &decode, error);
    if (status == PD_OK) {
        status = measure(prefill, decode, error);
        pd_connection_close(decode);
    }
    pd_connection_close(prefill);
    return status == PD_OK ? PD_EXIT_OK : PD_EXIT_FAILED;
}

const struct pd_command pd_command_check = {
    .name = "check",
    .operands = "PREFILL DECODE",
    .operand_count = 2,
    .summary = "whether the KV link of two workers is fast enough",
    .text =
        "Hands a few prompts of random tokens from the prefill worker at one HOST:PORT to the "
        "decode "
        "worker at\n"
        "another, as a frontend would, and prints how long one block and 2048 tokens are on their "
        "way, over which\n"
        "transport and why not a better one; then each of the link's rails (its data connections) "
        "alone: its round\n"
        "trip and its speed. The exit status is 1 if they cannot be a pair, if the link or one of "
        "its rails fails,\n"
        "or if it is slower than the prefill worker makes KV. Nothing is left behind, however it "
        "ends.\n\n"
        "  pdctl check --kv 10.0.0.11:9000 10.0.0.21:9000\n\n"
        "Best before there is traffic: requests and the check slow each other down.\n",
    .flags = flags,
    .run = run,
};
