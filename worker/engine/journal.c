#include "worker/engine/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t PERIOD_NS = 1000000000;

void pd_journal_step(struct pd_journal *journal, const struct pd_load *load, int answers,
                     uint64_t us, uint64_t now_ns)
{
    if (journal->since_ns == 0)
        *journal = (struct pd_journal){.since_ns = now_ns - us * 1000, .before = *load};
    if (us > journal->longest_us)
        journal->longest_us = us;
    if (answers > journal->batch)
        journal->batch = answers;
}

bool pd_journal_due(struct pd_journal *journal, const struct pd_load *load, uint64_t now_ns,
                    char line[PD_JOURNAL_LINE])
{
    const struct pd_load *before = &journal->before;
    uint64_t held = load->kv_total - load->kv_free;
    uint64_t delay_ms = (load->steps_delay_us - before->steps_delay_us + 500) / 1000;
    size_t used;

    if (journal->since_ns == 0 || now_ns - journal->since_ns < PERIOD_NS)
        return false;
    used = (size_t)snprintf(
        line, PD_JOURNAL_LINE,
        "%" PRIu64 " steps in %.1f s, longest %" PRIu64 " ms: %" PRIu64
        " tokens of prompts, %" PRIu64
        " of answers (at most %d in a step); running %u, waiting %u, KV %d %% held",
        load->steps - before->steps, (double)(now_ns - journal->since_ns) / 1e9,
        (journal->longest_us + 500) / 1000, load->tokens_prefilled - before->tokens_prefilled,
        load->tokens_decoded - before->tokens_decoded, journal->batch, load->running, load->waiting,
        load->kv_total ? (int)(held * 100 / load->kv_total) : 0);
    if (load->preemptions > before->preemptions || load->evictions > before->evictions)
        used += (size_t)snprintf(line + used, PD_JOURNAL_LINE - used,
                                 "; %" PRIu64 " preempted, %" PRIu64 " cached blocks evicted",
                                 load->preemptions - before->preemptions,
                                 load->evictions - before->evictions);
    if (delay_ms > 0)
        snprintf(line + used, PD_JOURNAL_LINE - used, "; %" PRIu64 " ms lost to other threads",
                 delay_ms);
    journal->since_ns = 0;
    return true;
}
