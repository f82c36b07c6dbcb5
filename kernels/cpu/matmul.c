/* Sharing a matmul out: x is prepared, then each thread computes its own panels.
 *
 *                 few tokens                         many
 *     f32         x as it lies, sums over blocks     packed in tiles, that the inner loop reads as one stream
 *     narrow      rounded                            rounded
 *                 each thread for itself             shared out, then a barrier
 *
 * Of rows that go through operators apart, x is a thread's own, and all panels are. Of others each thread has a run
 * of panels, so that it reads memory as one stream, and takes them a few at a time: who is done helps a neighbour,
 * since cores and memory are not as fast for all at any moment, and the next operator waits for the last. */
#include "kernels/cpu/cpu.h"

static int blocks_of(int cols)
{
    return (cols + BLOCK - 1) / BLOCK;
}

/* Takes floats from the thread's scratch; a cache line is the unit. */
static float *take(float **scratch, size_t floats)
{
    float *taken = *scratch;

    *scratch += (floats + 15) / 16 * 16;
    return taken;
}

/* x in f32. Returns whether a barrier must follow. */
static bool prepare_floats(const struct pd_host_run *run, const float *x, int thread,
                           struct pd_cpu_product *product, float **scratch)
{
    const struct pd_cpu_path *path = pd_cpu_of(run)->path;
    int cols = product->weight->weight.cols, tokens = product->tokens, tiles, first = 0, end;
    float *packed = pd_cpu_plan_of(run)->packed, *sums = pd_cpu_plan_of(run)->sums;

    if (tokens <= path->direct_rows) {
        product->x = x;
        if (product->weight->minimums) {
            sums = take(scratch, (size_t)(tokens * blocks_of(cols)));
            path->sum_blocks(x, tokens, cols, sums);
            product->sums = sums;
        }
        return false;
    }
    if (run->apart) {
        packed = take(scratch, (size_t)tokens * (size_t)cols);
        sums = take(scratch, (size_t)tokens * (size_t)blocks_of(cols));
    }
    product->x = packed;
    product->sums = sums;
    end = tiles = pd_cpu_tiles(tokens, path->tile_rows);
    if (!run->apart)
        pd_host_share(tiles, 1, thread, run->host->threads, &first, &end);
    for (int i = first; i < end; i++) {
        int at = pd_cpu_tile(tokens, tiles, i), n = pd_cpu_tile(tokens, tiles, i + 1) - at;

        path->pack_tile(x, cols, tokens, at, n, packed, product->weight->minimums ? sums : NULL);
    }
    return !run->apart;
}

/* x rounded. */
static bool prepare_rounded(const struct pd_host_run *run, const float *x, int thread,
                            struct pd_cpu_product *product, float **scratch)
{
    int cols = product->weight->weight.cols, blocks = blocks_of(cols), tokens = product->tokens;
    bool alone = run->apart || tokens <= PD_CPU_ROUND_ALONE;
    size_t floats = product->narrow->bytes(tokens, blocks) / sizeof(float);

    product->rounded = (struct pd_cpu_rounded){
        alone ? take(scratch, floats) : pd_cpu_plan_of(run)->rounded, tokens, blocks};
    product->narrow->round(x, cols, &product->rounded, alone ? 0 : thread,
                           alone ? 1 : run->host->threads);
    return !alone;
}

/* Panels that are taken at a time of a run of so many: one where they are few, and little is left at the end. */
static int panels_at_once(int panels)
{
    return panels / 64 + 1;
}

/* Takes the panels of thread `whose` until there are none. */
static void multiply_run(const struct pd_host_run *run, const struct pd_cpu_product *product,
                         struct pd_cpu_taken *taken, int whose, float *scratch)
{
    int first, end, some, at;

    pd_host_share(product->weight->panels, 1, whose, run->host->threads, &first, &end);
    some = panels_at_once(end - first);
    while (atomic_load_explicit(&taken->panels, memory_order_relaxed) < end - first) {
        at = first + atomic_fetch_add_explicit(&taken->panels, some, memory_order_relaxed);
        if (at < end)
            pd_cpu_of(run)->path->multiply(product, at, at + some < end ? at + some : end, scratch);
    }
}

static void multiply_shared(const struct pd_host_run *run, const struct pd_op *op, int thread,
                            const struct pd_cpu_product *product, float *scratch)
{
    enum { HELPED = 4 }; /* runs: to look at many takes longer than it helps */
    int threads = run->host->threads, runs = threads < HELPED ? threads : HELPED;
    struct pd_cpu_taken *taken = pd_cpu_taken(run, op);

    for (int i = 0; i < runs; i++) {
        int whose = (thread + i) % threads;

        multiply_run(run, product, taken + whose, whose, scratch);
    }
}

void pd_cpu_matmul_begin(const struct pd_host_run *run)
{
    for (int i = 0; i < run->graph->count; i++) {
        const struct pd_op *op = &run->graph->ops[i];

        if (op->kind != PD_OP_MATMUL)
            continue;
        for (int t = 0; t < run->host->threads; t++)
            atomic_store_explicit(&pd_cpu_taken(run, op)[t].panels, 0, memory_order_relaxed);
    }
}

/* Of a run of panels, in bytes: more comes while those are multiplied. */
static const size_t ASKED_FOR = 8192;

/* A product of few tokens waits for memory from its first byte to its last, and between two products memory has
 * nothing to do: what comes meanwhile need not be waited for. */
void pd_cpu_matmul_ahead(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_cpu_weight *weight = (const struct pd_cpu_weight *)op->weight;
    const struct pd_cpu_segment *segment;
    const uint8_t *from;
    size_t bytes;
    int first, end;

    pd_host_share(weight->panels, 1, thread, run->host->threads, &first, &end);
    if (first == end)
        return;
    segment = pd_cpu_segment_of(weight->segments, first);
    from = segment->data + (size_t)(first - segment->first_panel) * segment->panel_bytes;
    bytes = (size_t)(end - first) * segment->panel_bytes;
    for (size_t i = 0; i < bytes && i < ASKED_FOR; i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

void pd_cpu_matmul(const struct pd_host_run *run, const struct pd_op *op, int thread)
{
    const struct pd_cpu *cpu = pd_cpu_of(run);
    float *scratch = pd_cpu_scratch(run, thread);
    struct pd_cpu_product product = {
        .weight = (const struct pd_cpu_weight *)op->weight,
        .bias = pd_cpu_vector(op->bias),
        .epilogue = op->epilogue,
        .slices = op->slices,
        .tokens = pd_host_rows(run, op),
        .narrow = cpu->narrow,
        .out = pd_host_floats(op->out),
        .outputs = op->out.cols,
    };
    const float *x = pd_host_floats(op->in);
    bool shared = false;

    if (run->apart) {
        x += (size_t)run->first * (size_t)op->in.cols;
        product.out += (size_t)run->first * (size_t)op->out.cols;
        product.tokens = run->end - run->first;
    }
    if (product.tokens == 0)
        return;
    if (product.weight->narrow)
        shared = prepare_rounded(run, x, thread, &product, &scratch);
    if (product.weight->wide)
        shared |= prepare_floats(run, x, thread, &product, &scratch);
    if (shared)
        pd_team_barrier(run->host->team);
    if (run->apart)
        cpu->path->multiply(&product, 0, product.weight->panels, scratch);
    else
        multiply_shared(run, op, thread, &product, scratch);
}
