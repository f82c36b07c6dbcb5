/* Groups of ranks: sums to the bit those of one device, whatever the format, the path, the number of
 * tokens and the division of cores; and a group that is driven as one device.
 *
 * The graph under test is what tensor parallelism needs of a model: an embedding by shares of the
 * vocabulary, a column-parallel product, the row-parallel one behind it, logits by shares, a sample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "t/unit/kernel_rig.h"

enum { HIDDEN = 96, VOCABULARY = 301, TOKENS = 70, SEQUENCES = 2, SLICES = 8 };

struct shape {
    enum pd_dtype type;
    enum pd_precision precision;
    int inner; /* columns of the row-parallel product, all ranks together */
};

struct chain {
    struct pd_rig rig;
    const struct shape *shape;
    int slices;
    struct pd_graph *graphs[PD_RANKS_MAX], *graph;
    struct pd_buffer *sum[PD_RANKS_MAX], *logits[PD_RANKS_MAX];
};

/* A rank as a rig of its own. */
static struct pd_rig rank_of(struct chain *chain, int rank)
{
    return (struct pd_rig){pd_device_rank(chain->rig.device, rank), chain->rig.options};
}

/* Rows first .. end - 1 and columns left .. right - 1 of a matrix that is the same for all ranks. */
static struct pd_weight *part(struct pd_rig *rig, enum pd_dtype type, int rows, int cols, int first,
                              int end, int left, int right, bool embedding, uint64_t seed)
{
    size_t unit = (size_t)pd_dtype_bytes(type);
    size_t block = (size_t)pd_dtype_block(type), row = (size_t)cols / block * unit;
    size_t width = (size_t)(right - left) / block * unit;
    uint8_t *all = pd_rig_matrix(type, rows, cols, seed);
    uint8_t *own = malloc((size_t)(end - first) * width);
    struct pd_weight_source source = {own, type, end - first};
    struct pd_weight *weight;

    assert_non_null(own);
    for (int r = first; r < end; r++)
        memcpy(own + (size_t)(r - first) * width,
               all + (size_t)r * row + (size_t)left / block * unit, width);
    assert_int_equal(
        pd_weight_create(rig->device, PD_WEIGHT_ROWS, right - left, &source, 1, embedding, &weight),
        PD_KERNEL_OK);
    free(all);
    free(own);
    return weight;
}

static void record(struct chain *chain, int rank, int ranks)
{
    struct pd_rig rig = rank_of(chain, rank);
    enum pd_dtype type = chain->shape->type;
    int inner = chain->shape->inner, tokens = chain->rig.options.max_tokens;
    int first = pd_share_first(inner, rank, ranks), end = pd_share_first(inner, rank + 1, ranks);
    int row = pd_share_first(VOCABULARY, rank, ranks),
        row_end = pd_share_first(VOCABULARY, rank + 1, ranks);
    struct pd_tensor x = pd_rig_tensor(&rig, tokens, HIDDEN);
    struct pd_tensor y = pd_rig_tensor(&rig, tokens, end - first);
    struct pd_tensor picked = pd_rig_tensor(&rig, 16, HIDDEN);
    struct pd_tensor logits = pd_rig_tensor(&rig, 16, VOCABULARY);
    struct pd_graph *graph = pd_rig_begin(&rig);

    chain->sum[rank] = pd_rig_pinned(&rig, sizeof(float) * (size_t)(tokens * HIDDEN));
    chain->logits[rank] = pd_rig_pinned(&rig, sizeof(float) * 16 * VOCABULARY);
    pd_op_embed(graph, part(&rig, PD_F32, VOCABULARY, HIDDEN, row, row_end, 0, HIDDEN, true, 1), x);
    pd_op_matmul(graph, part(&rig, PD_F32, inner, HIDDEN, first, end, 0, HIDDEN, false, 2), x, NULL,
                 PD_EPILOGUE_NONE, false, y);
    pd_op_matmul_reduce(graph, part(&rig, type, HIDDEN, inner, 0, HIDDEN, first, end, false, 3), y,
                        chain->slices, x);
    pd_op_publish(graph, 1);
    pd_op_read(graph, x, false, chain->sum[rank]);
    pd_op_gather(graph, x, picked);
    pd_op_matmul_gather(graph,
                        part(&rig, PD_F32, VOCABULARY, HIDDEN, row, row_end, 0, HIDDEN, false, 4),
                        picked, true, logits);
    pd_op_read(graph, logits, true, chain->logits[rank]);
    pd_op_sample(graph, logits);
    pd_rig_end(graph);
    chain->graphs[rank] = graph;
}

static void open_chain(struct chain *chain, const struct shape *shape, const char *kind,
                       const char *isa, int ranks, int threads, int slices)
{
    struct pd_device_options options = pd_rig_options(kind, isa, threads);

    memset(chain, 0, sizeof(*chain));
    options.ranks = ranks;
    options.vocabulary = VOCABULARY;
    options.precision = shape->precision;
    options.deterministic = true;
    chain->shape = shape;
    chain->slices = slices;
    pd_rig_open(&chain->rig, &options);
    assert_int_equal(pd_device_ranks(chain->rig.device), ranks);
    assert_true(ranks == 1 || !pd_device_cuts(chain->rig.device));
    for (int r = 0; r < ranks; r++)
        record(chain, r, ranks);
    assert_int_equal(pd_graph_join(chain->rig.device, chain->graphs, &chain->graph), PD_KERNEL_OK);
}

struct answer {
    float sum[(TOKENS + 1) * HIDDEN], logits[SEQUENCES * VOCABULARY];
    int32_t sampled[SEQUENCES + 1];
    float logprob, top[3];
};

/* `count` tokens of one sequence and one of another in one step; then a step whose token only the device
 * knows. Every rank must hold the same results. */
static void play(struct chain *chain, int count, struct answer *answer)
{
    int32_t tokens[TOKENS], unknown = PD_TOKEN_OF_SLOT(0);
    struct pd_device *device = chain->rig.device;
    size_t sum = (size_t)(count + 1) * HIDDEN * sizeof(float), logits = sizeof(answer->logits);
    struct pd_step *step;

    memset(answer, 0, sizeof(*answer));
    for (int i = 0; i < count; i++)
        tokens[i] = (i * 37 + 5) % VOCABULARY;
    step = pd_rig_step(&chain->rig, 0, tokens, count, 0, 0);
    pd_rig_add(&chain->rig, step, 1, &tokens[count / 2], 1, 0, 40);
    step->sample[0].temperature = 0.7f;
    step->sample[0].seed = 11;
    step->sample[0].repetition = 1.3f;
    step->sample[0].history = count;
    step->sample[0].logprobs = 4;
    step->sample[0].banned_first = 7;
    step->sample[0].banned_count = 1;
    step->banned[7] = 3;
    step->sample[1].bias_first = 5;
    step->sample[1].bias_count = 1;
    step->bias_token[5] = 300;
    step->bias_value[5] = 0.25f;
    pd_rig_run(&chain->rig, chain->graph, step);
    assert_true(pd_device_progress(device) == (step->number << 16 | 1));
    memcpy(answer->sum, pd_buffer_host(chain->sum[0]), sum);
    memcpy(answer->logits, pd_buffer_host(chain->logits[0]), logits);
    for (int r = 1; r < pd_device_ranks(device); r++) {
        assert_memory_equal(pd_buffer_host(chain->sum[r]), answer->sum, sum);
        assert_memory_equal(pd_buffer_host(chain->logits[r]), answer->logits, logits);
    }
    memcpy(answer->sampled, step->sampled, 2 * sizeof(int32_t));
    answer->logprob = step->sampled_logprob[0];
    memcpy(answer->top, step->top_logprob, sizeof(answer->top));
    step = pd_rig_step(&chain->rig, 0, &unknown, 1, count, 0);
    pd_rig_run(&chain->rig, chain->graph, step);
    answer->sampled[2] = step->sampled[0];
}

/* `whole`: every number of tokens in every way; else a few of them. */
static void check_equal(const struct shape *shape, const char *kind, const char *isa, bool whole)
{
    static const int counts[] = {1, 3, TOKENS - 1};
    static const struct {
        int ranks, threads;
    } ways[] = {{1, 1}, {1, 3}, {2, 2}, {2, 3}, {4, 4}, {8, 8}, {8, 2}};

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        static struct answer expected, answer;

        if (!whole && c != 1)
            continue;
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i += whole ? 1 : 3) {
            struct chain chain;

            open_chain(&chain, shape, kind, isa, ways[i].ranks, ways[i].threads, SLICES);
            play(&chain, counts[c], i == 0 ? &expected : &answer);
            pd_rig_close(&chain.rig);
            if (i > 0 && memcmp(&answer, &expected, sizeof(answer)) != 0)
                fail_msg("%s %s, %s, %d tokens: %d ranks, %d threads differ", kind, isa,
                         pd_dtype_name(shape->type), counts[c], ways[i].ranks, ways[i].threads);
        }
    }
}

static const struct shape shapes[] = {
    {PD_Q4_1, PD_PRECISION_INT12, 256},  {PD_Q8_0, PD_PRECISION_INT8, 768},
    {PD_Q4_0, PD_PRECISION_F32, 768},    {PD_Q8_0, PD_PRECISION_INT12, 256},
    {PD_BF16, PD_PRECISION_INT12, 1280}, {PD_Q4_1, PD_PRECISION_BF16, 1280},
    {PD_Q4_1, PD_PRECISION_INT8, 512},   {PD_Q8_0, PD_PRECISION_F32, 256},
    {PD_F32, PD_PRECISION_F32, 256},
};

enum { SHAPES = (int)(sizeof(shapes) / sizeof(shapes[0])) };

static void test_any_number_of_ranks_computes_the_same_bits(void **state)
{
    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        bool best =
            path[1] == NULL; /* the others take the same way through all that is not theirs */

        for (int i = 0; i < SHAPES; i += best ? 1 : 3) {
            if (!pd_rig_has(*path, shapes[i].precision))
                continue;
            check_equal(&shapes[i], "cpu", *path, best && i < 2);
        }
    }
    check_equal(&shapes[0], "reference", NULL, false);
}

/* Only where the CUDA backend is linked in (over t/simt/): one device is a GPU, in its deterministic way. */
static void test_gpus_compute_the_same_bits(void **state)
{
    static struct answer expected, answer;

    (void)state;
    if (&pd_backend_cuda == NULL)
        skip();
    for (int i = 0; i < SHAPES; i++) {
        struct shape plain = shapes[i];
        struct chain chain;

        plain.precision = PD_PRECISION_F32; /* a GPU has no other */
        check_equal(&shapes[i], "cuda", NULL, false);
        open_chain(&chain, &plain, "reference", NULL, 1, 1, SLICES);
        play(&chain, TOKENS - 1, &expected);
        pd_rig_close(&chain.rig);
        open_chain(&chain, &shapes[i], "cuda", NULL, 2, 1, SLICES);
        play(&chain, TOKENS - 1, &answer);
        pd_rig_close(&chain.rig);
        assert_true(pd_rig_error(answer.sum, expected.sum, TOKENS * HIDDEN) < 2e-3);
    }
}

/* Formats whose blocks of 256 columns ranks cannot cut still are summed in slices. */
static void test_slices_against_the_reference(void **state)
{
    static const struct shape more[] = {{PD_Q4_K, PD_PRECISION_INT12, 512},
                                        {PD_Q6_K, PD_PRECISION_INT12, 512},
                                        {PD_Q6_K, PD_PRECISION_INT8, 512},
                                        {PD_Q6_K, PD_PRECISION_F32, 512},
                                        {PD_Q5_0, PD_PRECISION_F32, 1024}};

    (void)state;
    for (int i = 0; i < SHAPES + 5; i++) {
        const struct shape *shape = i < SHAPES ? &shapes[i] : &more[i - SHAPES];
        static struct answer expected, answer;
        struct chain chain;

        open_chain(&chain, shape, "reference", NULL, 1, 1, SLICES);
        play(&chain, TOKENS - 1, &expected);
        pd_rig_close(&chain.rig);
        for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
            /* rounded, what differs by an ulp may round apart */
            double allowed = shape->precision == PD_PRECISION_F32     ? 1e-5
                             : shape->precision == PD_PRECISION_INT12 ? 1e-3
                                                                      : 1e-2,
                   error;

            if (!pd_rig_has(*path, shape->precision))
                continue;
            open_chain(&chain, shape, "cpu", *path, 1, 2, SLICES);
            play(&chain, TOKENS - 1, &answer);
            pd_rig_close(&chain.rig);
            error = pd_rig_error(answer.sum, expected.sum, TOKENS * HIDDEN);
            if (!(error < allowed))
                fail_msg("%s, %s: error %g", *path, pd_dtype_name(shape->type), error);
        }
    }
}

/* Three ranks of two slices each: their own sums, near the others'. */
static void test_ranks_that_do_not_divide_the_slices(void **state)
{
    static const struct shape shape = {PD_Q8_0, PD_PRECISION_F32, 768};
    static struct answer expected, answer;
    struct chain chain;

    (void)state;
    open_chain(&chain, &shape, "cpu", "auto", 1, 1, 8);
    play(&chain, 20, &expected);
    pd_rig_close(&chain.rig);
    open_chain(&chain, &shape, "cpu", "auto", 3, 3, 8);
    play(&chain, 20, &answer);
    pd_rig_close(&chain.rig);
    assert_memory_not_equal(answer.sum, expected.sum, 21 * HIDDEN * sizeof(float));
    assert_true(pd_rig_error(answer.sum, expected.sum, 21 * HIDDEN) < 1e-5);
    assert_memory_equal(answer.sampled, expected.sampled, sizeof(answer.sampled));
}

/* Both descriptors in flight, histories between, results of the older one still there. */
static void test_steps_in_flight(void **state)
{
    static const int32_t prompt[3] = {9, 8, 7};
    struct pd_step *first, *second, *third;
    struct chain chain;
    int32_t token, next = PD_TOKEN_OF_SLOT(2);

    (void)state;
    open_chain(&chain, &shapes[0], "cpu", "auto", 4, 4, SLICES);
    first = pd_rig_step(&chain.rig, 2, prompt, 3, 0, 0);
    assert_int_equal(pd_graph_launch(chain.graph, first), PD_KERNEL_OK);
    assert_int_equal(pd_history_write(chain.rig.device, 5, 0, prompt, 3), PD_KERNEL_OK);
    second = pd_rig_step(&chain.rig, 2, &next, 1, 3, 0);
    assert_int_equal(pd_graph_launch(chain.graph, second), PD_KERNEL_OK);
    assert_int_equal(pd_step_acquire(chain.rig.device, &third), PD_KERNEL_BUSY);
    assert_int_equal(pd_step_wait(chain.rig.device, second->number, -1), PD_KERNEL_OK);
    assert_int_equal(pd_step_wait(chain.rig.device, first->number, 10000), PD_KERNEL_OK);
    token = first->sampled[0];
    third = pd_rig_step(&chain.rig, 2, &next, 1, 4, 0);
    assert_int_equal(pd_graph_launch(chain.graph, third), PD_KERNEL_OK);
    assert_int_equal(pd_step_wait(chain.rig.device, second->number, 10000), PD_KERNEL_OK);
    assert_int_equal(pd_step_wait(chain.rig.device, third->number, 10000), PD_KERNEL_OK);
    assert_in_range(token, 0, VOCABULARY - 1);
    assert_int_equal(pd_fence_remote_writes(chain.rig.device), PD_KERNEL_OK);
    pd_rig_close(&chain.rig);
}

static void test_what_a_group_refuses(void **state)
{
    struct pd_device_options options = pd_rig_options("cpu", "auto", 2);
    struct pd_graph *graph, *none;
    struct pd_device *device;
    struct pd_buffer *buffer;
    struct pd_step *step;
    struct chain chain;
    int32_t wrong = VOCABULARY;
    char error[256];

    (void)state;
    options.ranks = PD_RANKS_MAX + 1;
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)), PD_KERNEL_INVALID);
    assert_non_null(strstr(error, "ranks"));
    open_chain(&chain, &shapes[0], "cpu", "auto", 2, 2, SLICES);
    device = chain.rig.device;
    assert_int_equal(pd_buffer_create(device, PD_BUFFER_KV, 4096, &buffer), PD_KERNEL_INVALID);
    assert_non_null(strstr(pd_device_error(device), "ranks"));
    assert_int_equal(pd_graph_begin(device, &graph), PD_KERNEL_OK);
    assert_int_equal(pd_graph_end(graph), PD_KERNEL_INVALID);
    pd_graph_destroy(graph);
    /* graphs of other ranks, or with other operators */
    graph = chain.graphs[1];
    chain.graphs[1] = chain.graphs[0];
    assert_int_equal(pd_graph_join(device, chain.graphs, &none), PD_KERNEL_INVALID);
    assert_int_equal(pd_graph_begin(pd_device_rank(device, 1), &chain.graphs[1]), PD_KERNEL_OK);
    assert_int_equal(pd_graph_end(chain.graphs[1]), PD_KERNEL_OK);
    assert_int_equal(pd_graph_join(device, chain.graphs, &none), PD_KERNEL_INVALID);
    chain.graphs[1] = graph;
    /* a step that the checks refuse reaches no rank, and the next one runs */
    step = pd_rig_step(&chain.rig, 0, &wrong, 1, 0, 0);
    assert_int_equal(pd_graph_launch(chain.graph, step), PD_KERNEL_INVALID);
    wrong = 1;
    step = pd_rig_step(&chain.rig, 0, &wrong, 1, 0, 0);
    pd_rig_run(&chain.rig, chain.graph, step);
    pd_rig_close(&chain.rig);
}

static int fail_launch(struct pd_graph *graph, struct pd_step *step)
{
    (void)step;
    return pd_device_fail(graph->object.device, PD_KERNEL_NO_MEMORY, "broken on purpose");
}

static int fail_wait(struct pd_device *device, uint64_t number, int timeout_ms)
{
    (void)number;
    (void)timeout_ms;
    return pd_device_fail(device, PD_KERNEL_LOST, "broken on purpose");
}

/* Rank `rank` fails in one way or the other. The others, which may wait for it in the middle of the step,
 * are let go, and the group can be closed. */
static void check_loss(int rank, bool launch)
{
    static const int32_t token = 1;
    struct pd_backend broken = pd_backend_cpu;
    struct pd_step *step;
    struct chain chain;

    open_chain(&chain, &shapes[SHAPES - 1], "cpu", "auto", 3, 3, 1);
    if (launch)
        broken.launch = fail_launch;
    else
        broken.wait = fail_wait;
    pd_device_rank(chain.rig.device, rank)->backend = &broken;
    step = pd_rig_step(&chain.rig, 0, &token, 1, 0, 0);
    if (launch) {
        assert_int_equal(pd_graph_launch(chain.graph, step), PD_KERNEL_LOST);
    } else {
        assert_int_equal(pd_graph_launch(chain.graph, step), PD_KERNEL_OK);
        assert_int_equal(pd_step_wait(chain.rig.device, step->number, 1000), PD_KERNEL_LOST);
    }
    assert_non_null(strstr(pd_device_error(chain.rig.device), "broken on purpose"));
    assert_int_equal(pd_step_acquire(chain.rig.device, &step), PD_KERNEL_OK);
    pd_rig_add(&chain.rig, step, 0, &token, 1, 0, 0);
    assert_int_equal(pd_graph_launch(chain.graph, step), PD_KERNEL_LOST);
    pd_rig_close(&chain.rig);
}

static void test_a_rank_that_fails_loses_the_group(void **state)
{
    (void)state;
    check_loss(1, true);
    check_loss(2, true);
    check_loss(1, false);
}

/* Slices that cannot be cut are an error of the model's, not silently something else. */
static void test_slices_are_checked(void **state)
{
    struct pd_device_options options = pd_rig_options("cpu", "auto", 1);
    static const int wrong[] = {0, 3, 4, 16};
    struct pd_rig rig;

    (void)state;
    pd_rig_open(&rig, &options);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct pd_graph *graph = pd_rig_begin(&rig);

        pd_op_matmul_reduce(graph, pd_rig_weight(&rig, PD_F32, 8, 96, false, 1),
                            pd_rig_tensor(&rig, 8, 96), wrong[i], pd_rig_tensor(&rig, 8, 8));
        assert_int_equal(pd_graph_end(graph), PD_KERNEL_INVALID);
        pd_graph_destroy(graph);
    }
    pd_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number_of_ranks_computes_the_same_bits),
        cmocka_unit_test(test_gpus_compute_the_same_bits),
        cmocka_unit_test(test_slices_against_the_reference),
        cmocka_unit_test(test_ranks_that_do_not_divide_the_slices),
        cmocka_unit_test(test_steps_in_flight),
        cmocka_unit_test(test_what_a_group_refuses),
        cmocka_unit_test(test_a_rank_that_fails_loses_the_group),
        cmocka_unit_test(test_slices_are_checked),
    };

    if (&pd_backend_cuda != NULL) /* over the shim: all else runs without it */
        cmocka_set_test_filter("*gpus*");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
