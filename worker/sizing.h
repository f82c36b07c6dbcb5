/* How long a sequence may be and how many KV blocks there are: from the flags, the model's shape and the
 * memory of the machine. Deciding is pure arithmetic, so that every answer to "why does it not fit" can be tested. */
#ifndef PD_SIZING_H
#define PD_SIZING_H

#include "worker/model/model.h"
#include "worker/options.h"

struct pd_sizing {
    int ranks;
    struct pd_kv_pool pool; /* the shape of each rank's; no buffers yet */
    int max_model_len;
    uint64_t kv_bytes;    /* that the reservations of all ranks may take */
    uint64_t scratch;     /* pd_sizing_scratch */
    bool len_was_reduced; /* below what the model was made for, because the pool holds no more */
};

/* The memory that there is, in bytes; 0: not known. */
struct pd_sizing_room {
    uint64_t host;                /* that this process may still take */
    uint64_t gpu_total, gpu_free; /* --device cuda: of the GPU with the least free */
    uint64_t gpu_weights;         /* and what the largest rank's weights will take there */
};

/* The ranks that --tensor-parallel-size asks for; the longest sequence that --max-model-len does, or that the
 * model was made for. */
int pd_sizing_ranks(const struct pd_options *options);
int64_t pd_sizing_longest(const struct pd_options *options, const struct pd_model_config *config);

/* Looks at the machine, and with --device cuda at its GPUs. */
int pd_sizing_measure(const struct pd_options *options, const struct pd_model_files *files,
                      struct pd_sizing_room *room, struct pd_error *error);

/* PD_INVALID says which flag to change and to what. */
int pd_sizing_decide(const struct pd_options *options, const struct pd_model_config *config,
                     const struct pd_sizing_room *room, struct pd_sizing *sizing,
                     struct pd_error *error);

/* What a rank's GPU holds beside weights and KV while steps run, from above; and a token's K and V on one
 * rank. `ranks` is one that the model takes. */
uint64_t pd_sizing_scratch(const struct pd_options *options, const struct pd_model_config *config,
                           int ranks);
uint64_t pd_sizing_token(const struct pd_options *options, const struct pd_model_config *config,
                         int ranks);

/* Bytes that this process may still take: of the machine, or of its control group where that is less. */
uint64_t pd_memory_available(void);

/* "1.5 GiB"; `text` has room for 32 bytes. */
const char *pd_size_text(uint64_t bytes, char text[32]);

#endif
