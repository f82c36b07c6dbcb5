/* A sequence: one attempt's life in the engine, and the table that finds it.
 *
 *              room for it            prompt computed / received
 *   WAITING ───────────────▶ RUNNING ─────────────────────────────▶ ENDED ──▶ freed
 *      ▲                        │  ▲                                  ▲
 *      └────── preempted ───────┘  │                                  │
 *                             RECEIVING (DECODE: kvx writes into its blocks)
 *
 * ENDED means that the last word has been said, to nobody's surprise but the device's and kvx's:
 * the sequence keeps its slot until no launched step names it any more, and its blocks until kvx
 * has let go of them too. Nothing is freed by any other path.
 *
 * Counting tokens. `tokens` is the prompt and the answer as far as the host knows it. KV exists, or
 * will after the launched steps, for positions below `launched`; it is known to exist for those
 * below `collected`. `pending` samples are launched and not yet read: the next row's token is then
 * the device's secret, named by the slot.
 *
 *   tokens    p p p p p p p a a a ?        count = 10, pending = 1
 *   rows      0 1 2 3 4 5 6 7 8 9          launched = 10, collected = 9: one step in flight */
#ifndef PD_SEQUENCE_H
#define PD_SEQUENCE_H

#include <sys/queue.h>

#include "worker/engine/engine.h"
#include "worker/kv/block_pool.h"

enum pd_phase {
    PD_PHASE_NEW, /* being admitted: in no queue */
    PD_PHASE_WAITING,
    PD_PHASE_RECEIVING,
    PD_PHASE_RUNNING,
    PD_PHASE_ENDED,
};

struct pd_sequence {
    struct pd_request *request;
    uint64_t
        number; /* rises by age, never reused: also the ticket's generation and the fetch's id */
    enum pd_phase phase;
    bool in_transfer;    /* kvx may still touch the blocks */
    bool recalled;       /* kvx has been told to let go */
    bool placed;         /* its `placed` has been said */
    bool blocked;        /* waits because it found no room */
    bool awaits;         /* RECEIVING: wants nothing yet, for another receives the same blocks */
    bool history_behind; /* the slot's history lacks the positions below `launched` */
    struct pd_borrow *borrow; /* WAITING: for what another worker has of the prompt; NULL: not */

    int32_t *tokens; /* room for all that this sequence can ever have */
    int count;
    int prompt;     /* of these, the prompt */
    int replayed;   /* tokens of the answer that earlier attempts sampled */
    int max_answer; /* the answer's length limit, those included */

    int32_t *blocks; /* room for all tokens */
    int block_count;
    int published;    /* blocks of these that the prefix cache knows */
    pd_prefix prefix; /* the name of what they contain */
    int slot;         /* -1: none */

    int target;     /* rows up to here are prefill */
    int planned;    /* rows in the plan of the next step */
    int64_t passed; /* rows of younger prompts that went before this one's, here or in the queue */
    int launched, collected, pending;
    int in_flight; /* launched steps that name this sequence */

    uint32_t cached;     /* prompt tokens that nobody computed for this request */
    uint32_t own;        /* of these, those that were here before some were borrowed */
    uint32_t borrowed;   /* tokens that were */
    uint64_t started_ns; /* first work; 0: none yet */
    uint64_t first_ns;   /* first token; 0: none yet */
    uint64_t sampled_ns; /* DECODE: the source's first token heard of */
    struct pd_timing timing;
    char borrow_failed[PD_BORROW_WHY];

    TAILQ_ENTRY(pd_sequence) queue; /* the waiting or the running */
    TAILQ_ENTRY(pd_sequence) all;
    LIST_ENTRY(pd_sequence) by_attempt, by_number;
};

TAILQ_HEAD(pd_sequence_queue, pd_sequence);
LIST_HEAD(pd_sequence_bucket, pd_sequence);

/* Takes the request over; NULL without memory (the request stays the caller's). Room for
 * `max_tokens` tokens in blocks of `block_size`. */
struct pd_sequence *pd_sequence_create(struct pd_request *request, uint64_t number, int max_tokens,
                                       int block_size);
void pd_sequence_free(struct pd_sequence *sequence);

/* Tokens of the answer that the host knows. */
static inline int pd_sequence_answer(const struct pd_sequence *sequence)
{
    return sequence->count - sequence->prompt;
}

/* Whether kvx has its blocks as a source's. */
static inline bool pd_sequence_offers(const struct pd_sequence *sequence)
{
    return sequence->request->route == PD_ROUTE_PREFILL ||
           sequence->request->route == PD_ROUTE_OFFER;
}

/* Whether rows of the prompt (or of a preempted answer) are still to be launched. */
static inline bool pd_sequence_prefills(const struct pd_sequence *sequence)
{
    return sequence->launched < sequence->target;
}

/* Whether one more row can be launched that samples the next token. */
bool pd_sequence_decodes(const struct pd_sequence *sequence);

enum { PD_SEQUENCE_BUCKETS = 4096 };

struct pd_sequence_table {
    struct pd_sequence_queue all; /* by age */
    struct pd_sequence_bucket by_attempt[PD_SEQUENCE_BUCKETS], by_number[PD_SEQUENCE_BUCKETS];
    size_t count;
};

void pd_sequence_table_init(struct pd_sequence_table *table);
void pd_sequence_table_add(struct pd_sequence_table *table, struct pd_sequence *sequence);
void pd_sequence_table_remove(struct pd_sequence_table *table, struct pd_sequence *sequence);
struct pd_sequence *pd_sequence_by_attempt(const struct pd_sequence_table *table,
                                           const struct pd_attempt *id);
struct pd_sequence *pd_sequence_by_number(const struct pd_sequence_table *table, uint64_t number);

#endif
