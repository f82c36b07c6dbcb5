#include "kernels/apart.h"

static bool is_apart(const struct pd_op *op)
{
    switch (op->kind) {
    case PD_OP_EMBED:
    case PD_OP_RMSNORM:
    case PD_OP_MATMUL:
    case PD_OP_ROPE_ANGLES:
    case PD_OP_ROPE_STORE:
        return !op->rows_are_samples;
    default:
        return false;
    }
}

static size_t end_of(struct pd_tensor tensor)
{
    return tensor.offset + (size_t)tensor.rows * (size_t)tensor.cols * sizeof(float);
}

/* Whether a row of one lies where another row of the other does. */
static bool rows_cross(struct pd_tensor a, struct pd_tensor b)
{
    if (a.buffer == NULL || a.buffer != b.buffer || (a.offset == b.offset && a.cols == b.cols))
        return false;
    return a.offset < end_of(b) && b.offset < end_of(a);
}

static bool operators_cross(const struct pd_op *a, const struct pd_op *b)
{
    return rows_cross(a->in, b->in) || rows_cross(a->in, b->out) || rows_cross(a->out, b->in) ||
           rows_cross(a->out, b->out);
}

void pd_apart_mark(struct pd_graph *graph)
{
    int first = 0;

    for (int i = 0; i < graph->count; i++) {
        struct pd_op *op = &graph->ops[i];

        op->continues = i > 0 && is_apart(op) && is_apart(op - 1);
        for (int k = first; op->continues && k < i; k++)
            op->continues = !operators_cross(&graph->ops[k], op);
        if (!op->continues)
            first = i;
    }
}

int pd_apart_end(const struct pd_graph *graph, int first)
{
    int end = first;

    if (!is_apart(&graph->ops[first]))
        return first;
    do
        end++;
    while (end < graph->count && graph->ops[end].continues);
    return end;
}
