#include "worker/link/loop.h"

#include <grpc/support/time.h>
#include <string.h>

#include "worker/base/clock.h"
#include "worker/link/locks.h"

/* With nothing to look at the loop still turns over now and then: a deadline on every wait. */
static const uint64_t longest_wait_ns = 10u * 1000000000u;

/* The loop that this thread runs. */
static _Thread_local const struct pd_loop *running;

static void wake_done(struct pd_tag *tag, bool ok)
{
    struct pd_loop *loop = tag->owner;

    (void)ok;
    loop->woken(loop->owner);
}

int pd_loop_create(struct pd_loop *loop, void *owner, void (*woken)(void *owner),
                   void (*tick)(void *owner, uint64_t now_ns), struct pd_error *error)
{
    grpc_slice method = grpc_slice_from_static_string("/wake");

    pd_locks_unwatched();
    memset(loop, 0, sizeof(*loop));
    loop->owner = owner;
    loop->woken = woken;
    loop->tick = tick;
    loop->tick_at_ns = UINT64_MAX;
    loop->last_later = &loop->later;
    loop->wake_tag = (struct pd_tag){.done = wake_done, .owner = loop};
    loop->queue = grpc_completion_queue_create_for_next(NULL);
    loop->lame = grpc_lame_client_channel_create("wake", GRPC_STATUS_UNAVAILABLE, "wake");
    if (loop->lame)
        loop->waker =
            grpc_channel_create_call(loop->lame, NULL, GRPC_PROPAGATE_DEFAULTS, loop->queue, method,
                                     NULL, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    if (!loop->waker)
        return pd_fail(error, PD_NO_MEMORY, "gRPC gave no completion queue");
    return PD_OK;
}

void pd_loop_wake(struct pd_loop *loop)
{
    if (running == loop)
        loop->woken_here = true;
    else
        grpc_call_start_batch(loop->waker, NULL, 0, &loop->wake_tag, NULL);
}

void pd_loop_later(struct pd_loop *loop, struct pd_tag *tag)
{
    tag->next = NULL;
    *loop->last_later = tag;
    loop->last_later = &tag->next;
}

void pd_loop_tick_at(struct pd_loop *loop, uint64_t when_ns)
{
    if (when_ns < loop->tick_at_ns)
        loop->tick_at_ns = when_ns;
}

static gpr_timespec next_deadline(const struct pd_loop *loop)
{
    uint64_t now = pd_clock_ns();
    uint64_t wait = loop->tick_at_ns > now ? loop->tick_at_ns - now : 0;

    if (wait > longest_wait_ns)
        wait = longest_wait_ns;
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_nanos((int64_t)wait, GPR_TIMESPAN));
}

static void run_tick(struct pd_loop *loop)
{
    uint64_t now = pd_clock_ns();

    if (now < loop->tick_at_ns)
        return;
    loop->tick_at_ns = UINT64_MAX; /* the tick asks for the next one */
    loop->tick(loop->owner, now);
}

/* What is put off again while this runs belongs to the next turn. */
static void run_later(struct pd_loop *loop)
{
    struct pd_tag *tag, *next = loop->later;

    loop->later = NULL;
    loop->last_later = &loop->later;
    while ((tag = next)) {
        next = tag->next;
        tag->done(tag, true);
    }
}

/* One event, what it led to, and what was put off until then. */
static grpc_completion_type turn(struct pd_loop *loop, gpr_timespec until)
{
    bool at_once = loop->woken_here || loop->later;
    grpc_event event = grpc_completion_queue_next(
        loop->queue, at_once ? gpr_inf_past(GPR_CLOCK_MONOTONIC) : until, NULL);
    struct pd_tag *tag = event.tag;

    if (event.type == GRPC_OP_COMPLETE)
        tag->done(tag, event.success);
    if (loop->woken_here) {
        loop->woken_here = false;
        loop->woken(loop->owner);
    }
    run_later(loop);
    return event.type;
}

void pd_loop_run(struct pd_loop *loop)
{
    running = loop;
    while (!loop->stopping) {
        turn(loop, next_deadline(loop));
        run_tick(loop);
    }
    while (turn(loop, gpr_inf_future(GPR_CLOCK_MONOTONIC)) != GRPC_QUEUE_SHUTDOWN)
        ;
    running = NULL;
}

void pd_loop_stop(struct pd_loop *loop)
{
    loop->stopping = true;
    grpc_completion_queue_shutdown(loop->queue);
}

void pd_loop_destroy(struct pd_loop *loop)
{
    if (loop->waker)
        grpc_call_unref(loop->waker);
    if (loop->lame)
        grpc_channel_destroy(loop->lame);
    if (loop->queue)
        grpc_completion_queue_destroy(loop->queue);
    memset(loop, 0, sizeof(*loop));
}
