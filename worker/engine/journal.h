/* What the engine did, told in the log: one line for each second in which there was work.
 *
 *   engine: 31 steps in 1.0 s, longest 42 ms: 512 tokens of prompts, 480 of answers (at most 16 in a
 *           step); running 16, waiting 2, KV 41 % held; 3 preempted, 12 cached blocks evicted;
 *           7 ms lost to other threads */
#ifndef PD_JOURNAL_H
#define PD_JOURNAL_H

#include "worker/engine/engine.h"

enum { PD_JOURNAL_LINE = 320 };

struct pd_journal {
    uint64_t since_ns; /* of the line that is being gathered; 0: none is */
    struct pd_load before;
    uint64_t longest_us;
    int batch; /* most answers in a step */
};

/* A step ended: so many answers took part, and it took so long. `load` does not count it yet. */
void pd_journal_step(struct pd_journal *journal, const struct pd_load *load, int answers,
                     uint64_t us, uint64_t now_ns);

/* Whether it is time for a line: then it is in `line`, and the next is begun. */
bool pd_journal_due(struct pd_journal *journal, const struct pd_load *load, uint64_t now_ns,
                    char line[PD_JOURNAL_LINE]);

#endif
