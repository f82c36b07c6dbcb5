/* The running softmax of a row and its head (path.h says what a state holds): begun, added to, merged with the
 * states of later splits, finished. Whoever computed a split, these are the operations on it, in this order.
 *
 * Included by attend.h, attend_few.h and attend_bf16.h only. */
#ifndef PD_STATES_H
#define PD_STATES_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/path.h"

static void clear_state(float *state, int head_dim)
{
    memset(state, 0, pd_cpu_state_floats(head_dim) * sizeof(*state));
    state[0] = -INFINITY;
}

/* What a state and a later split count when they are added, of sixteen: e to what each lacks of the greater
 * score. -inf says that a row sees none of the keys. */
INLINE void share_of(lanes was, lanes greatest, lanes *old, lanes *new)
{
    lanes both = lanes_max(was, greatest);

    *old = lanes_exp(lanes_sub(was, both));
    *new = lanes_exp(lanes_sub(greatest, both));
}

/* Adds a later split to a state. */
INLINE void merge_state(float *state, float greatest, float total, const float *values, int stride,
                        int padded)
{
    lanes old, new;

    if (greatest == -INFINITY)
        return;
    if (state[0] == -INFINITY) {
        state[0] = greatest;
        state[1] = total;
        for (int d = 0; d < padded; d += LANES)
            lanes_store(state + PD_CPU_STATE_HEAD + d,
                        lanes_load(values + d / PANEL * stride + d % PANEL));
        return;
    }
    share_of(lanes_set(state[0]), lanes_set(greatest), &old, &new);
    state[0] = state[0] > greatest ? state[0] : greatest;
    lanes_store_part(state + 1,
                     lanes_fma(lanes_set(total), new, lanes_mul(lanes_set(state[1]), old)), 1);
    for (int d = 0; d < padded; d += LANES) {
        float *at = state + PD_CPU_STATE_HEAD + d;
        lanes value = lanes_load(values + d / PANEL * stride + d % PANEL);

        lanes_store(at, lanes_fma(value, new, lanes_mul(lanes_load(at), old)));
    }
}

static void finish_state(const float *state, int dim, float *out)
{
    lanes total = lanes_set(state[1]);
    int whole = dim / LANES * LANES;

    for (int d = 0; d < whole; d += LANES)
        lanes_store(out + d, lanes_div(lanes_load(state + PD_CPU_STATE_HEAD + d), total));
    if (whole < dim)
        lanes_store_part(out + whole,
                         lanes_div(lanes_load(state + PD_CPU_STATE_HEAD + whole), total),
                         dim - whole);
}

/* Row r of a tile is head r % group of token r / group. */
static const float *row_query(const struct pd_cpu_query *query, int group, int r)
{
    return query->q + (size_t)(r / group) * query->q_stride + r % group * query->shape->head_dim;
}

static float *row_out(const struct pd_cpu_query *query, int group, int r)
{
    return query->out + (size_t)(r / group) * query->out_stride +
           r % group * query->shape->head_dim;
}

/* The state of row r: where the query wants it, or in `own`. */
static float *row_state(const struct pd_cpu_query *query, float *own, int group, int r)
{
    size_t row = query->states == NULL
                     ? (size_t)r
                     : (size_t)(r / group) * query->state_rows + (size_t)(r % group);

    return (query->states == NULL ? own : query->states) +
           row * pd_cpu_state_floats(query->shape->head_dim);
}

/* Of all rows of a tile. */
static void clear_states(const struct pd_cpu_query *query, float *own, int group, int rows)
{
    for (int r = 0; r < rows; r++)
        clear_state(row_state(query, own, group, r), query->shape->head_dim);
}

/* Writes what rows have come to, unless others have splits of theirs. */
static void finish_states(const struct pd_cpu_query *query, float *own, int group, int rows)
{
    for (int r = 0; query->states == NULL && r < rows; r++)
        finish_state(row_state(query, own, group, r), query->shape->head_dim,
                     row_out(query, group, r));
}

#endif
