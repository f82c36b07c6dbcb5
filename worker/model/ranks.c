#include "worker/model/ranks.h"

enum { SLICE_UNIT = 32 }; /* columns: a slice is a multiple of it */

static bool kv_heads_divide(const struct pd_model_config *config, int ranks)
{
    return config->kv_heads % ranks == 0 || ranks % config->kv_heads == 0;
}

int pd_model_ranks_check(const struct pd_model_config *config, int ranks, struct pd_error *error)
{
    if (ranks < 1 || ranks > PD_RANKS_MAX)
        return pd_fail(error, PD_UNSUPPORTED, "%d ranks; it can be 1 to %d", ranks, PD_RANKS_MAX);
    if (config->heads % ranks != 0)
        return pd_fail(error, PD_UNSUPPORTED, "the model's %d heads do not divide among %d ranks",
                       config->heads, ranks);
    if (!kv_heads_divide(config, ranks))
        return pd_fail(
            error, PD_UNSUPPORTED,
            "the model's %d KV heads neither divide among %d ranks nor is one of them for "
            "each of equally many",
            config->kv_heads, ranks);
    if (config->feed_forward % ranks != 0 || config->vocabulary < 2 * ranks)
        return pd_fail(error, PD_UNSUPPORTED,
                       "the model's feed forward of %d and vocabulary of %d do not divide among %d "
                       "ranks",
                       config->feed_forward, config->vocabulary, ranks);
    return PD_OK;
}

struct pd_model_share pd_model_share_of(const struct pd_model_config *config, int rank, int ranks)
{
    struct pd_model_share share = {
        .rank = rank,
        .ranks = ranks,
        .first_head = config->heads / ranks * rank,
        .heads = config->heads / ranks,
        .first_kv_head = pd_share_first(config->kv_heads, rank, ranks),
        .kv_heads = config->kv_heads < ranks ? 1 : config->kv_heads / ranks,
        .first_inner = config->feed_forward / ranks * rank,
        .inner = config->feed_forward / ranks,
        .first_token = pd_share_first(config->vocabulary, rank, ranks),
    };

    share.tokens = pd_share_first(config->vocabulary, rank + 1, ranks) - share.first_token;
    return share;
}

int pd_model_slices(const struct pd_model_config *config)
{
    int slices = PD_SLICES_MAX;

    while (slices > 1 && (config->heads % slices != 0 || !kv_heads_divide(config, slices) ||
                          config->heads * config->head_dim % (SLICE_UNIT * slices) != 0 ||
                          config->feed_forward % (SLICE_UNIT * slices) != 0))
        slices /= 2;
    return slices;
}
