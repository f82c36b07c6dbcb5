/* A small transformer on a rig, for tests of whole steps: embedding, layers of norm, QKV, rotary
 * positions, attention, residuals and SwiGLU, and the last hidden state copied out. Its answers are
 * collected by (sequence, position), so that the same tokens may be fed in any division into steps.
 */
#ifndef PD_KERNEL_MODEL_H
#define PD_KERNEL_MODEL_H

#include "t/unit/kernel_rig.h"

enum { PD_MODEL_HIDDEN = 96, PD_MODEL_LAYERS = 2 };

struct pd_small_shape {
    int heads, kv_heads, head_dim, rope_dim, window, block_size;
    enum pd_rope_style style;
    enum pd_dtype kv_type, weight_type;
    bool qk_norm;
    enum pd_precision precision;
};

struct pd_small_model {
    struct pd_rig rig;
    struct pd_small_shape shape;
    struct pd_kv_pool pool;
    struct pd_graph *graph;
    struct pd_buffer *hidden;
};

void pd_small_open(struct pd_small_model *model, const struct pd_small_shape *shape,
                   const char *kind, const char *isa, int threads);
/* The same on a CUDA device, with a token for each sample (from a matrix of logits). */
void pd_small_open_answers(struct pd_small_model *model, const struct pd_small_shape *shape,
                           bool eager);
/* The same with these of the paths that only a GPU can show (pd_device_options.cuda_enable). */
void pd_small_open_enabled(struct pd_small_model *model, const struct pd_small_shape *shape,
                           const char *enable, bool eager);
void pd_small_close(struct pd_small_model *model);

/* Tokens `from` .. `from + count - 1` of sequence s, in slot s and blocks of its own, as part of a
 * step. Token i of sequence s is a fixed function of both. */
struct pd_small_part {
    int sequence, from, count;
};

/* Runs one step of these parts; the hidden state of each token goes to out[sequence][position],
 * rows of PD_MODEL_HIDDEN, `positions` rows per sequence. */
void pd_small_step(struct pd_small_model *model, const struct pd_small_part *parts, int count,
                   float *out, int positions);

/* Launches one that is to be left as soon as the keys of its first layer are in the pool. Returns the layers whose
 * keys were when it was; PD_MODEL_LAYERS + 1: it was too late. */
int pd_small_leave(struct pd_small_model *model, const struct pd_small_part *parts, int count);

#endif
