/* The completion-queue loop: the one thread that makes every gRPC call of this process.
 *
 * Whatever gRPC finishes comes back as a tag, and a tag knows what to do next. Other threads never
 * touch a call: they put a message into the link's mailbox, whose wake hook is pd_loop_wake. Timers
 * are one number: the earliest time at which anything wants to be looked at.
 *
 *      gRPC ──tag──────────▶ ┌──────┐ ──tag->done()──▶ streams, accept, ...
 *      mailbox ──wake tag──▶ │ loop │ ──woken()──────▶ the owner takes its mailbox
 *      clock ───────────────▶└──────┘ ──tick(now)────▶ deadlines; sets the next one
 *
 * The wake is an empty batch on a call of a lame channel that is bound to the queue: it completes
 * at once, from any thread, and is public API. */
#ifndef PD_LOOP_H
#define PD_LOOP_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdint.h>

#include "worker/base/error.h"

struct pd_tag {
    void (*done)(struct pd_tag *tag, bool ok);
    void *owner;
    struct pd_tag *next; /* while it is put off */
};

struct pd_loop {
    grpc_completion_queue *queue;
    grpc_channel *lame;
    grpc_call *waker;
    struct pd_tag wake_tag;
    /* The loop's thread only: */
    uint64_t tick_at_ns;
    struct pd_tag *later, **last_later;
    bool woken_here;
    bool stopping;
    void *owner;
    void (*woken)(void *owner);
    void (*tick)(void *owner, uint64_t now_ns);
};

/* Needs grpc_init. The hooks run on the thread that runs the loop. */
int pd_loop_create(struct pd_loop *loop, void *owner, void (*woken)(void *owner),
                   void (*tick)(void *owner, uint64_t now_ns), struct pd_error *error);

/* Any thread, until pd_loop_destroy. Returns at once; wakes that pile up may become one. The loop's own
 * thread is not interrupted: `woken` runs when what it is doing has returned, in the same turn; asked for at its end or
 * by the tick, in the next, which does not wait. */
void pd_loop_wake(struct pd_loop *loop);

/* Puts a tag off: it is done, with success, at the end of this turn: behind the event that is being
 * handled and what that has put into the mailbox. Asked for at a turn's end: of the next one. The loop's
 * thread only; a tag must not be put off twice at once. */
void pd_loop_later(struct pd_loop *loop, struct pd_tag *tag);

/* Asks for a tick at `when_ns` or before. The loop's thread only. */
void pd_loop_tick_at(struct pd_loop *loop, uint64_t when_ns);

/* Handles events until pd_loop_stop, then those that still come while the queue shuts down. Every
 * call must have been ended by then; no wake may come after the stop. */
void pd_loop_run(struct pd_loop *loop);
void pd_loop_stop(struct pd_loop *loop);

/* After pd_loop_run has returned. */
void pd_loop_destroy(struct pd_loop *loop);

#endif
