/* How long a sequence may be and how many KV blocks there are: from the flags, the model's shape and the
 * memory of the machine. Pure arithmetic, so that every answer to "why does it not fit" can be tested. */
#ifndef PD_SIZING_H
#define PD_SIZING_H

#include "worker/model/model.h"
#include "worker/options.h"

struct pd_sizing {
    int ranks;
    struct pd_kv_pool pool; /* the shape of each rank's; no buffers yet */
    int max_model_len;
    uint64_t kv_bytes;    /* that the reservations of all ranks may take */
    bool len_was_reduced; /* below what the model was made for, because the pool holds no more */
};

/* `memory_available` in bytes, 0: not known. PD_INVALID says which flag to change and to what. */
int pd_sizing_decide(const struct pd_options *options, const struct pd_model_config *config,
                     uint64_t memory_available, struct pd_sizing *sizing, struct pd_error *error);

/* Bytes that this process may still take: of the machine, or of its control group where that is less. */
uint64_t pd_memory_available(void);

/* "1.5 GiB"; `text` has room for 32 bytes. */
const char *pd_size_text(uint64_t bytes, char text[32]);

#endif
