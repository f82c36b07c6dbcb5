/* The life of a device: options, descriptors, launches in flight, histories, checks, export. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/apart.h"
#include "kernels/backend.h"
#include "kernels/delay.h"
#include "t/unit/kernel_rig.h"

enum { COLS = 64 };

/* A model of one matrix: the logits of a token are its embedding times the head. Greedy, it maps
 * each token to a fixed next one, so a chain of steps has an answer that can be computed step by
 * step. */
struct chain {
    struct pd_rig rig;
    struct pd_graph *graph;
    struct pd_buffer *logits;
};

static void chain_open(struct chain *chain, const char *kind)
{
    struct pd_device_options options = pd_rig_options(kind, "auto", 2);
    struct pd_tensor x, rows, logits;
    struct pd_weight *table, *head;

    pd_rig_open(&chain->rig, &options);
    table = pd_rig_weight(&chain->rig, PD_F32, options.vocabulary, COLS, true, 1);
    head = pd_rig_weight(&chain->rig, PD_F32, options.vocabulary, COLS, false, 2);
    x = pd_rig_tensor(&chain->rig, options.max_tokens, COLS);
    rows = pd_rig_tensor(&chain->rig, options.max_seqs, COLS);
    logits = pd_rig_tensor(&chain->rig, options.max_seqs, options.vocabulary);
    chain->logits =
        pd_rig_pinned(&chain->rig, sizeof(float) * (size_t)(options.max_seqs * options.vocabulary));
    chain->graph = pd_rig_begin(&chain->rig);
    pd_op_embed(chain->graph, table, x);
    pd_op_publish(chain->graph, 1);
    pd_op_gather(chain->graph, x, rows);
    pd_op_matmul(chain->graph, head, rows, NULL, PD_EPILOGUE_NONE, true, logits);
    pd_op_read(chain->graph, logits, true, chain->logits);
    pd_op_sample(chain->graph, logits);
    pd_op_publish(chain->graph, 2);
    pd_rig_end(chain->graph);
}

static void each_kind(void (*test)(struct chain *chain))
{
    static const char *const kinds[] = {"reference", "cpu"};

    for (int i = 0; i < 2; i++) {
        struct chain chain;

        chain_open(&chain, kinds[i]);
        test(&chain);
        pd_rig_close(&chain.rig);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_kinds_and_options(void **state)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_device *device;
    char error[256];

    (void)state;
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)),
                     PD_KERNEL_UNSUPPORTED);
    assert_null(device);
    assert_non_null(strstr(error, "cuda"));
    options.kind = "abacus";
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)), PD_KERNEL_INVALID);
    assert_non_null(strstr(error, "abacus"));
    options = pd_rig_options("cpu", NULL, 1);
    options.block_size = 33;
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)), PD_KERNEL_INVALID);
    assert_non_null(strstr(error, "block_size"));
}

/* Samples `count` tokens in `slot` after token 7, waiting for each. */
static int32_t walk(struct chain *chain, int slot, int count)
{
    int32_t token = 7;

    for (int i = 0; i < count; i++) {
        struct pd_step *step = pd_rig_step(&chain->rig, slot, &token, 1, i, 0);

        pd_rig_run(&chain->rig, chain->graph, step);
        assert_int_equal(step->sample_fault[0], 0);
        token = step->sampled[0];
    }
    return token;
}

/* Step n + 1 is launched before step n is waited for; the device feeds itself. */
static void tokens_stay_on_the_device(struct chain *chain)
{
    enum { STEPS = 20 };
    int32_t expected = walk(chain, 3, STEPS);
    struct pd_step *step = NULL, *other;

    for (int i = 0; i < STEPS; i++) {
        int32_t start = i == 0 ? 7 : PD_TOKEN_OF_SLOT(5);

        step = pd_rig_step(&chain->rig, 5, &start, 1, i, 0);
        assert_int_equal(pd_graph_launch(chain->graph, step), PD_KERNEL_OK);
        if (i == 0)
            continue;
        assert_int_equal(pd_step_acquire(chain->rig.device, &other), PD_KERNEL_BUSY);
        assert_int_equal(pd_step_wait(chain->rig.device, step->number - 1, 60000), PD_KERNEL_OK);
    }
    assert_int_equal(step->number, 2 * STEPS);
    assert_int_equal(pd_step_wait(chain->rig.device, step->number, 60000), PD_KERNEL_OK);
    assert_int_equal(step->sampled[0], expected);
    assert_true(pd_device_progress(chain->rig.device) == (step->number << 16 | 2));
}

/* Rows go through norms and products apart, but through nothing that looks at other rows, and not from one operator
 * to the next where a row's output lies in another row's place. */
static void rows_go_apart(struct chain *chain)
{
    struct pd_rig *rig = &chain->rig;
    struct pd_weight *table = pd_rig_weight(rig, PD_F32, 300, COLS, true, 1);
    struct pd_weight *wide = pd_rig_weight(rig, PD_F32, 2 * COLS, COLS, false, 2);
    struct pd_weight *norm = pd_rig_weight(rig, PD_F32, 1, COLS, false, 3);
    struct pd_tensor x = pd_rig_tensor(rig, 96, COLS), y = pd_rig_tensor(rig, 96, COLS);
    struct pd_tensor z = pd_rig_tensor(rig, 96, 2 * COLS), over = x;
    struct pd_graph *graph = pd_rig_begin(rig);

    over.rows = 48;
    over.cols = 2 * COLS;
    pd_op_embed(graph, table, x);
    pd_op_publish(graph, 1);
    pd_op_embed(graph, table, x);
    pd_op_rmsnorm(graph, x, norm, 1e-5f, false, y);
    pd_op_matmul(graph, wide, y, NULL, PD_EPILOGUE_NONE, false, over);
    pd_op_matmul(graph, wide, y, NULL, PD_EPILOGUE_NONE, false, z);
    pd_op_gather(graph, x, pd_rig_tensor(rig, 16, COLS));
    pd_rig_end(graph);
    pd_apart_mark(graph);
    assert_int_equal(pd_apart_end(graph, 0), 1);
    assert_int_equal(pd_apart_end(graph, 1), 1);
    assert_int_equal(pd_apart_end(graph, 2), 4);
    assert_int_equal(pd_apart_end(graph, 4), 6);
    assert_int_equal(pd_apart_end(graph, 6), 6);
    pd_graph_destroy(graph);
}

/* A step that is left has sampled nothing, gives its descriptor back, and may be launched again. One that another is
 * behind runs to its end. */
static void steps_are_left(struct chain *chain)
{
    struct pd_device *device = chain->rig.device;
    int32_t start = 7, expected = walk(chain, 3, 1);
    struct pd_step *step, *next;

    assert_true(pd_device_cuts(device));
    for (int i = 0; i < 3; i++) {
        step = pd_rig_step(&chain->rig, 5, &start, 1, 0, 0);
        device->backend->cut(device, step->number); /* before it can begin */
        assert_int_equal(pd_graph_launch(chain->graph, step), PD_KERNEL_OK);
        assert_int_equal(pd_step_wait(device, step->number, 60000), PD_KERNEL_CUT);
        assert_true(pd_device_progress(device) >> 16 < step->number);
    }
    step = pd_rig_step(&chain->rig, 5, &start, 1, 0, 0);
    assert_int_equal(pd_graph_launch(chain->graph, step), PD_KERNEL_OK);
    next = pd_rig_step(&chain->rig, 3, &start, 1, 0, 8);
    assert_int_equal(pd_graph_launch(chain->graph, next), PD_KERNEL_OK);
    assert_true(pd_step_cut(device, step->number));     /* not the last */
    assert_true(pd_step_cut(device, next->number + 1)); /* not launched */
    assert_int_equal(pd_step_wait(device, step->number, 60000), PD_KERNEL_OK);
    assert_int_equal(step->sampled[0], expected);
    assert_int_equal(pd_step_wait(device, next->number, 60000), PD_KERNEL_OK);
    assert_int_equal(next->sampled[0], expected);
    assert_true(pd_step_cut(device, next->number)); /* too late */
    assert_int_equal(pd_step_wait(device, next->number, 60000), PD_KERNEL_OK);
    assert_true(pd_step_cut(device, next->number + 1)); /* nor now */
    assert_int_equal(walk(chain, 3, 1), expected);
}

/* A frequency penalty of 1000 forbids what was generated, so the answer tells what the history
 * holds. */
static void history_follows_the_launches(struct chain *chain)
{
    int32_t token = 7, first = walk(chain, 0, 1), written[3] = {first, first, first};
    struct pd_step *step = pd_rig_step(&chain->rig, 0, &token, 1, 3, 0);

    assert_int_equal(pd_history_write(chain->rig.device, 0, 0, written, 3), PD_KERNEL_OK);
    step->sample[0].frequency = 1000;
    step->sample[0].prompt = 0;
    pd_rig_run(&chain->rig, chain->graph, step);
    assert_int_not_equal(step->sampled[0], first);

    step = pd_rig_step(&chain->rig, 0, &token, 1, 3, 0); /* the same tokens as a prompt */
    step->sample[0].frequency = 1000;
    pd_rig_run(&chain->rig, chain->graph, step);
    assert_int_equal(step->sampled[0], first);

    step = pd_rig_step(&chain->rig, 0, &first, 1, 4, 0); /* embedding `first` notes it */
    step->sample[0].frequency = 1000;
    step->sample[0].prompt = 4;
    pd_rig_run(&chain->rig, chain->graph, step);
    step = pd_rig_step(&chain->rig, 0, &token, 1, 5, 0);
    step->sample[0].frequency = 1000;
    step->sample[0].prompt = 4;
    pd_rig_run(&chain->rig, chain->graph, step);
    assert_int_not_equal(step->sampled[0], first);

    assert_int_equal(pd_history_write(chain->rig.device, 16, 0, written, 1), PD_KERNEL_INVALID);
    assert_int_equal(pd_history_write(chain->rig.device, 0, 510, written, 3), PD_KERNEL_INVALID);
    written[1] = 300;
    assert_int_equal(pd_history_write(chain->rig.device, 0, 0, written, 3), PD_KERNEL_INVALID);
}

static void bad_steps_are_refused(struct chain *chain)
{
    struct pd_rig *rig = &chain->rig;
    int32_t tokens[3] = {1, 2, 3};
    struct pd_step *step;

#define REFUSED(change)                                                                            \
    do {                                                                                           \
        step = pd_rig_step(rig, 1, tokens, 3, 20, 2);                                              \
        change;                                                                                    \
        assert_int_equal(pd_graph_launch(chain->graph, step), PD_KERNEL_INVALID);                  \
        assert_string_not_equal(pd_device_error(rig->device), "");                                 \
    } while (0)

    REFUSED(step->token[1] = 300);
    REFUSED(step->token[1] = PD_TOKEN_OF_SLOT(16));
    REFUSED(step->position[2] = 21);
    REFUSED(step->position[0] = -1);
    REFUSED(step->context[0] = 513);
    REFUSED(step->length[0] = 4);
    REFUSED(step->first[0] = -1);
    REFUSED(step->sequence[0] = 1);
    REFUSED(step->kv_slot[0] = -1);
    REFUSED(step->blocks[0] = -1);
    REFUSED(step->tokens = 97);
    REFUSED(step->slot[0] = 16);
    REFUSED(step->sample_row[0] = 3);
    REFUSED(step->sample_slot[0] = -1);
    REFUSED(step->sample[0].history = 513);
    REFUSED(step->sample[0].prompt = -1);
    REFUSED(step->sample[0].logprobs = 22);
    REFUSED(step->sample[0].temperature = -1);
    REFUSED(step->sample[0].top_p = 2);
    REFUSED((step->sample[0].bias_count = 1, step->bias_token[0] = 300));
    REFUSED((step->sample[0].banned_first = 4095, step->sample[0].banned_count = 2));
    REFUSED(pd_rig_add(rig, step, 1, tokens, 1, 0, 0)); /* a slot twice */

    step = pd_rig_step(rig, 1, tokens, 3, 20, 2);
    pd_rig_run(rig, chain->graph, step);
    assert_int_equal(pd_graph_launch(chain->graph, step), PD_KERNEL_INVALID);
    assert_int_equal(pd_step_wait(rig->device, step->number + 1, 0), PD_KERNEL_INVALID);
}

static void shapes_are_refused(struct chain *chain)
{
    struct pd_rig *rig = &chain->rig;
    struct pd_tensor x = pd_rig_tensor(rig, 96, COLS), y = pd_rig_tensor(rig, 96, COLS + 32);
    struct pd_weight *square = pd_rig_weight(rig, PD_Q4_1, COLS, COLS, false, 3);
    struct pd_buffer *small = pd_rig_pinned(rig, 64);
    struct pd_graph *graph;

#define UNSOUND(call)                                                                              \
    do {                                                                                           \
        graph = pd_rig_begin(rig);                                                                 \
        assert_int_equal(call, PD_KERNEL_INVALID);                                                 \
        assert_int_equal(pd_graph_end(graph), PD_KERNEL_INVALID);                                  \
        pd_graph_destroy(graph);                                                                   \
    } while (0)

    UNSOUND(pd_op_matmul(graph, square, y, NULL, PD_EPILOGUE_NONE, false, x));
    UNSOUND(pd_op_matmul(graph, square, x, NULL, PD_EPILOGUE_NONE, false, y));
    UNSOUND(pd_op_matmul(graph, square, x, NULL, PD_EPILOGUE_NONE, false, x));
    UNSOUND(pd_op_matmul(graph, square, x, NULL, PD_EPILOGUE_SWIGLU, false, y));
    UNSOUND(pd_op_matmul(graph, square, x, square, PD_EPILOGUE_NONE, false, y));
    UNSOUND(pd_op_embed(graph, square, x));
    UNSOUND(pd_op_rmsnorm(graph, x, square, 1e-5f, false, x));
    UNSOUND(pd_op_sample(graph, x));
    UNSOUND(pd_op_read(graph, y, false, small));
    UNSOUND(pd_op_publish(graph, -1));
}

static void weights_are_refused(struct chain *chain)
{
    float values[64] = {0};
    struct pd_weight_source odd = {values, PD_Q4_1, 1};
    struct pd_weight_source pair[2] = {{values, PD_F32, 1}, {values, PD_F32, 2}};
    struct pd_weight *weight;

    assert_int_equal(
        pd_weight_create(chain->rig.device, PD_WEIGHT_ROWS, 33, &odd, 1, false, &weight),
        PD_KERNEL_INVALID);
    assert_int_equal(
        pd_weight_create(chain->rig.device, PD_WEIGHT_GATE_UP, 16, pair, 2, false, &weight),
        PD_KERNEL_INVALID);
    assert_null(weight);
}

/* The export is the pool itself, sealed in size. */
static void the_pool_is_exported(struct chain *chain)
{
    struct pd_buffer *buffer, *pinned = pd_rig_pinned(&chain->rig, 100);
    struct pd_export export;
    uint8_t *memory;

    assert_non_null(pd_buffer_host(pinned));
    assert_int_equal(pd_buffer_export(pinned, &export), PD_KERNEL_INVALID);
    assert_int_equal(pd_buffer_create(chain->rig.device, PD_BUFFER_KV, 10000, &buffer),
                     PD_KERNEL_OK);
    assert_null(pd_buffer_host(buffer));
    assert_int_equal(pd_buffer_export(buffer, &export), PD_KERNEL_OK);
    assert_int_equal(export.kind, PD_EXPORT_MEMFD);
    assert_true(export.size >= 10000);
    assert_int_equal(ftruncate(export.fd, 4096), -1);
    memory = mmap(NULL, export.size, PROT_READ, MAP_SHARED, export.fd, 0);
    assert_true(memory != MAP_FAILED);
    for (size_t i = 0; i < export.size; i++)
        assert_int_equal(memory[i], 0);
    munmap(memory, export.size);
    close(export.fd);
    pd_buffer_destroy(buffer);
}

#define EACH(name)                                                                                 \
    static void test_##name(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        each_kind(name);                                                                           \
    }

EACH(tokens_stay_on_the_device)
EACH(steps_are_left)
EACH(rows_go_apart)
EACH(history_follows_the_launches)
EACH(bad_steps_are_refused)
EACH(shapes_are_refused)
EACH(weights_are_refused)
EACH(the_pool_is_exported)

static uint64_t clock_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Two threads on one core stand in each other's way, in every step; nobody counts more than there was. */
static void delays_are_seen(struct chain *chain)
{
    uint64_t before = clock_ns(), delay = 0;
    struct pd_delay own = {0};

    (void)pd_delay_ns(&own);
    for (int i = 0; own.file > 0 && i < 5000 && delay == 0; i++) {
        walk(chain, 1, 2);
        delay = pd_device_delay_ns(chain->rig.device);
    }
    assert_int_equal(delay > 0, own.file > 0); /* where the system tells */
    assert_true(delay <= 2 * (clock_ns() - before));
    pd_delay_close(&own);
}

static void test_time_lost_to_other_threads(void **state)
{
    cpu_set_t all, one;
    int core = sched_getcpu();

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)(core < 0 ? 0 : core), &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    each_kind(delays_are_seen);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_and_options),
        cmocka_unit_test(test_tokens_stay_on_the_device),
        cmocka_unit_test(test_steps_are_left),
        cmocka_unit_test(test_rows_go_apart),
        cmocka_unit_test(test_history_follows_the_launches),
        cmocka_unit_test(test_bad_steps_are_refused),
        cmocka_unit_test(test_shapes_are_refused),
        cmocka_unit_test(test_weights_are_refused),
        cmocka_unit_test(test_the_pool_is_exported),
        cmocka_unit_test(test_time_lost_to_other_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
