/* The operator interface: everything that the worker knows about a device.
 *
 * How it thinks
 *
 *   record once                      every step
 *   -----------                      ----------
 *   pd_graph_begin                   step = pd_step_acquire(device)      a free descriptor of two
 *     pd_op_embed ...                fill step->...                      tokens, tables, sampling
 *     pd_op_matmul ...               pd_graph_launch(graph, step)        returns at once
 *     pd_op_sample                   ... launch n+1 before n is read ...
 *   pd_graph_end                     pd_step_wait(device, n, timeout)    then read its tokens
 *
 * A device executes launches strictly in order, on its own threads. Everything that changes from
 * step to step lives in the step descriptor; everything else (buffers, shapes, weights) is fixed
 * when the graph is recorded, so a graph can be replayed without looking at the host again (a CUDA
 * graph; on the CPU a list of operators). Nothing may allocate or wait while a graph is recorded or
 * replayed.
 *
 * Sampled tokens stay on the device: a descriptor may name "the token that slot s sampled last"
 * instead of a token id, so step n+1 can be launched before anybody has read step n's tokens.
 *
 * Buffers are opaque. Only PD_BUFFER_PINNED memory may be touched by the host; KV memory leaves the
 * device through pd_buffer_export() and is then read by address or descriptor, under the rules of
 * the hand-off.
 *
 * Numbers. A token's results depend only on its own sequence: not on the batch, the chunking, the
 * cache or the number of threads. Each output is reduced in one fixed order.
 * pd_device_info.numerics names everything that can change a bit.
 *
 * Errors. Functions return 0 or a negative PD_KERNEL_ code; pd_device_error() says which call,
 * which shapes, which device. After PD_KERNEL_LOST the device is gone for this process.
 *
 * Ranks. A device may be a group of equal devices that compute one model together (tensor
 * parallelism): steps, launches, waits, histories and progress are the group's; buffers, weights and
 * recorded graphs are each rank's. A device that is no group is its own only rank, so that one
 * piece of code serves both. What rank r of n has of `count` heads, rows or columns are those from
 * pd_share_first(count, r, n) to below pd_share_first(count, r + 1, n).
 *
 * Threads. One thread (the engine's) makes all calls, except pd_device_progress, pd_device_delay_ns and
 * the memory of an export, which any thread may read. */
#ifndef PD_KERNELS_H
#define PD_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pd_kernel_status {
    PD_KERNEL_OK = 0,
    PD_KERNEL_INVALID = -1, /* arguments: a bug of the caller, or a shape that no kernel takes */
    PD_KERNEL_NO_MEMORY = -2,
    PD_KERNEL_UNSUPPORTED = -3,
    PD_KERNEL_TIMEOUT = -4,
    PD_KERNEL_BUSY = -5, /* both descriptors are in flight */
    PD_KERNEL_LOST = -6, /* sticky device error */
    PD_KERNEL_CUT = -7,  /* the step was left in the middle, as pd_step_cut asked */
};

/* ---- device ---------------------------------------------------------------------------------- */

struct pd_device;

enum { PD_RANKS_MAX = 8, PD_SLICES_MAX = 8 };

/* What is multiplied with what. Gate and up of different formats are multiplied in f32 with each. */
enum pd_precision {
    PD_PRECISION_F32, /* x as it is, with what the weights stand for */
    /* Quantised weights with x of which each 32 columns are rounded to bytes with a scale of their own, and
     * what that leaves once more where it is not little, see pd_quantize_again; plain numbers as F32. */
    PD_PRECISION_INT8,
    /* Quantised weights with x of which each 32 columns are rounded to 12 bits with a scale of their own, see
     * pd_quantize32; plain numbers as F32. */
    PD_PRECISION_INT12,
    PD_PRECISION_BF16, /* all weights but plain f32 and x, both rounded to bf16; sums in f32 */
    PD_PRECISION_AUTO, /* cpu: INT12 where there are tiles for it, else INT8; reference: F32 */
};

struct pd_device_options {
    const char *kind; /* "cpu", "reference" (plain loops, for tests), "cuda" */
    int threads;      /* cpu: size of the team, of a group: of all ranks' teams together; 0: one per
                       * core this process may use */
    const char *isa;  /* cpu: "auto", "baseline", "avx2", "avx512", "vnni", "bf16", "amx": highest
                      * allowed */
    enum pd_precision precision; /* cpu, reference */
    int ordinal;                 /* cuda: which GPU; of a group: rank 0's, the others follow */
    bool one_gpu;                /* cuda: all ranks of a group on that one, slowly: to test them */
    int ranks;                   /* devices of the group; 0 or 1: no group; at most PD_RANKS_MAX */
    bool deterministic; /* cuda: a row's bits do not depend on what else is in its step, nor on
                                  * how many ranks there are (ranks_are_exact) */
    bool eager;         /* cuda: launch every operator by itself, do not replay recorded steps */
    const char *cuda_enable; /* cuda: paths that no GPU has shown, on all the same: names separated
                              * by commas, or "all"; NULL: none. kernels/cuda/README.md has them */
    const char *cuda_libraries; /* cuda: folder that NVIDIA's libraries are looked for in first
                                 * (kernels/cuda/library.h); NULL or "": none */
    const char *cuda_cache;     /* cuda: folder where what was measured once is kept
                             * (kernels/cuda/algorithms.h); NULL or "": nowhere */
    int max_tokens;             /* most tokens in one step */
    int max_seqs;               /* most sequences in one step; also the number of slots */
    int max_model_len;          /* longest sequence, tokens */
    int block_size;             /* tokens in a KV block: 8..32 */
    int vocabulary;
};

struct pd_device_info {
    char name[160];      /* for people */
    char libraries[768]; /* for people: those opened at run time, and what is missing; "": none */
    char numerics[96];   /* equal strings compute equal bits */
    char packing[32];    /* what weights are in the places they are given; "": none can be given */
    int threads;
    /* A group computes the bits of one device wherever the slices of pd_op_matmul_reduce divide
     * among its ranks. */
    bool ranks_are_exact;
    uint64_t memory_total, memory_free; /* bytes, as the device sees them now; of rank 0 */
};

/* Opens a device. On failure *device is NULL and `error` (of `size` bytes) has one line for people.
 */
int pd_device_open(const struct pd_device_options *options, struct pd_device **device, char *error,
                   size_t size);

/* Bytes of a device's own memory, all and free now, before it is opened; of a group, of the rank that has
 * the least. A kind that lives in the host's memory says 0. On failure `error` has one line. */
int pd_device_memory(const struct pd_device_options *options, uint64_t *total, uint64_t *available,
                     char *error, size_t size);

/* Waits for what was launched, then frees everything that the device still owns. */
void pd_device_close(struct pd_device *device);

void pd_device_describe(const struct pd_device *device, struct pd_device_info *info);

/* What the last failing call on this device was; "" if none failed. */
const char *pd_device_error(const struct pd_device *device);

/* How many ranks compute a step, 1 for a device that is no group; and rank r of them, owned by the
 * group: where buffers, weights and graphs are made. A rank that fails loses the whole group. */
int pd_device_ranks(const struct pd_device *device);
struct pd_device *pd_device_rank(struct pd_device *device, int rank);

static inline int pd_share_first(int count, int rank, int ranks)
{
    return (int)((int64_t)count * rank / ranks);
}

/* ---- buffers --------------------------------------------------------------------------------- */

enum pd_dtype {
    PD_F32,
    PD_F16,
    PD_BF16,
    /* GGUF block formats, as they lie in the file */
    PD_Q4_0,
    PD_Q4_1,
    PD_Q5_0,
    PD_Q8_0,
    PD_Q4_K,
    PD_Q6_K,
    PD_DTYPE_COUNT
};

/* Values per block and bytes per block of a dtype (1 and the element size for plain types). */
int pd_dtype_block(enum pd_dtype type);
int pd_dtype_bytes(enum pd_dtype type);
const char *pd_dtype_name(enum pd_dtype type); /* "Q4_1" */

/* Turns `count` values (a multiple of the block) into float, exactly as ggml's dequantisers do. */
int pd_dequantize(enum pd_dtype type, const void *data, float *out, size_t count);

enum pd_buffer_class {
    PD_BUFFER_ACTIVATION,
    PD_BUFFER_KV,     /* one reservation, exportable; zeroed */
    PD_BUFFER_PINNED, /* host-readable and host-writable */
};

struct pd_buffer;

/* The address never changes in a buffer's life. Freed with the device or before. */
int pd_buffer_create(struct pd_device *device, enum pd_buffer_class kind, size_t bytes,
                     struct pd_buffer **buffer);
void pd_buffer_destroy(struct pd_buffer *buffer);

/* PD_BUFFER_PINNED only; NULL for every other class. */
void *pd_buffer_host(struct pd_buffer *buffer);

enum pd_export_kind {
    PD_EXPORT_MEMFD,  /* memory of the host */
    PD_EXPORT_DEVICE, /* memory of the device, which the host cannot map */
};

/* Bytes of a KV buffer, and where they are in the other memory: the offsets count from the start of each. */
struct pd_export_range {
    uint64_t offset, other;
    size_t bytes;
};

/* How a KV buffer is reached from outside of its device. Of memory of a device, whoever wants it takes
 * the first way that works: the descriptor, the address, copies. */
struct pd_export {
    enum pd_export_kind kind;
    int fd; /* the caller's copy: close it. MEMFD: its size is sealed; map it shared. DEVICE: a dmabuf
             * of the buffer, for ibv_reg_dmabuf_mr, or -1 */
    size_t
        size; /* bytes, from offset 0 of the fd: what was asked for, or rounded up to huge pages */

    /* DEVICE only. */
    uint64_t
        address; /* of byte 0, for a driver that registers such addresses (nvidia-peermem); or 0 */
    void *copy_context;
    /* Copies ranges out to the memory at `host`, or in from there (`other` counts from it); done when it
     * returns, and not in the order of launches: the caller knows that the bytes are final, or nobody's, and
     * that ranges do not overlap. Short ones are moved many at a time: give all that there are. Any one
     * thread at a time. False: the device is lost. */
    bool (*copy)(void *copy_context, void *host, const struct pd_export_range *ranges, size_t count,
                 bool out);

    /* Between processes of one host, without the host's memory: one lends the other the handle of its
     * buffer. -1: this device has none to lend. The buffer's own: not to be closed. */
    int handle;
    /* Maps all `bytes` of another process's buffer by its handle, which stays the caller's; NULL: not on
     * this device, and nothing is lost. Read through `read` until `forget`. */
    void *(*import)(void *copy_context, int handle, size_t bytes);
    void (*forget)(void *copy_context, void *imported, size_t bytes);
    /* Begins to copy from there into this buffer, under the rules of `copy`; `settle` waits for all that
     * has begun. False: the device is lost. */
    bool (*read)(void *copy_context, const void *imported, const struct pd_export_range *ranges,
                 size_t count);
    bool (*settle)(void *copy_context);
};

/* PD_BUFFER_KV only. */
int pd_buffer_export(struct pd_buffer *buffer, struct pd_export *out);

/* An activation: `rows` is the capacity; a step uses the first step->tokens (or samples) of it.
 * Row-major, `cols` values of f32 per row on the CPU; a device may keep another type inside. */
struct pd_tensor {
    struct pd_buffer *buffer;
    size_t offset; /* bytes */
    int rows, cols;
};

int pd_tensor_create(struct pd_device *device, int rows, int cols, struct pd_tensor *tensor);

/* ---- weights --------------------------------------------------------------------------------- */

struct pd_weight;

/* Bytes of `values` values (a multiple of the block) on a device that keeps integers and scales apart:
 * plain types as they are; 4-bit formats 4 bits, others 8, and 32 bits of scales for every 32. */
size_t pd_dtype_apart_bytes(enum pd_dtype type, size_t values);

/* Rows as they lie in a file: `rows` x `cols` values of `type`, row-major, no padding. */
struct pd_weight_source {
    const void *data;
    enum pd_dtype type;
    int rows;
};

enum pd_weight_layout {
    PD_WEIGHT_ROWS,    /* sources one below the other (fused QKV) */
    PD_WEIGHT_GATE_UP, /* two sources of equal shape, for PD_EPILOGUE_SWIGLU */
};

/* Copies (and may repack) the sources; they may go away afterwards. Sources of one weight may
 * differ in type. `embedding` says that pd_op_embed will read rows of it too (tied output). Safe to
 * call from several threads at once. */
int pd_weight_create(struct pd_device *device, enum pd_weight_layout layout, int cols,
                     const struct pd_weight_source *sources, int count, bool embedding,
                     struct pd_weight **weight);

/* Memory for one weight that the caller has, and keeps until the weight is gone: 64-byte aligned, and
 * readable for 64 bytes past its end. */
struct pd_weight_place {
    void *memory;
    bool
        filled; /* it has been made of equal sources already, with equal info.packing: it is only read */
};

/* How many bytes such a weight takes where it is given a place; 0: no place can be given to it. */
size_t pd_weight_bytes(struct pd_device *device, enum pd_weight_layout layout, int cols,
                       const struct pd_weight_source *sources, int count);
int pd_weight_create_in(struct pd_device *device, enum pd_weight_layout layout, int cols,
                        const struct pd_weight_source *sources, int count, bool embedding,
                        struct pd_weight_place place, struct pd_weight **weight);
void pd_weight_destroy(struct pd_weight *weight);

/* ---- KV pool --------------------------------------------------------------------------------- */

/* [layer][kv_head][block][K|V][token][dim], one buffer of class KV. The layout is part of the
 * hand-off: kvx computes addresses from it. */
struct pd_kv_pool {
    struct pd_buffer *buffer;
    int layers, kv_heads, block_size, head_dim;
    int64_t blocks;
    enum pd_dtype type; /* PD_F32, PD_F16, PD_BF16 */
};

/* Bytes of a whole pool of this shape (buffer may be NULL). */
size_t pd_kv_pool_bytes(const struct pd_kv_pool *pool);

/* ---- the step descriptor --------------------------------------------------------------------- */

/* token[i] values below zero: the token that slot (-1 - token[i]) sampled last. */
#define PD_TOKEN_OF_SLOT(slot) (-1 - (int32_t)(slot))

/* How one row of logits becomes a token. Order: bias, penalties, temperature, top-k, top-p, min-p,
 * typical-p, draw. */
struct pd_sample_params {
    float temperature;         /* 0: greedy, lowest id wins a tie */
    float top_p;               /* 1: off */
    float min_p;               /* 0: off */
    float typical_p;           /* 1: off */
    int32_t top_k;             /* 0: off */
    float presence, frequency; /* over generated tokens */
    float repetition;          /* over prompt and generated tokens; 1: off */
    uint64_t seed;
    uint32_t draw;    /* index of the answer's token: the counter of the draw */
    int32_t history;  /* tokens of the slot's history that count, this step's included */
    int32_t prompt;   /* of these, the first `prompt` are the prompt */
    int32_t logprobs; /* 0: none; else 1 + number of alternatives, at most 21 */
    int32_t bias_first, bias_count;     /* range of step->bias_* */
    int32_t banned_first, banned_count; /* range of step->banned: never drawn (min_tokens, EOS) */
};

/* Filled by the host between acquire and launch. Arrays have the capacities given at open. */
struct pd_step {
    uint64_t number; /* set by acquire: 1, 2, 3, ... */

    int32_t tokens;    /* rows 0..tokens-1 are computed */
    int32_t *token;    /* [tokens] id, or PD_TOKEN_OF_SLOT */
    int32_t *position; /* [tokens] */
    int32_t *sequence; /* [tokens] index below `sequences` */
    int32_t *kv_slot;  /* [tokens] block * block_size + offset: where K and V are stored */

    int32_t sequences;  /* tokens of one sequence are adjacent and in order of position */
    int32_t *slot;      /* [sequences] below max_seqs, distinct: names history and last token */
    int32_t *first;     /* [sequences] its first row */
    int32_t *length;    /* [sequences] its rows */
    int32_t *context;   /* [sequences] tokens in the KV cache when this step is done */
    int32_t *blocks;    /* [sequences][max_blocks]: its block table */
    int32_t max_blocks; /* stride of `blocks`, fixed at open */

    int32_t samples;                 /* rows of logits */
    int32_t *sample_row;             /* [samples] row whose logits are wanted */
    int32_t *sample_slot;            /* [samples] slot that receives the token */
    struct pd_sample_params *sample; /* [samples] */

    int32_t *bias_token; /* pool of logit biases, capacity PD_STEP_BIAS */
    float *bias_value;
    int32_t *banned; /* pool of banned ids, capacity PD_STEP_BANNED */

    /* Written by the device, readable after pd_step_wait, until the next acquire returns this
     * descriptor again. */
    int32_t *sampled;       /* [samples] */
    float *sampled_logprob; /* [samples], where asked */
    int32_t *top_token;     /* [samples][PD_TOP_MAX], descending, where asked */
    float *top_logprob;
    int32_t *
        sample_fault; /* [samples] 0, or 1: a NaN or no finite logit; the token is not to be used */
};

enum { PD_TOP_MAX = 20, PD_STEP_BIAS = 4096, PD_STEP_BANNED = 4096 };

/* A free descriptor, counts zeroed, or PD_KERNEL_BUSY if both are in flight. Wait for the older one
 * first. */
int pd_step_acquire(struct pd_device *device, struct pd_step **step);

/* Writes tokens[0..count) into slot's history from `position` on, in launch order (before the next
 * launch). For tokens that the device does not compute itself: a cached or received prefix. Copies
 * the tokens. PD_KERNEL_BUSY if more writes wait than a full batch of sequences can need. */
int pd_history_write(struct pd_device *device, int slot, int position, const int32_t *tokens,
                     int count);

/* ---- graphs ---------------------------------------------------------------------------------- */

struct pd_graph;

int pd_graph_begin(struct pd_device *device, struct pd_graph **graph);
int pd_graph_end(struct pd_graph *graph); /* the first error of the operators recorded in it */
void pd_graph_destroy(struct pd_graph *graph);

/* The step of a group: `graphs` has one that was ended on each rank, all with the same operators, and
 * stays with the ranks. A device that is no group has nothing to join: its own graph is the result. */
int pd_graph_join(struct pd_device *device, struct pd_graph *const *graphs,
                  struct pd_graph **graph);

/* Enqueues one step and returns. The descriptor belongs to the device until pd_step_wait. */
int pd_graph_launch(struct pd_graph *graph, struct pd_step *step);

/* Waits until step `number` has run. PD_KERNEL_TIMEOUT after timeout_ms (< 0: no limit): then
 * the step still runs. After any other error but PD_KERNEL_LOST it has ended without results, and its
 * descriptor is free as after success. */
int pd_step_wait(struct pd_device *device, uint64_t number, int timeout_ms);

/* Asks that step `number`, launched and with none behind it, be left at its next operator (with many rows, its next
 * run of operators), since the device is wanted for something else. It may come too late; pd_step_wait says whether it did (PD_KERNEL_OK) or not (PD_KERNEL_CUT). Of a
 * step that was cut nothing counts: its rows of the KV pool hold anything, no token was sampled, and the same rows may be
 * launched again. False: the device does not do that. */
bool pd_step_cut(struct pd_device *device, uint64_t number);

/* Whether pd_step_cut does anything. */
bool pd_device_cuts(const struct pd_device *device);

/* The device's progress: step number << 16 | published layers, written in queue order by
 * pd_op_publish, read with acquire semantics. Of a group: the least of its ranks'. Any thread. */
uint64_t pd_device_progress(const struct pd_device *device);

/* Nanoseconds in which a thread that computes steps could have gone on with one while another thread had
 * its core: the sum over all such threads, since the device was opened; the share of a step is in it when
 * pd_step_wait has returned. 0 for devices with cores of their own, and where the system does not tell.
 * Any thread. */
uint64_t pd_device_delay_ns(const struct pd_device *device);

/* Before the first launch that reads KV which somebody else wrote into the exported memory: makes
 * those bytes visible to later launches. */
int pd_fence_remote_writes(struct pd_device *device);

/* ---- operators: recorded between begin and end --------------------------------------------------
 *
 * T = step->tokens, S = step->samples. Inputs and outputs may not overlap unless said. Shapes are
 * checked when recorded; an error makes pd_graph_end fail and pd_device_error name the operator. */

/* out[t] = weight row of token t (scaled by 1); writes token into its slot's history at
 * position[t]. out [T, cols]. Of a group, each rank's weight has its share of the vocabulary's rows,
 * and every rank gets all of out. */
int pd_op_embed(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor out);

/* out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. weight: 1 row of cols. x, out [T, cols] (or
 * [S, cols] for tensors made by gather; `rows_are_samples` says so). */
int pd_op_rmsnorm(struct pd_graph *graph, struct pd_tensor x, const struct pd_weight *weight,
                  float eps, bool rows_are_samples, struct pd_tensor out);

enum pd_epilogue {
    PD_EPILOGUE_NONE,
    PD_EPILOGUE_ADD,    /* out += W x + b: the residual; out is input and output */
    PD_EPILOGUE_SWIGLU, /* PD_WEIGHT_GATE_UP only: out = silu(gate x) * (up x), rows/2 columns */
};

/* out[t][r] = sum_k W[r][k] x[t][k] (+ bias[r]). W has at least two rows. bias may be NULL; else 1
 * row of W.rows values, or W.rows rows of 1 (a fused QKV's biases as three sources). Gate's come
 * before up's. */
int pd_op_matmul(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor x,
                 const struct pd_weight *bias, enum pd_epilogue epilogue, bool rows_are_samples,
                 struct pd_tensor out);

/* The row-parallel product: out[t][r] += sum_k W[r][k] x[t][k]. Of a group, each rank has its share of
 * the columns, and out, on every rank, gets the sum of all.
 *
 *     columns   |   0   |   1   |   2   |   3   |      slices = 4, a power of two
 *     sums           \_______/       \_______/         each slice from zero, then in a tree
 *                        \_______________/
 *
 * `slices` is what the columns of all ranks together are cut into: a property of the model, so that
 * ranks that hold whole slices, a power of two of them, compute the very sums of a device that holds all.
 * More than one need 32 columns or a multiple each; they are 1 (and the bits the group's own) where they do
 * not divide among the ranks. */
int pd_op_matmul_reduce(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor x,
                        int slices, struct pd_tensor out);

/* The column-parallel product whose result all need: out[t][r] = sum_k W[r][k] x[t][k]. Of a group, each
 * rank has its share of the rows of W, and every rank gets all of out. */
int pd_op_matmul_gather(struct pd_graph *graph, const struct pd_weight *weight, struct pd_tensor x,
                        bool rows_are_samples, struct pd_tensor out);

enum pd_rope_style {
    PD_ROPE_HALF,        /* pairs (i, i + dim/2): safetensors, GGUF qwen */
    PD_ROPE_INTERLEAVED, /* pairs (2i, 2i + 1): GGUF llama */
};

struct pd_attention_shape {
    int heads, kv_heads, head_dim;
    int rope_dim; /* rotated dimensions of a head, normally head_dim */
    enum pd_rope_style rope_style;
    const float
        *inverse_frequency; /* [rope_dim / 2], angles per position, scaling applied; copied */
    float attention_factor; /* multiplies cos and sin (YaRN); 1 otherwise */
    float scale;            /* of q.k, normally 1 / sqrt(head_dim) */
    int window;             /* sliding window in tokens, 0: none */
    float norm_eps;
    const struct pd_weight *q_norm, *k_norm; /* Qwen3: 1 row of head_dim each, or NULL */
};

/* qkv [T, (heads + 2 kv_heads) * head_dim] in the order Q, K, V: norms and rotates Q in place, K,
 * and stores K and V of layer `layer` at kv_slot[t]. */
int pd_op_rope_store(struct pd_graph *graph, struct pd_tensor qkv,
                     const struct pd_attention_shape *shape, const struct pd_kv_pool *pool,
                     int layer);

/* Causal attention of Q (the first heads*head_dim columns of qkv) over the paged cache.
 * out [T, heads * head_dim] */
int pd_op_attention(struct pd_graph *graph, struct pd_tensor qkv,
                    const struct pd_attention_shape *shape, const struct pd_kv_pool *pool,
                    int layer, struct pd_tensor out);

/* Sets the progress word to (step, layers): KV of the first `layers` layers of this step is in the
 * pool. */
int pd_op_publish(struct pd_graph *graph, int layers);

/* out[s] = x[sample_row[s]]. x [T, cols], out [S, cols] */
int pd_op_gather(struct pd_graph *graph, struct pd_tensor x, struct pd_tensor out);

/* One token per row of logits [S, vocabulary], see pd_sample_params; fills step->sampled and the
 * slots' last tokens. Random numbers: Philox4x32-10, key = seed, counter = (draw, 0, 0, 0). Of a group, every
 * rank draws the same token from the same logits, and no rank waits to be told. */
int pd_op_sample(struct pd_graph *graph, struct pd_tensor logits);

/* Copies f32 rows to pinned memory: for tests and for logits that a caller asked for. */
int pd_op_read(struct pd_graph *graph, struct pd_tensor x, bool rows_are_samples,
               struct pd_buffer *pinned);

#endif
