/* The attempts of one Attach stream, from the first part of a submission to its last word.
 *
 *   assembling ──all parts──▶ submitted ──finished, failed──▶ gone
 *                                 └─handed over to decode──▶ handed ──cancel, or 4096 newer ones──▶
 * gone
 *
 * A handed-over attempt is remembered because its ticket may still have to be taken back; anything
 * else that the stream names and the table does not know is over and done with. A submission counts
 * as seen once its attempt is queued, placed or over: last_submission is what load reports say. */
#ifndef PD_ATTEMPTS_H
#define PD_ATTEMPTS_H

#include "worker/link/job.h"

enum { PD_ATTEMPT_BUCKETS = 1024, PD_ATTEMPTS_MAX = 4096, PD_ATTEMPTS_HANDED_MAX = 4096 };

enum pd_attempt_state { PD_ATTEMPT_ASSEMBLING, PD_ATTEMPT_SUBMITTED, PD_ATTEMPT_HANDED };

struct pd_attempt_entry {
    struct pd_attempt_entry *chain;           /* of the bucket */
    struct pd_attempt_entry *next, *previous; /* of the list it is in */
    uint64_t request;
    uint32_t attempt;
    enum pd_attempt_state state;
    bool seen;          /* by the engine: queued or placed */
    bool cancelled;     /* nothing but the last word is sent any more */
    uint64_t number;    /* of the submission, from 1 */
    uint64_t until_ns;  /* assembling: the last part must have come */
    struct pd_job *job; /* until it is handed over or gone */
};

struct pd_attempt_list {
    struct pd_attempt_entry *first, *last;
    size_t count;
};

struct pd_attempts {
    struct pd_attempt_entry *buckets[PD_ATTEMPT_BUCKETS];
    struct pd_attempt_list unseen; /* in order of number */
    struct pd_attempt_list seen;
    struct pd_attempt_list handed; /* oldest first */
    uint64_t submissions;
};

struct pd_attempt_entry *pd_attempts_find(struct pd_attempts *attempts, uint64_t request,
                                          uint32_t attempt);

/* A new attempt, assembling; takes the job. NULL if the table is full, or if `job` is NULL; the
 * submission counts all the same, as one that is over. */
struct pd_attempt_entry *pd_attempts_add(struct pd_attempts *attempts, struct pd_job *job);

void pd_attempts_seen(struct pd_attempts *attempts, struct pd_attempt_entry *entry);
void pd_attempts_handed(struct pd_attempts *attempts, struct pd_attempt_entry *entry);

/* Releases the job and frees the entry. */
void pd_attempts_remove(struct pd_attempts *attempts, struct pd_attempt_entry *entry);
void pd_attempts_clear(struct pd_attempts *attempts);

/* Running ones: all but those handed over. */
size_t pd_attempts_running(const struct pd_attempts *attempts);

/* All submissions up to this number have been seen by the engine, or are over. */
uint64_t pd_attempts_last_submission(const struct pd_attempts *attempts);

#endif
