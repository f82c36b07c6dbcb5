/* The thread that enqueues one rank's steps: as many GPUs are kept busy as there are ranks, and a rank
 * may wait inside a call for the others (as the host's stand-in does, whose launches have run when
 * they return).
 *
 *     engine's thread ── launch n ──▶ [ queue ] ──▶ pilot: launches on its GPU
 *                     ── call     ──▶                      and everything else in the stream's order
 *
 * One thread gives orders. */
#ifndef PD_CUDA_PILOT_H
#define PD_CUDA_PILOT_H

#include <stdbool.h>
#include <stdint.h>

struct pd_cuda_pilot;
struct pd_graph;
struct pd_step;

/* What a pilot is for. */
struct pd_cuda_piloted {
    void *context;
    void (*begin)(void *context); /* on the new thread, before everything else */
    void (*launch)(void *context, struct pd_graph *graph, struct pd_step *step);
};

/* NULL: no thread, or no memory. */
struct pd_cuda_pilot *pd_cuda_pilot_open(const struct pd_cuda_piloted *piloted);

/* Ends when everything ordered has been done; NULL is nothing. */
void pd_cuda_pilot_close(struct pd_cuda_pilot *pilot);

/* Returns at once. At most two may be ordered that pd_cuda_pilot_wait has not seen. */
void pd_cuda_pilot_launch(struct pd_cuda_pilot *pilot, struct pd_graph *graph,
                          struct pd_step *step);

/* Until step `number` has been enqueued, or failed to be; false: not within timeout_ms (-1: no
 * limit). */
bool pd_cuda_pilot_wait(struct pd_cuda_pilot *pilot, uint64_t number, int timeout_ms);

/* Has work(argument) done, behind what was ordered before, and waits for its end. */
void pd_cuda_pilot_call(struct pd_cuda_pilot *pilot, void (*work)(void *argument), void *argument);

#endif
