/* How many rows of prompts may share a step with answers.
 *
 * Rows of prompts are what makes a step long, and everybody whose answer takes part in it waits for
 * its end. So the time of a step with answers is bounded by a multiple of what it takes without
 * prompts:
 *
 *     quiet   │▒▒▒▒▒▒▒▒│                      answers alone
 *     shared  │▒▒▒▒▒▒▒▒│░░░░░░░░│             and prompts: at most PD_PACE_STRETCH times as long,
 *                                             or PD_PACE_LEAST rows, so that prompts go on too
 *
 * Both halves are measured as steps end; what a row costs changes with the contexts behind it, so
 * the pace follows. Steps without answers are not bounded. The numbers of an answer do not depend on
 * the rows beside it, so time may decide here and nobody can tell. */
#ifndef PD_PACE_H
#define PD_PACE_H

#include <stdint.h>

enum { PD_PACE_STRETCH = 2, PD_PACE_LEAST = 16, PD_PACE_FIRST = 64 };

struct pd_pace {
    int most;          /* rows of a step */
    uint64_t quiet_ns; /* a step of answers alone, smoothed; 0: none was measured yet */
    uint64_t row_ns;   /* what a row of a prompt adds to it, smoothed; 0: likewise */
};

void pd_pace_init(struct pd_pace *pace, int most);

/* Rows of prompts for the next step that answers take part in. */
int pd_pace_rows(const struct pd_pace *pace);

/* A step of which answers were a part, and `rows` rows of prompts, took `ns`. */
void pd_pace_learn(struct pd_pace *pace, int rows, uint64_t ns);

#endif
