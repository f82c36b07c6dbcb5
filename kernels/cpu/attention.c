/* Who attends to what: the step's attention as items that threads take one by one.
 *
 *     prefill   a tile of 48 or 96 (token, head) rows, all keys          one item per KV head
 *     decode    one tile: all keys, or, where that would leave threads
 *               idle, one split of 128 keys per item, merged afterwards
 *
 * The division changes from step to step and may depend on the number of threads: it decides who
 * computes a result, never the result. It depends on lengths alone, so it is made once a step for
 * all layers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

struct item {
    int sequence, first, tokens; /* first: row of the step */
    int split, splits;           /* splits of keys that it does */
    int64_t state;               /* first row of its states, or -1: it writes the result itself */
};

/* A tile whose splits were shared out. */
struct shared {
    int first, tokens, splits;
    int64_t state;
};

/* All operators of one shape of heads have one division. */
struct pd_cpu_attention {
    struct pd_cpu_attention *next;
    int heads, kv_heads, head_dim;
    int query_rows; /* as pd_cpu has it */
    int item_count, item_limit, shared_count, shared_limit;
    struct item *items;
    struct shared *shares;
    float *states; /* [state_limit][state_floats], a row for each (token, head) of a split */
    int64_t state_count, state_limit;
    size_t state_bytes;
};

static const size_t STATE_BYTES = (size_t)32 << 20;

static int group_of(const struct pd_cpu_attention *attention)
{
    return attention->heads / attention->kv_heads;
}

static int tile_tokens(const struct pd_cpu_attention *attention)
{
    return pd_cpu_query_rows(attention->query_rows, group_of(attention)) / group_of(attention);
}

static int splits_of(int keys)
{
    return (keys + PD_CPU_SPLIT - 1) / PD_CPU_SPLIT;
}

static struct pd_cpu_attention *find(const struct pd_cpu_plan *plan,
                                     const struct pd_attention_shape *shape)
{
    struct pd_cpu_attention *attention = plan->attentions;

    while (attention != NULL &&
           (attention->heads != shape->heads || attention->kv_heads != shape->kv_heads ||
            attention->head_dim != shape->head_dim))
        attention = attention->next;
    return attention;
}

/* ---- preparing ------------------------------------------------------------------------------- */

static bool allocate(struct pd_cpu_attention *attention, const struct pd_device_options *options)
{
    size_t row = pd_cpu_state_floats(attention->head_dim) * sizeof(float);
    int64_t all = (int64_t)options->max_seqs * splits_of(options->max_model_len) * attention->heads;
    int64_t tiles = options->max_seqs + options->max_tokens / tile_tokens(attention);

    attention->state_limit =
        (int64_t)(STATE_BYTES / row) < all ? (int64_t)(STATE_BYTES / row) : all;
    attention->state_bytes = (size_t)attention->state_limit * row;
    attention->shared_limit = options->max_seqs;
    attention->item_limit = (int)(tiles + attention->state_limit / attention->heads + 1);
    attention->states = pd_host_allocate(attention->state_bytes);
    attention->items = calloc((size_t)attention->item_limit, sizeof(*attention->items));
    attention->shares = calloc((size_t)attention->shared_limit, sizeof(*attention->shares));
    return attention->states != NULL && attention->items != NULL && attention->shares != NULL;
}

int pd_cpu_attention_prepare(struct pd_graph *graph, struct pd_cpu_plan *plan)
{
    const struct pd_device_options *options = &graph->object.device->options;

    for (int i = 0; i < graph->count; i++) {
        const struct pd_attention_shape *shape = &graph->ops[i].shape;
        struct pd_cpu_attention *attention;

        if (graph->ops[i].kind != PD_OP_ATTENTION || find(plan, shape) != NULL)
            continue;
        attention = calloc(1, sizeof(*attention));
        if (attention == NULL)
            return PD_KERNEL_NO_MEMORY;
        attention->heads = shape->heads;
        attention->kv_heads = shape->kv_heads;
        attention->head_dim = shape->head_dim;
        attention->query_rows = ((const struct pd_cpu *)graph->object.device)->query_rows;
        attention->next = plan->attentions;
        plan->attentions = attention;
        if (!allocate(attention, options))
            return PD_KERNEL_NO_MEMORY;
    }
    return PD_KERNEL_OK;
}

void pd_cpu_attention_release(struct pd_cpu_plan *plan)
{
    while (plan->attentions != NULL) {
        struct pd_cpu_attention *attention = plan->attentions;

        plan->attentions = attention->next;
        pd_host_free(attention->states, attention->state_bytes);
        free(attention->items);
        free(attention->shares);
        free(attention);
    }
}

size_t pd_cpu_attention_scratch(const struct pd_cpu *cpu, const struct pd_op *op)
{
    return pd_cpu_query_scratch(cpu->query_rows, op->shape.heads / op->shape.kv_heads,
                                op->shape.head_dim);
}

/* ---- dividing a step ------------------------------------------------------------------------- */

static void add_item(struct pd_cpu_attention *attention, struct item item)
{
    attention->items[attention->item_count++] = item;
}

/* One item per split, if the states have room. */
static bool share(struct pd_cpu_attention *attention, const struct pd_step *step, int s)
{
    int splits = splits_of(step->context[s]);
    int64_t rows = (int64_t)step->length[s] * attention->heads;

    if (attention->state_limit - attention->state_count < rows * splits)
        return false;
    attention->shares[attention->shared_count++] =
        (struct shared){step->first[s], step->length[s], splits, attention->state_count};
    for (int i = 0; i < splits; i++) {
        add_item(attention,
                 (struct item){s, step->first[s], step->length[s], i, 1, attention->state_count});
        attention->state_count += rows;
    }
    return true;
}

/* The last tile sees the most keys and goes first. */
static void tile(struct pd_cpu_attention *attention, const struct pd_step *step, int s)
{
    int size = tile_tokens(attention), tiles = (step->length[s] + size - 1) / size;
    int before = step->context[s] - step->length[s];

    for (int i = tiles - 1; i >= 0; i--) {
        int end = (i + 1) * size < step->length[s] ? (i + 1) * size : step->length[s];

        add_item(attention, (struct item){s, step->first[s] + i * size, end - i * size, 0,
                                          splits_of(before + end), -1});
    }
}

static void divide(struct pd_cpu_attention *attention, const struct pd_step *step, int threads)
{
    int64_t total = 0;

    attention->item_count = attention->shared_count = 0;
    attention->state_count = 0;
    for (int s = 0; s < step->sequences; s++)
        total += (int64_t)step->length[s] * step->context[s];
    for (int s = 0; s < step->sequences; s++) {
        if (step->length[s] > tile_tokens(attention))
            tile(attention, step, s);
    }
    for (int s = 0; s < step->sequences; s++) {
        int64_t cost = (int64_t)step->length[s] * step->context[s];
        bool large = threads > 1 && cost * threads * 4 > total * attention->kv_heads;

        if (step->length[s] > tile_tokens(attention))
            continue;
        if (!large || step->context[s] <= PD_CPU_SPLIT || !share(attention, step, s))
            tile(attention, step, s);
    }
}

void pd_cpu_attention_begin(const struct pd_host_run *run)
{
    struct pd_cpu_plan *plan = pd_cpu_plan_of(run);

    for (struct pd_cpu_attention *a = plan->attentions; a != NULL; a = a->next)
        divide(a, run->step, run->host->threads);
    for (int i = 0; i < run->graph->count; i++)
        atomic_store_explicit(&plan->next[i], 0, memory_order_relaxed);
}

/* ---- the operator ---------------------------------------------------------------------------- */

/* Item number `taken`, counted by KV heads. */
static struct pd_cpu_query query_of(const struct pd_host_run *run, const struct pd_op *op,
                                    const struct pd_cpu_attention *attention, int taken)
{
    const struct pd_step *step = run->step;
    const struct item *item = &attention->items[taken / attention->kv_heads];
    int kv_head = taken % attention->kv_heads, window = op->shape.window;
    int head = kv_head * group_of(attention), at = head * attention->head_dim;
    struct pd_cpu_query query = {
        .shape = &op->shape,
        .pool = &op->pool,
        .layer = op->layer,
        .kv_head = kv_head,
        .blocks = step->blocks + (size_t)item->sequence * (size_t)step->max_blocks,
        .q = pd_host_floats(op->in) + (size_t)item->first * (size_t)op->in.cols + at,
        .q_stride = (size_t)op->in.cols,
        .tokens = item->tokens,
        .position = step->position[item->first],
        .first = item->split,
        .end = item->split + item->splits,
        .out = pd_host_floats(op->out) + (size_t)item->first * (size_t)op->out.cols + at,
        .out_stride = (size_t)op->out.cols,
    };

    if (item->state >= 0) {
        query.states = attention->states +
                       (size_t)(item->state + head) * pd_cpu_state_floats(attention->head_dim);
        query.state_rows = (size_t)attention->heads;
    } else if (window > 0 && query.position >= window) {
        /* Splits that end before the first row's window are seen by none. */
        query.first = (query.position - window + 1) / PD_CPU_SPLIT;
    }
    query.loaded = query.first * PD_CPU_SPLIT;
    return query;
}

static void merge_shared(const struct pd_host_run *run, const struct pd_op *op,
                         const struct pd_cpu_attention *attention, int thread, float *scratch)
{
    size_t state = pd_cpu_state_floats(attention->head_dim);

    for (int i = 0; i < attention->shared_count; i++) {
        const struct shared *shared = &attention->shares[i];
        int rows = shared->tokens * attention->heads, first, end;

        pd_host_share(rows, 1, thread, run->host->threads, &first, &end);
        for (int r = first; r < end; r++) {
            size_t token = (size_t)(shared->first + r / attention->heads);
            float *out = pd_host_floats(op->out) + token * (size_t)op->out.cols +
                         r % attention->heads * attention->head_dim;

            pd_cpu_of(run)->path->merge(attention->states + (size_t)(shared->state + r) * state,
                                        shared->splits, (size_t)rows * state, attention->head_dim,
                                        scratch, out);
        }
    }
}

void pd_cpu_attention(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    struct pd_cpu_plan *plan = pd_cpu_plan_of(run);
    const struct pd_cpu_attention *attention = find(plan, &op->shape);
    atomic_int *next = &plan->next[op - run->graph->ops];
    float *scratch = pd_cpu_scratch(run, thread);
    int total = attention->item_count * attention->kv_heads;
    int taken = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    struct pd_cpu_query query, then;

    if (taken < total)
        query = query_of(run, op, attention, taken);
    while (taken <
           total) { /* the next is taken before this one is computed, to be loaded meanwhile */
        taken = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (taken < total)
            then = query_of(run, op, attention, taken);
        pd_cpu_of(run)->attend(&query, taken < total ? &then : NULL, scratch);
        query = then;
    }
    if (attention->shared_count == 0)
        return;
    pd_team_barrier(run->host->team);
    merge_shared(run, op, attention, thread, scratch);
}
