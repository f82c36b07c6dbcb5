/* Stands in for the kvx room: the functions that an engine calls, over a wire inside this process.
 *
 * It moves real KV bytes between real pools, on the caller's thread, and every stage of a hand-off
 * can be held open, so that a test can cancel, kill or wait exactly there. And it watches: a block
 * that is taken for something new while a ticket or a fetch still covers it is a broken fence. */
#ifndef PD_TEST_DOUBLE_KVX_H
#define PD_TEST_DOUBLE_KVX_H

#include "worker/kvx/kvx.h"

struct double_net;

enum double_hold {
    DOUBLE_HOLD_CLAIM = 1, /* claims are not answered */
    DOUBLE_HOLD_DATA = 2,  /* nothing is read */
    DOUBLE_HOLD_END = 4,   /* neither `released` nor `closed` is said */
};

struct double_net *double_net_create(void);
void double_net_destroy(struct double_net *net);

/* What is held from now on; what was held before and is not now goes on. */
void double_net_hold(struct double_net *net, int holds);

/* Counted since creation. */
struct double_counts {
    int offers, released, fetches, completed, closed;
    int refused;       /* claims of a ticket that is gone */
    int broken_fences; /* see above */
    size_t blocks_read, blocks_skipped;
    int ready_calls;
    size_t recycled;            /* blocks */
    int most_ready_after_claim; /* chunks that one claimed ticket was told of */
};
struct double_counts double_net_counts(struct double_net *net);

/* Waits until `counts` says yes; fails the test after 10 s. */
void double_net_wait(struct double_net *net, bool (*yes)(const struct double_counts *counts));

/* One worker's end. `pool` and its buffer outlive it. */
struct pd_kvx *double_kvx_create(struct double_net *net, const char *instance,
                                 const struct pd_kv_pool *pool,
                                 const struct pd_kvx_callbacks *callbacks);
/* Every offer and fetch of it must be over. */
void double_kvx_destroy(struct pd_kvx *kvx);

/* The link between the workers breaks: every fetch fails, every claimed ticket is released. */
void double_net_cut(struct double_net *net);

/* From now on claims get another prompt than was offered: a source that lies; or not any more. */
void double_net_lie(struct double_net *net, bool lies);

/* Changes what sources say of the first token from now on; NULL: nothing. */
void double_net_change(struct double_net *net, void (*change)(struct pd_kvx_first *first));

#endif
