/* The beginning of a prompt, borrowed from another worker's cache.
 *
 *   PREFILL with a ticket    ─ fetch ─▶ [kvx] ── claimed ─▶ is it this prompt? ─ want ─▶ [kvx]
 *     waits in the queue        └─ complete ─▶ the prefix cache ─▶ the request is placed as always
 *     until one of these  ◀────── closed, or its time is up: what is missing is computed
 *
 * What is read enters the prefix cache, and the request finds it there: so nothing else in the engine
 * knows of it. A borrow has blocks of its own, not the request's. One that takes too long is left to
 * itself: the request goes on with other blocks, and these are free when kvx says so, like all that it
 * writes into. */
#ifndef PD_BORROW_H
#define PD_BORROW_H

#include "worker/engine/sequence.h"

struct pd_engine;
struct pd_engine_message;

LIST_HEAD(pd_borrow_list, pd_borrow);

/* For a request that has just joined the queue: begins to read what its ticket has and the cache has
 * not, if there is room for that beside the whole prompt. */
void pd_borrow_begin(struct pd_engine *engine, struct pd_sequence *sequence);
/* The sequence waits for it no longer. */
void pd_borrow_leave(struct pd_engine *engine, struct pd_sequence *sequence);
/* Lets those go on whose time is up. */
void pd_borrow_expire(struct pd_engine *engine, uint64_t now_ns);
/* When the next one's is; UINT64_MAX: none waits. */
uint64_t pd_borrow_deadline(const struct pd_engine *engine);
/* A message of kvx. False: it is not about a borrow. */
bool pd_borrow_handle(struct pd_engine *engine, const struct pd_engine_message *message);
/* Blocks that are being written. */
uint64_t pd_borrow_blocks(const struct pd_engine *engine);
/* Frees what is left when kvx is gone. */
void pd_borrow_destroy(struct pd_engine *engine);

#endif
