/* How a model is divided among the ranks of a group (tensor parallelism).
 *
 *     Q heads, rows of gate and up, columns of o and down, the vocabulary's rows    in equal shares
 *     KV heads    in equal shares, or, where there are fewer than ranks, one to each of several ranks
 *     norms       on every rank
 *
 * Sums over what is divided are made in slices (pd_op_matmul_reduce), as many as 8, 4 or 2 ranks
 * would need that the model can be divided among: a property of the model, so that any such number
 * of ranks computes the same bits. */
#ifndef PD_MODEL_RANKS_H
#define PD_MODEL_RANKS_H

#include "worker/model/model.h"

/* What one rank has. */
struct pd_model_share {
    int rank, ranks;
    int first_head, heads;
    int first_kv_head, kv_heads;
    int first_inner, inner;  /* of feed_forward */
    int first_token, tokens; /* of the vocabulary */
};

/* PD_UNSUPPORTED, with the number that does not divide: the model cannot be divided among so many. */
int pd_model_ranks_check(const struct pd_model_config *config, int ranks, struct pd_error *error);

/* Of one that it can be divided among. */
struct pd_model_share pd_model_share_of(const struct pd_model_config *config, int rank, int ranks);

/* A power of two, at most PD_SLICES_MAX; 1: not cut. */
int pd_model_slices(const struct pd_model_config *config);

#endif
