/* The engine's own state and the seams between its files. Only the engine's thread touches it, but
 * for the mailbox, the count of the living and the copy of the load.
 *
 *   mailbox ─▶ engine.c ─┬─▶ admission.c  checks a request; gives it room or lets it wait
 *                        ├─▶ transfer.c   what kvx says; tickets offered, prompts received
 *                        ├─▶ borrow.c     a prompt's beginning, out of another worker's cache
 *                        ├─▶ life.c       ends: stop, cancel, failure, deadline; frees
 *                        └─▶ step.c       fills and launches a step; collects the one before
 *                               ├─▶ plan.c    whose rows a step computes
 *                               └─▶ answer.c  one sampled token: text, stop rules, output */
#ifndef PD_ENGINE_INTERNAL_H
#define PD_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "proto/pd.pb-c.h"
#include "worker/base/mailbox.h"
#include "worker/engine/borrow.h"
#include "worker/engine/engine.h"
#include "worker/engine/journal.h"
#include "worker/engine/outbox.h"
#include "worker/engine/pace.h"
#include "worker/engine/sequence.h"
#include "worker/kv/block_pool.h"
#include "worker/sample/sampling.h"

/* What one sequence does in one step. */
struct pd_share {
    struct pd_sequence *sequence;
    int rows;
    int end;    /* KV positions below are in place after the step */
    int sample; /* index in the step's samples, -1: none */
    bool prefill;
};

/* A launched step that has not been collected. */
struct pd_flight {
    uint64_t number;
    const struct pd_step *step;
    struct pd_share *shares; /* [max_seqs] */
    int count;
    int rows;
    int prompt_rows, answers; /* of these rows; shares that are answers */
    uint64_t launched_ns;
};

enum { PD_FLIGHTS = 2 };

struct pd_engine {
    struct pd_engine_options options;
    char *instance, *kv_address;
    int vocabulary;
    int32_t eos_tokens[PD_MODEL_EOS_MAX];
    struct pd_eos eos;
    struct pd_device *device;
    struct pd_graph *graph;
    struct pd_fingerprint fingerprint;
    struct pd_kvx *kvx; /* NULL: direct only */

    struct pd_mailbox box;
    pthread_t thread;
    bool started;

    struct pd_block_pool *pool;
    struct pd_sequence_table table;
    struct pd_borrow_list borrows;
    struct pd_sequence_queue waiting, running;
    int waiting_count;
    int32_t *free_slots;
    int free_slot_count;
    uint64_t last_number;

    struct pd_flight flights[PD_FLIGHTS]; /* [first_flight], oldest first */
    int first_flight, flight_count;
    struct pd_share *plan; /* [max_seqs] */
    int plan_count;
    struct pd_sequence **prompts; /* [max_seqs]: plan.c's, to sort */
    struct pd_pace pace;
    int usual_answer;        /* tokens, smoothed over those that ended; 0: none has yet */
    int failures;            /* steps in a row that failed */
    uint64_t device_free_ns; /* when the last collected step ended */

    struct pd_outbox outbox;
    bool draining, stopping;
    bool lost; /* the device is gone: everything is refused */
    uint64_t next_deadline_ns;

    struct pd_load load; /* counters, kept as they happen */
    struct pd_journal journal;
    pthread_mutex_t load_lock;
    struct pd_load load_copy; /* under load_lock */
    char lost_why[256];       /* under load_lock; "": the device is not lost */
    _Atomic uint64_t living;  /* submitted and not yet freed */
};

/* ---- messages to the engine ------------------------------------------------------------------ */

enum pd_engine_message_kind {
    PD_ENGINE_SUBMIT,
    PD_ENGINE_CANCEL,
    PD_ENGINE_FORGET,
    PD_ENGINE_DRAIN,
    PD_ENGINE_STOP,
    PD_ENGINE_RELEASED, /* from here on: kvx's */
    PD_ENGINE_CLAIMED,
    PD_ENGINE_SAMPLED,
    PD_ENGINE_COMPLETE,
    PD_ENGINE_CLOSED,
};

struct pd_engine_message {
    struct pd_message message;
    struct pd_request *request; /* SUBMIT */
    struct pd_attempt id;       /* CANCEL; FORGET: attach only */
    uint64_t number;            /* kvx: generation or fetch */
    int32_t *prompt;            /* CLAIMED */
    size_t count;
    struct pd_kvx_first first; /* SAMPLED, COMPLETE */
    struct pd_kvx_stats stats;
    char why[160]; /* CLOSED */
};

/* ---- engine.c -------------------------------------------------------------------------------- */

/* Counts, and copies the counts to where other threads look. Before every word that goes out: a load
 * that is asked for behind it includes it. */
void pd_engine_publish_load(struct pd_engine *engine);
/* With what it owns. */
void pd_engine_message_free(struct pd_engine_message *message);
/* The `step` event with all that is in the outbox, which may be nothing. */
void pd_engine_flush(struct pd_engine *engine);
/* The `failed` event; what the sequence said before goes first. */
void pd_engine_say_failed(struct pd_engine *engine, const struct pd_attempt *id, int code,
                          uint32_t prompt_tokens, const char *param, const char *message);
static inline int pd_engine_blocks_for(const struct pd_engine *engine, int tokens)
{
    return (tokens + engine->options.block_size - 1) / engine->options.block_size;
}

/* ---- admission.c ----------------------------------------------------------------------------- */

/* Takes a submitted request: places it, queues it or refuses it. */
void pd_admit_request(struct pd_engine *engine, struct pd_request *request);
/* Places waiting sequences, oldest first, while there is room. */
void pd_admit_waiting(struct pd_engine *engine);
/* Sends the youngest running sequence that may go back to the queue; false if there is none. Only
 * while nothing is in flight. */
bool pd_preempt_youngest(struct pd_engine *engine);
/* Blocks for a sequence, behind those it has. */
bool pd_admit_blocks(struct pd_engine *engine, struct pd_sequence *sequence, int count);
/* Free blocks that are left to sequences that have room, for their answers to come. */
int64_t pd_admit_growth(const struct pd_engine *engine);
/* Fresh blocks for another than a sequence, if there are so many that `beside` are left, and what the
 * running answers are likely to need. `after` as in pd_block_pool_alloc. */
bool pd_admit_spare_blocks(struct pd_engine *engine, int count, int beside, int32_t after,
                           int32_t *blocks);
/* When a refused request may find room: about the time that the prompts ahead of it take. */
uint32_t pd_admit_retry_ms(const struct pd_engine *engine);

/* ---- life.c ---------------------------------------------------------------------------------- */

/* The last word of a sequence has been said (an output with `finished`, or a failure). It is freed
 * as soon as device and kvx let it; do not touch it afterwards. */
void pd_sequence_end(struct pd_engine *engine, struct pd_sequence *sequence);
/* Frees what nobody uses any more of a sequence that has ended. */
void pd_sequence_settle(struct pd_engine *engine, struct pd_sequence *sequence);
/* Fails it with `code`, wherever it stands, and makes kvx let go. After its last word only the
 * latter. */
void pd_sequence_abort(struct pd_engine *engine, struct pd_sequence *sequence, int code,
                       const char *message);
void pd_sequence_abort_all(struct pd_engine *engine, int code, const char *message);
/* Lets all sequences whose deadline has passed fail. */
void pd_sequence_expire(struct pd_engine *engine, uint64_t now_ns);
/* Gives slot and blocks back. */
void pd_sequence_drop_room(struct pd_engine *engine, struct pd_sequence *sequence);
/* Full blocks whose KV is known to be in place enter the prefix cache. */
void pd_sequence_publish(struct pd_engine *engine, struct pd_sequence *sequence);

/* ---- plan.c ---------------------------------------------------------------------------------- */

/* Makes the plan of the next step, which may be empty. False: an answer needs another block and
 * there is none. */
bool pd_plan_make(struct pd_engine *engine);

/* ---- step.c ---------------------------------------------------------------------------------- */

/* Launches the next step if there is work, then collects the oldest one if two are in flight or
 * nothing was launched. False: there was nothing to do. */
bool pd_step_turn(struct pd_engine *engine);

/* ---- answer.c -------------------------------------------------------------------------------- */

/* Feeds the ids that earlier attempts sampled, in silence. True if they end the answer already:
 * then the finished output has been said. */
bool pd_answer_replay(struct pd_engine *engine, struct pd_sequence *sequence);

/* The next token of an answer: its text, the rules that end answers, its output, and the sequence's
 * end if it is the last. `forced`: FinishReason that somebody else has decided, or FINISH_NONE. */
struct pd_sampled {
    int32_t token;
    const struct pd_token_logprob *logprobs; /* [stride] */
    int stride;
    int forced;
};
void pd_answer_accept(struct pd_engine *engine, struct pd_sequence *sequence,
                      const struct pd_sampled *sampled);

/* OFFER, with its ticket out: that is all. */
void pd_answer_offered(struct pd_engine *engine, struct pd_sequence *sequence);

/* ---- transfer.c ------------------------------------------------------------------------------ */

/* PREFILL, placed, and OFFER: offers the blocks and fills the ticket in. False: kvx refused. */
bool pd_transfer_offer(struct pd_engine *engine, struct pd_sequence *sequence,
                       struct pd_ticket *ticket);
/* DECODE, with its room reserved: claims the ticket. False: kvx refused. */
bool pd_transfer_fetch(struct pd_engine *engine, struct pd_sequence *sequence);
/* Makes kvx let go of the blocks; `released` or `closed` says when it has. */
void pd_transfer_recall(struct pd_engine *engine, struct pd_sequence *sequence, const char *why);
/* Sequences that awaited what another received go on, where it has come or will not come. */
void pd_transfer_go_on(struct pd_engine *engine);
/* A message of kvx about one sequence. */
void pd_transfer_handle(struct pd_engine *engine, const struct pd_engine_message *message);
/* The engine's half of the kvx callbacks is defined here, too: pd_engine_kvx_callbacks. */

#endif
