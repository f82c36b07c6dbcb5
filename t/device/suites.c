/* The suites that `make check-simt` runs over the shim, and one question more, on a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/backend.h"
#include "t/device/stage.h"
#include "t/unit/kernel_answers.h"

/* The suites' own main functions, under other names. */
int pd_suite_products(void);
int pd_suite_blocks(void);
int pd_suite_attention(void);
int pd_suite_operators(void);
int pd_suite_sample(void);

/* NaN in every type. */
static void poison(struct pd_device *device, void *memory, size_t bytes)
{
    struct pd_cuda_runtime *runtime = pd_cuda_of(device)->runtime;
    void *noise = malloc(bytes);

    if (strcmp(device->backend->kind, "cuda") == 0 && noise != NULL) {
        memset(noise, 0xff, bytes);
        if (pd_cuda_copy(runtime, memory, noise, bytes) != 0 || pd_cuda_drain(runtime) != 0)
            fail_msg("poisoning %zu bytes", bytes);
    }
    free(noise);
}

int pd_stage_operators(const struct pd_stage_options *options)
{
    pd_rig_seed = options->seed;
    pd_rig_poison = poison;
    if (options->small)
        setenv("PD_SIMT_SHAPES", "1", 1);
    return pd_suite_products() || pd_suite_blocks() || pd_suite_attention() ||
           pd_suite_operators() || pd_suite_sample();
}

/* Ranges of a pool on the GPU, in by one launch and out by another, as the hand-off asks for them. */
static void move_ranges(struct pd_device *device)
{
    enum { COUNT = 40, BYTES = 4096, APART = 3 * BYTES };
    static uint8_t in[COUNT * BYTES], out[COUNT * BYTES];
    struct pd_export_range ranges[COUNT];
    struct pd_export way;
    struct pd_buffer *pool;

    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = (uint8_t)(i * 7 + i / BYTES);
    for (size_t i = 0; i < COUNT; i++)
        ranges[i] = (struct pd_export_range){(COUNT - 1 - i) * APART, i * BYTES, BYTES};
    if (pd_buffer_create(device, PD_BUFFER_KV, COUNT * APART, &pool) != PD_KERNEL_OK ||
        pd_buffer_export(pool, &way) != PD_KERNEL_OK ||
        !way.copy(way.copy_context, in, ranges, COUNT, false) ||
        pd_fence_remote_writes(device) != PD_KERNEL_OK ||
        !way.copy(way.copy_context, out, ranges, COUNT, true))
        fail_msg("ranges of the pool: %s", pd_device_error(device));
    if (memcmp(in, out, sizeof(in)) != 0)
        fail_msg("ranges of the pool are not what was written there");
}

/* Twelve kernels, each at least once, with nothing recorded: what compute-sanitizer looks at. embed,
 * rmsnorm, to_half, matmul_fixed or matmul_small, rope_store, attention_decode, attention_chunks, swiglu,
 * gather, sample, scatter_ranges, gather_ranges. */
int pd_stage_kernels(const struct pd_stage_options *options)
{
    int tokens[PD_ANSWER_TOKENS] = {0};
    struct pd_small_model model;

    pd_rig_seed = options->seed;
    pd_small_open_enabled(&model, &pd_answering, NULL, true);
    pd_answers_generate(&model, tokens);
    move_ranges(model.rig.device);
    pd_small_close(&model);
    return 0;
}

/* Without the library, whose algorithm is the one that was quickest: in another process, or on another device, it may be
 * another, with other bits. */
int pd_stage_forward(const struct pd_stage_options *options)
{
    int direct[PD_ANSWER_TOKENS] = {0}, replayed[PD_ANSWER_TOKENS] = {0};
    struct pd_small_model model;

    pd_rig_seed = options->seed;
    for (int eager = 0; eager < 2; eager++) {
        pd_small_open_enabled(&model, &pd_answering, "graphs", eager);
        pd_answers_generate(&model, eager ? direct : replayed);
        pd_small_close(&model);
    }
    for (int i = 0; i < PD_ANSWER_TOKENS; i++)
        if (direct[i] != replayed[i])
            fail_msg("step %d, answer %d: token %d launched directly, %d replayed", i / PD_ANSWERS,
                     i % PD_ANSWERS, direct[i] - 1, replayed[i] - 1);
    pd_stage_figure("tokens equal, replayed and direct", "tokens", PD_ANSWER_TOKENS, 0);
    return 0;
}

/* ---- a row's bits beside other rows ------------------------------------------------------------ */

enum { ROW_COLS = 512, ROW_OUT = 384, ROWS = 64 };

struct product {
    struct pd_rig rig;
    struct pd_graph *graph;
    struct pd_buffer *pinned;
};

static void open_product(struct product *product, enum pd_dtype type, const float *x)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_rig *rig = &product->rig;
    struct pd_tensor in, out;

    pd_rig_open(rig, &options);
    in = pd_rig_tensor(rig, options.max_tokens, ROW_COLS);
    out = pd_rig_tensor(rig, options.max_tokens, ROW_OUT);
    product->pinned = pd_rig_pinned(rig, sizeof(float) * (size_t)options.max_tokens * ROW_OUT);
    product->graph = pd_rig_begin(rig);
    pd_op_embed(product->graph, pd_rig_input(rig, x, ROWS, ROW_COLS), in);
    pd_op_matmul(product->graph, pd_rig_weight(rig, type, ROW_OUT, ROW_COLS, false, 3), in, NULL,
                 PD_EPILOGUE_NONE, false, out);
    pd_op_read(product->graph, out, false, product->pinned);
    pd_rig_end(product->graph);
}

/* The first row's product in a step of `rows` rows. */
static const float *first_row(struct product *product, int rows)
{
    int32_t tokens[ROWS];

    for (int i = 0; i < rows; i++)
        tokens[i] = i;
    pd_rig_run(&product->rig, product->graph, pd_rig_step(&product->rig, 0, tokens, rows, 0, 0));
    return pd_buffer_host(product->pinned);
}

/* Up to 8 rows one kernel serves all: equal to the bit, or wrong. Above, the figure tells for how many
 * sizes of a step the row is what it is alone. */
int pd_stage_rows(const struct pd_stage_options *options)
{
    static const enum pd_dtype types[] = {PD_BF16, PD_F16, PD_Q8_0, PD_Q4_K};
    static float x[ROWS * ROW_COLS], alone[ROW_OUT];
    int most = options->small ? 12 : ROWS;

    pd_rig_seed = options->seed;
    pd_rig_fill(x, ROWS * ROW_COLS, 1, 5);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        struct product product;
        char name[64];
        int equal = 0;

        open_product(&product, types[t], x);
        memcpy(alone, first_row(&product, 1), sizeof(alone));
        for (int rows = 2; rows <= most; rows++) {
            bool same = memcmp(first_row(&product, rows), alone, sizeof(alone)) == 0;

            if (rows <= 8 && !same)
                fail_msg("%s: a row beside %d others is not what it is alone",
                         pd_dtype_name(types[t]), rows - 1);
            equal += same;
        }
        pd_rig_close(&product.rig);
        snprintf(name, sizeof(name), "%s: steps of 2 to %d rows with the bits of 1",
                 pd_dtype_name(types[t]), most);
        pd_stage_figure(name, "steps", equal, most - 1);
    }
    return 0;
}
