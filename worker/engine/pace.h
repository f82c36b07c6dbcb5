/* How many rows of prompts a step may have.
 *
 * Rows of prompts are what makes a step long, and two wait for its end: everybody whose answer takes
 * part in it, and whoever comes with a short prompt meanwhile. So its time is bounded:
 *
 *     quiet   │▒▒▒▒▒▒▒▒│                      answers alone
 *     shared  │▒▒▒▒▒▒▒▒│░░░░░░░░│             and prompts: at most PD_PACE_STRETCH times as long
 *     prompts │░░░░░░░░░░░░│                  prompts alone: about `chunk_ns`
 *
 * A chunk reads all weights again, so short ones cost: a tenth and more of the time where one sequence's step takes
 * a few milliseconds. Where a step can be left in the middle (pd_step_cut), one of prompts alone lasts PD_PACE_CALM times
 * as long while nobody comes, and who comes has it left. What was computed of it is lost; so for PD_PACE_ALERT times
 * as long the chunks are short, and no more than a tenth can be lost however many come.
 *
 * But for a quiet step, prompts always get some rows, so that they go on, and are not cut so small that it costs. What
 * a row costs is measured as steps end; it changes with the contexts behind it, and the pace
 * follows. Where prompts never leave a step to answers alone, a quiet one is not measured, and it changes too, with
 * their number and contexts: so at first, and after PD_PACE_TRUST steps that were shared, one is kept free of prompts
 * (or two, where the next is planned before that has ended).
 * The numbers of an answer do not depend on the rows beside it, so time may decide here and nobody can tell.
 *
 * Some rows take so long (PD_PACE_LONG_MS) that whoever comes meanwhile should find as few of them in
 * front of it as can be: see plan.c, which does not fill a step up with them where a prompt ends, and
 * step.c, which launches none of them ahead. */
#ifndef PD_PACE_H
#define PD_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    PD_PACE_STRETCH = 2,
    PD_PACE_CHUNK_MS = 25, /* of prompts alone, unless said otherwise */
    PD_PACE_CALM = 4,
    PD_PACE_ALERT = 10,
    PD_PACE_LONG_MS = 8,
    PD_PACE_FIRST = 64, /* rows, as long as nothing has been measured */
    PD_PACE_TRUST = 64, /* steps that a measured quiet one is good for */
    PD_PACE_LEAST = 16, /* rows beside answers */
    PD_PACE_LEAST_ALONE = 32,
    PD_PACE_UNIT = 16, /* rows that kernels compute together: chunks are whole ones */
};

struct pd_pace {
    int most;  /* rows of a step */
    bool cuts; /* a step can be left in the middle */
    uint64_t chunk_ns;
    uint64_t alert_ns; /* of steps with short chunks that are still to come */
    int shared;        /* steps since the last quiet one */
    /* Smoothed; 0: nothing was measured yet. */
    uint64_t quiet_ns; /* a step of answers alone */
    uint64_t row_ns;   /* what a row of a prompt adds to it */
    uint64_t alone_ns; /* a row in a step of prompts alone */
};

/* `chunk_ms` 0: PD_PACE_CHUNK_MS. */
void pd_pace_init(struct pd_pace *pace, int most, int chunk_ms, bool cuts);

/* Rows of prompts for the next step, with or without answers in it; 0: a quiet one is to be measured. */
int pd_pace_rows(const struct pd_pace *pace, bool answers);

/* Whether so many rows of prompts are likely to take PD_PACE_LONG_MS or more. */
bool pd_pace_is_long(const struct pd_pace *pace, bool answers, int rows);

/* A step of so many rows of prompts alone has been running for `ran_ns`. Whether it is worth to leave it for somebody who
 * has `waiting` rows: they would wait longer than behind an ordinary chunk as a rule, and take less time than it still
 * does. */
bool pd_pace_leaves(const struct pd_pace *pace, int rows, uint64_t ran_ns, int waiting);

/* A step was left after so long. */
void pd_pace_left(struct pd_pace *pace, uint64_t ran_ns);

/* A step with `rows` rows of prompts, with or without answers in it, took `ns`. */
void pd_pace_learn(struct pd_pace *pace, bool answers, int rows, uint64_t ns);

#endif
