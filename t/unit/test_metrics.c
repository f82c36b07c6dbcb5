/* What the worker says of itself: the page for Prometheus, and the line in the log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/engine/journal.h"
#include "worker/metrics.h"

static const struct pd_metrics_identity identity = {
    .instance = "a\"b\\c\nd",
    .model = "m",
    .role = "mixed",
    .version = "1",
    .numerics_id = "cpu",
    .block_size = 16,
};

static char *page_of(const struct pd_load *load)
{
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);

    assert_non_null(out);
    pd_metrics_write(out, &identity, load);
    assert_int_equal(fclose(out), 0);
    return text;
}

#define LABELS "{model_name=\"m\",instance_name=\"a\\\"b\\\\c\\nd\",role=\"mixed\""

static void assert_has(const char *page, const char *line)
{
    if (!strstr(page, line))
        fail_msg("no \"%s\" in\n%s", line, page);
}

static void test_values(void **state)
{
    struct pd_load load = {.running = 3,
                           .kv_total = 8,
                           .kv_free = 6,
                           .kv_reserved = 1,
                           .kv_growth = 2,
                           .tokens_decoded = UINT64_C(9007199254740993),
                           .queue_us = 1500,
                           .steps_delay_us = 2500000,
                           .prefill_chunk_tokens = 48,
                           .ended_length = 5,
                           .waiting = 11,
                           .prefill_queued_tokens = 12,
                           .requests = 13,
                           .prompt_tokens = 14,
                           .tokens_prefilled = 15,
                           .cache_hit_tokens = 16,
                           .offered_tokens = 17,
                           .borrowed_tokens = 18,
                           .steps = 19,
                           .steps_cut = 20,
                           .evictions = 21,
                           .preemptions = 22,
                           .steps_us = 23000000,
                           .prefill_us = 24000000,
                           .decode_us = 25000000,
                           .ended_stop = 26,
                           .ended_handed_over = 27,
                           .ended_failed = 28,
                           .draining = true};
    static const struct {
        const char *name;
        int value;
    } plain[] = {{"requests_waiting", 11},
                 {"prefill_queued_tokens", 12},
                 {"requests_total", 13},
                 {"prompt_tokens_total", 14},
                 {"prefill_tokens_total", 15},
                 {"prefix_cache_hit_tokens_total", 16},
                 {"prefix_cache_offered_tokens_total", 17},
                 {"prefix_cache_borrowed_tokens_total", 18},
                 {"steps_total", 19},
                 {"steps_cut_total", 20},
                 {"cache_evictions_total", 21},
                 {"preemptions_total", 22},
                 {"draining", 1}};
    char line[256];
    char *page = page_of(&load);

    (void)state;
    assert_has(page, "pd_worker_requests_running" LABELS "} 3\n");
    assert_has(page, "pd_worker_kv_cache_usage_ratio" LABELS "} 0.250000\n");
    assert_has(page, "pd_worker_kv_blocks_free" LABELS "} 6\n");
    assert_has(page, "pd_worker_kv_blocks_reserved" LABELS "} 1\n");
    assert_has(page, "pd_worker_kv_blocks_growth" LABELS "} 2\n");
    assert_has(page, "pd_worker_generation_tokens_total" LABELS "} 9007199254740993\n");
    assert_has(page, "pd_worker_step_delay_seconds_total" LABELS "} 2.500000\n");
    assert_has(page, "pd_worker_prefill_chunk_tokens" LABELS "} 48\n");
    assert_has(page, "pd_worker_queue_seconds_total" LABELS "} 0.001500\n");
    assert_has(page, "pd_worker_step_seconds_total" LABELS "} 23.000000\n");
    assert_has(page, "pd_worker_prefill_seconds_total" LABELS "} 24.000000\n");
    assert_has(page, "pd_worker_decode_seconds_total" LABELS "} 25.000000\n");
    assert_has(page, "pd_worker_requests_ended_total" LABELS ",finished_reason=\"stop\"} 26\n");
    assert_has(page,
               "pd_worker_requests_ended_total" LABELS ",finished_reason=\"handed_over\"} 27\n");
    assert_has(page, "pd_worker_requests_ended_total" LABELS ",finished_reason=\"failed\"} 28\n");
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        snprintf(line, sizeof(line), "pd_worker_%s" LABELS "} %d\n", plain[i].name, plain[i].value);
        assert_has(page, line);
    }
    assert_has(page, "pd_worker_requests_ended_total" LABELS ",finished_reason=\"length\"} 5\n");
    assert_has(page,
               "pd_worker_info" LABELS ",version=\"1\",numerics_id=\"cpu\",block_size=\"16\"} 1\n");
    free(page);
    load.kv_total = load.kv_free = 0; /* no division */
    page = page_of(&load);
    assert_has(page, "pd_worker_kv_cache_usage_ratio" LABELS "} 0.000000\n");
    free(page);
}

/* Every sample stands behind the HELP and TYPE of its name, each name has them once, and what only
 * rises is called _total. */
static void test_format(void **state)
{
    struct pd_load load = {0};
    char *page = page_of(&load), *rest = page, *line, name[64] = "", type[16] = "";
    int samples = 0, names = 0;

    (void)state;
    while ((line = strsep(&rest, "\n")) && *line) {
        char next[64], other[64];

        if (sscanf(line, "# HELP %63s", next) == 1) {
            assert_true(strlen(line) > strlen("# HELP ") + strlen(next) + 1);
            strcpy(name, next);
            snprintf(other, sizeof(other), "# TYPE %s ", name);
            line = strsep(&rest, "\n");
            assert_memory_equal(line, other, strlen(other));
            snprintf(type, sizeof(type), "%s", line + strlen(other));
            assert_int_equal(!strcmp(type, "counter"),
                             strlen(name) > 6 && !strcmp(name + strlen(name) - 6, "_total"));
            names++;
        } else {
            assert_int_equal(sscanf(line, "%63[a-z_]{", other), 1);
            assert_string_equal(other, name);
            assert_non_null(strstr(line, "} "));
            samples++;
        }
    }
    assert_true(names > 15 && samples >= names);
    free(page);
}

/* Each name stands in the worker's README, whose table an operator reads. */
static void test_every_metric_is_documented(void **state)
{
    static char documented[256 * 1024];
    struct pd_load load = {0};
    char *page = page_of(&load), *rest = page, *line, name[64], quoted[80];
    FILE *file = fopen("worker/README.md", "r");
    int names = 0;

    (void)state;
    assert_non_null(file);
    documented[fread(documented, 1, sizeof(documented) - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
    while ((line = strsep(&rest, "\n")) && *line) {
        if (sscanf(line, "# HELP %63s", name) != 1)
            continue;
        snprintf(quoted, sizeof(quoted), "`%s`", name);
        if (!strstr(documented, quoted)) {
            snprintf(quoted, sizeof(quoted), "`%s{", name);
            assert_has(documented, quoted);
        }
        names++;
    }
    assert_true(names > 15);
    free(page);
}

enum { S = 1000000000, MS = 1000000 };

static void test_one_line_a_second(void **state)
{
    struct pd_load load = {.kv_total = 10, .kv_free = 4, .running = 2, .waiting = 1};
    struct pd_journal journal = {0};
    char line[PD_JOURNAL_LINE];
    uint64_t now = 100 * (uint64_t)S;

    (void)state;
    assert_false(pd_journal_due(&journal, &load, now, line)); /* nothing was done */
    for (int i = 0; i < 10; i++) {
        now += 90 * MS;
        pd_journal_step(&journal, &load, i % 4, 40000 + (uint64_t)i, now);
        load.steps++;
        load.tokens_prefilled += 5;
        load.tokens_decoded += 2;
        assert_false(pd_journal_due(&journal, &load, now, line));
    }
    now += 250 * MS;
    assert_true(pd_journal_due(&journal, &load, now, line));
    assert_string_equal(line,
                        "10 steps in 1.1 s, longest 40 ms: 50 tokens of prompts, 20 of answers "
                        "(at most 3 in a step); running 2, waiting 1, KV 60 % held");
    assert_false(pd_journal_due(&journal, &load, now + 5 * (uint64_t)S, line)); /* no work since */
    pd_journal_step(&journal, &load, 1, 7000, now + S);
    load.steps++;
    load.preemptions = 3;
    load.evictions = 12;
    load.steps_delay_us = 20600;
    assert_true(pd_journal_due(&journal, &load, now + 2 * (uint64_t)S, line));
    assert_string_equal(line,
                        "1 steps in 1.0 s, longest 7 ms: 0 tokens of prompts, 0 of answers (at "
                        "most 1 in a step); running 2, waiting 1, KV 60 % held; 3 preempted, 12 "
                        "cached blocks evicted; 21 ms lost to other threads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_every_metric_is_documented),
        cmocka_unit_test(test_one_line_a_second),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
