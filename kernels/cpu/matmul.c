/* Sharing a matmul out: x is prepared by all threads for all, then each computes its own panels. */
#include "kernels/cpu/cpu.h"

static int blocks_of(int cols)
{
    return (cols + BLOCK - 1) / BLOCK;
}

/* Few tokens: only the sums, and each thread makes them for itself rather than wait for another. */
static const float *sum_for_few(const struct pd_host_run *run, const struct pd_op *op, int tokens,
                                float *sums)
{
    pd_cpu_of(run)->path->sum_blocks(pd_host_floats(op->in), tokens, op->in.cols, sums);
    return sums;
}

/* Many: tiles packed so that the inner loop reads x as one stream. Ends with a barrier. */
static void pack_for_many(const struct pd_host_run *run, const struct pd_op *op, int tokens,
                          int thread)
{
    const struct pd_cpu_path *path = pd_cpu_of(run)->path;
    struct pd_cpu_plan *plan = pd_cpu_plan_of(run);
    bool minimums = ((const struct pd_cpu_weight *)op->weight)->minimums;
    int cols = op->in.cols, tiles = pd_cpu_tiles(tokens, path->tile_rows), first, end;

    pd_host_share(tiles, 1, thread, run->host->threads, &first, &end);
    for (int i = first; i < end; i++) {
        int at = pd_cpu_tile(tokens, tiles, i), n = pd_cpu_tile(tokens, tiles, i + 1) - at;

        path->pack_tile(pd_host_floats(op->in), cols, tokens, at, n, plan->packed,
                        minimums ? plan->sums : NULL);
    }
    pd_team_barrier(run->host->team);
}

void pd_cpu_matmul(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_cpu_path *path = pd_cpu_of(run)->path;
    struct pd_cpu_plan *plan = pd_cpu_plan_of(run);
    float *scratch = pd_cpu_scratch(run, thread);
    struct pd_cpu_product product = {
        .weight = (const struct pd_cpu_weight *)op->weight,
        .bias = pd_cpu_vector(op->bias),
        .epilogue = op->epilogue,
        .tokens = pd_host_rows(run, op),
        .x = plan->packed,
        .sums = plan->sums,
        .out = pd_host_floats(op->out),
        .outputs = op->out.cols,
    };
    int first, end;

    if (product.tokens == 0)
        return;
    if (product.tokens > path->direct_rows) {
        pack_for_many(run, op, product.tokens, thread);
    } else {
        product.x = pd_host_floats(op->in);
        if (product.weight->minimums) {
            product.sums = sum_for_few(run, op, product.tokens, scratch);
            scratch += ((size_t)(product.tokens * blocks_of(op->in.cols)) + 15) / 16 * 16;
        }
    }
    pd_host_share(product.weight->panels, 1, thread, run->host->threads, &first, &end);
    path->multiply(&product, first, end, scratch);
}
