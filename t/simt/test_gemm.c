/* Which of the library's algorithms serves a product, the file that remembers it, and what of a product is
 * left to the library: over the shim, whose library says what a test tells it to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cuda/gemm.h"
#include "t/simt/control.h"
#include "t/unit/kernel_rig.h"

enum { ROWS = 24, COLS = 64, TOKENS = 12 };

#define KEY "SIMT shim on the host sm_00 cublasLt 130000"

static char directory[64], path[128];

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/pd-gemm-XXXXXX");
    assert_non_null(mkdtemp(directory));
    assert_true(pd_cuda_algorithms_path(directory, KEY, path, sizeof(path)));
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory); /* nothing else was left there */
}

static struct pd_cuda_shape shape_of(int number)
{
    return (struct pd_cuda_shape){8 + number, 64, 16, 8 + number, (uint32_t)(number % 7)};
}

static struct pd_cuda_algorithm algorithm_of(int number)
{
    return (struct pd_cuda_algorithm){{(uint64_t)number, 1, 2, 3, 4, 5, 6, ~(uint64_t)number}};
}

static void fill(struct pd_cuda_algorithms *table, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        struct pd_cuda_shape shape = shape_of(i);
        struct pd_cuda_algorithm algorithm = algorithm_of(i);

        pd_cuda_algorithms_note(table, &shape, &algorithm);
    }
}

static bool has(struct pd_cuda_algorithms *table, int number)
{
    struct pd_cuda_shape shape = shape_of(number);
    struct pd_cuda_algorithm algorithm = algorithm_of(number);
    struct pd_cuda_chosen *chosen = pd_cuda_algorithms_find(table, &shape);

    return chosen != NULL && memcmp(&chosen->algorithm, &algorithm, sizeof(algorithm)) == 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void test_a_full_table_forgets_its_oldest(void **state)
{
    static struct pd_cuda_algorithms table;

    (void)state;
    fill(&table, 0, PD_CUDA_ALGORITHMS);
    fill(&table, 5, 1); /* again: in its own place */
    assert_int_equal(table.count, PD_CUDA_ALGORITHMS);
    for (int i = 0; i < PD_CUDA_ALGORITHMS; i++)
        assert_true(has(&table, i));
    fill(&table, PD_CUDA_ALGORITHMS, 2);
    for (int i = 0; i < PD_CUDA_ALGORITHMS + 2; i++)
        assert_true(has(&table, i) == (i > 1));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool reads(const uint8_t *bytes, size_t count, const char *key, const char *why)
{
    static struct pd_cuda_algorithms table;
    char said[128] = "";
    bool good;

    table.count = 0;
    good = pd_cuda_algorithms_read(&table, key, bytes, count, said, sizeof(said));
    assert_string_equal(said, why);
    assert_int_equal(table.count > 0, good);
    return good;
}

/* As a forger who knows the sum. */
static void sum(uint8_t *bytes, size_t count)
{
    uint64_t value = 14695981039346656037u;

    for (size_t i = 0; i < count - 8; i++)
        value = (value ^ bytes[i]) * 1099511628211u;
    memcpy(bytes + count - 8, &value, 8);
}

static void test_bytes_are_taken_whole_or_not_at_all(void **state)
{
    static struct pd_cuda_algorithms table, back;
    static uint8_t bytes[PD_CUDA_ALGORITHMS_BYTES + 1];
    char why[128];
    size_t count;

    (void)state;
    fill(&table, 0, 3);
    count = pd_cuda_algorithms_write(&table, KEY, bytes);
    assert_int_equal(count, 144 + 3 * 88 + 8);
    assert_true(pd_cuda_algorithms_read(&back, KEY, bytes, count, why, sizeof(why)));
    assert_true(back.count == 3 && has(&back, 0) && has(&back, 1) && has(&back, 2));
    assert_false(back.chosen[0].trusted);
    assert_false(reads(bytes, count, "another GPU", "it is of another GPU or library"));
    for (size_t i = 0; i < count; i++) {
        bytes[i] ^= 0x10;
        assert_false(pd_cuda_algorithms_read(&back, KEY, bytes, count, why, sizeof(why)));
        bytes[i] ^= 0x10;
    }
    for (size_t i = 0; i < count; i++)
        assert_false(pd_cuda_algorithms_read(&back, KEY, bytes, i, why, sizeof(why)));
    assert_false(reads(bytes, count + 1, KEY, "its length is wrong"));
    assert_false(reads(bytes, 151, KEY, "it is too short"));
    bytes[count - 1] ^= 1;
    assert_false(reads(bytes, count, KEY, "its sum is wrong"));
}

static void test_a_forged_shape_is_refused(void **state)
{
    static const struct {
        size_t at; /* of a record */
        int32_t value;
    } forged[] = {{0, 0},       {0, -8}, {0, 1 << 25},  {4, 0},        {4, INT32_MIN}, {8, -1},
                  {8, 1 << 25}, {12, 7}, {12, 1 << 25}, {16, 1 << 16}, {16, -1},       {20, 1}};
    static struct pd_cuda_algorithms table;
    static uint8_t bytes[PD_CUDA_ALGORITHMS_BYTES];
    size_t count;

    (void)state;
    fill(&table, 0, 2);
    for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++) {
        count = pd_cuda_algorithms_write(&table, KEY, bytes);
        memcpy(bytes + 144 + 88 + forged[i].at, &forged[i].value, 4);
        sum(bytes, count);
        assert_false(reads(bytes, count, KEY, "it has a shape that no product has"));
    }
    /* More than a table holds, as many bytes as it says. */
    fill(&table, 2, PD_CUDA_ALGORITHMS - 2);
    count = pd_cuda_algorithms_write(&table, KEY, bytes);
    assert_int_equal(count, sizeof(bytes));
    assert_true(reads(bytes, count, KEY, ""));
    memcpy(bytes + 136, &(uint32_t){PD_CUDA_ALGORITHMS + 1}, 4);
    sum(bytes, count);
    assert_false(reads(bytes, count, KEY, "its length is wrong"));
}

/* ---- the file -------------------------------------------------------------------------------- */

static void test_a_file_keeps_what_others_added(void **state)
{
    static struct pd_cuda_algorithms one, other, all;
    char why[128] = "", folder[256];

    (void)state;
    assert_non_null(strstr(path, "/SIMT-shim-on-the-host-sm_00-cublasLt-130000.algorithms"));
    assert_true(pd_cuda_algorithms_load(&all, KEY, path, why, sizeof(why)));
    assert_int_equal(all.count, 0);
    fill(&one, 0, 2);
    fill(&other, 1, 3);
    assert_true(pd_cuda_algorithms_save(&one, KEY, path, why, sizeof(why)));
    assert_true(pd_cuda_algorithms_save(&other, KEY, path, why, sizeof(why)));
    assert_true(pd_cuda_algorithms_load(&all, KEY, path, why, sizeof(why)));
    assert_int_equal(all.count, 4);
    for (int i = 0; i < 4; i++)
        assert_true(has(&all, i));
    unlink(path);

    assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for whoever would write */
    assert_false(pd_cuda_algorithms_load(&all, KEY, path, why, sizeof(why)));
    assert_string_equal(why, "it is too short");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(pd_cuda_algorithms_load(&all, KEY, path, why, sizeof(why)));
    assert_non_null(strstr(why, "it cannot be read: "));
    assert_false(pd_cuda_algorithms_save(&all, KEY, path, why, sizeof(why)));
    assert_non_null(strstr(why, "it cannot be written: "));
    rmdir(path);
    snprintf(folder, sizeof(folder), "%s/none/file", directory);
    assert_false(pd_cuda_algorithms_save(&all, KEY, folder, why, sizeof(why)));
    assert_non_null(strstr(why, "No such file"));
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct bench {
    struct pd_cuda_runtime *runtime;
    struct pd_cuda_gemm_chooser *chooser;
    struct pd_cuda_product product;
    struct pd_simt_gemms before;
    char told[512];
};

static void open_chooser(struct bench *bench, const char *where)
{
    bench->chooser = pd_cuda_gemm_open(bench->runtime, where);
    assert_non_null(bench->chooser);
    bench->before = *pd_simt_gemms();
    pd_cuda_gemm_tell(bench->chooser, bench->told, sizeof(bench->told));
}

static void *allocate(struct bench *bench, size_t bytes)
{
    void *memory;

    assert_int_equal(pd_cuda_allocate(bench->runtime, bytes, &memory), 0);
    return memory;
}

static void open_bench(struct bench *bench, const char *where)
{
    char error[128];

    assert_int_equal(pd_cuda_open(0, NULL, &bench->runtime, error, sizeof(error)), 0);
    bench->product = (struct pd_cuda_product){
        .weight = allocate(bench, 2 * ROWS * COLS),
        .x = allocate(bench, 2 * TOKENS * COLS),
        .out = allocate(bench, 4 * ROWS * TOKENS),
        .rows = ROWS,
        .cols = COLS,
        .tokens = TOKENS,
        .stride = ROWS,
    };
    pd_cuda_declare(bench->runtime,
                    (const void *[]){bench->product.weight, bench->product.x, bench->product.out},
                    3);
    open_chooser(bench, where);
}

static void close_bench(struct bench *bench)
{
    pd_cuda_gemm_close(bench->chooser);
    pd_cuda_free(bench->runtime, (void *)bench->product.weight);
    pd_cuda_free(bench->runtime, (void *)bench->product.x);
    pd_cuda_free(bench->runtime, bench->product.out);
    pd_cuda_close(bench->runtime);
}

/* Of this bench: how often it asked the library for algorithms, tried one, multiplied, and with which. */
static void expect(const struct bench *bench, long asked, long timed, long run, long last)
{
    const struct pd_simt_gemms *now = pd_simt_gemms();

    assert_int_equal(now->asked - bench->before.asked, asked);
    assert_int_equal(now->timed - bench->before.timed, timed);
    assert_int_equal(now->run - bench->before.run, run);
    assert_int_equal(now->last, last);
}

static void multiply(struct bench *bench, bool recording)
{
    assert_int_equal(pd_cuda_gemm_multiply(bench->chooser, &bench->product, recording), 0);
}

static void test_the_quickest_is_chosen_once_for_a_shape(void **state)
{
    struct bench bench;

    (void)state;
    pd_simt_gemms()->quickest = 2;
    open_bench(&bench, NULL);
    assert_string_equal(bench.told, "");
    multiply(&bench, true); /* nothing is timed in a recording, and nothing noted */
    expect(&bench, 1, 0, 1, 0);
    multiply(&bench, false);
    expect(&bench, 2, 3, 2, 2);
    multiply(&bench, false);
    multiply(&bench, true);
    expect(&bench, 2, 3, 4, 2);
    bench.product.tokens--; /* another shape, and each of the next */
    multiply(&bench, false);
    bench.product.accumulate = true;
    multiply(&bench, false);
    bench.product.out += 4; /* less aligned */
    bench.product.rows -= 4;
    bench.product.tokens--;
    multiply(&bench, false);
    bench.product.out -= 4;
    multiply(&bench, false);
    expect(&bench, 6, 15, 8, 2);
    pd_simt_gemms()->no_memory = true; /* the library's own first guess */
    bench.product.tokens--;
    multiply(&bench, false);
    expect(&bench, 7, 16, 9, 0);
    pd_simt_gemms()->no_memory = false;
    pd_simt_gemms()->offers = 0;
    bench.product.tokens--;
    assert_int_equal(pd_cuda_gemm_multiply(bench.chooser, &bench.product, false),
                     PD_CUDA_NO_ALGORITHM);
    expect(&bench, 8, 16, 9, 0);
    pd_simt_gemms()->offers = 3;
    pd_simt_gemms()->quickest = 1;
    close_bench(&bench);
}

static void put(const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void test_the_next_process_need_not_choose(void **state)
{
    static struct pd_cuda_algorithms table;
    char expected[512], why[128];
    struct bench bench;

    (void)state;
    open_bench(&bench, directory);
    snprintf(expected, sizeof(expected), "; 0 algorithms of %s", path);
    assert_string_equal(bench.told, expected);
    multiply(&bench, false);
    expect(&bench, 1, 3, 1, 1);
    pd_cuda_gemm_close(bench.chooser);
    open_chooser(&bench, directory);
    snprintf(expected, sizeof(expected), "; 1 algorithms of %s", path);
    assert_string_equal(bench.told, expected);
    multiply(&bench, true);
    expect(&bench, 0, 0, 1, 1);
    pd_cuda_gemm_close(bench.chooser);

    /* Eight words that the library has never heard of are not given to it to run. */
    assert_true(pd_cuda_algorithms_load(&table, KEY, path, why, sizeof(why)));
    table.chosen[0].algorithm = algorithm_of(77);
    unlink(path);
    assert_true(pd_cuda_algorithms_save(&table, KEY, path, why, sizeof(why)));
    open_chooser(&bench, directory);
    multiply(&bench, false);
    expect(&bench, 1, 3, 1, 1);
    pd_cuda_gemm_close(bench.chooser);

    put("damaged", 7);
    open_chooser(&bench, directory);
    snprintf(expected, sizeof(expected), "; %s is not used: it is too short", path);
    assert_string_equal(bench.told, expected);
    multiply(&bench, false); /* and is made anew */
    expect(&bench, 1, 3, 1, 1);
    pd_cuda_gemm_close(bench.chooser);
    open_chooser(&bench, directory);
    multiply(&bench, false);
    expect(&bench, 0, 0, 1, 1);
    close_bench(&bench);
}

/* ---- fused ----------------------------------------------------------------------------------- */

/* Q, K and V with a bias, of these types, on so many tokens: what the library was asked for. */
static struct pd_simt_gemms ask(const enum pd_dtype types[3], enum pd_epilogue epilogue, int first)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_weight_source sources[3];
    struct pd_simt_gemms before, now;
    struct pd_weight *weight, *bias;
    struct pd_tensor in, out;
    struct pd_graph *graph;
    int32_t tokens[TOKENS] = {0};
    struct pd_rig rig;

    pd_rig_open(&rig, &options);
    for (int i = 0; i < 3; i++)
        sources[i] = (struct pd_weight_source){.type = types[i],
                                               .rows = i == 0 ? first : 16,
                                               .data = pd_rig_matrix(types[i], 24, 256, 1)};
    assert_int_equal(pd_weight_create(rig.device, PD_WEIGHT_ROWS, 256, sources, 3, false, &weight),
                     PD_KERNEL_OK);
    bias = pd_rig_weight(&rig, PD_F32, first + 32, 1, false, 8);
    in = pd_rig_tensor(&rig, options.max_tokens, 256);
    out = pd_rig_tensor(&rig, options.max_tokens, first + 32);
    graph = pd_rig_begin(&rig);
    pd_op_matmul(graph, weight, in, bias, epilogue, false, out);
    pd_rig_end(graph);
    before = *pd_simt_gemms();
    pd_rig_run(&rig, graph, pd_rig_step(&rig, 0, tokens, TOKENS, 0, 0));
    now = *pd_simt_gemms();
    pd_rig_close(&rig);
    for (int i = 0; i < 3; i++)
        free((void *)sources[i].data);
    now.run -= before.run;
    now.biases -= before.biases;
    now.accumulated -= before.accumulated;
    return now;
}

static void test_sources_of_one_format_are_one_product(void **state)
{
    static const struct {
        enum pd_dtype types[3];
        enum pd_epilogue epilogue;
        int first;
        long run, biases, accumulated;
    } cases[] = {
        {{PD_BF16, PD_BF16, PD_BF16}, PD_EPILOGUE_NONE, 24, 1, 1, 0},
        {{PD_F16, PD_F16, PD_F16}, PD_EPILOGUE_ADD, 24, 1, 0, 1}, /* the own kernel adds the bias */
        {{PD_Q8_0, PD_Q8_0, PD_Q8_0}, PD_EPILOGUE_NONE, 24, 1, 1, 0},
        {{PD_Q4_K, PD_Q4_0, PD_Q6_K}, PD_EPILOGUE_NONE, 24, 2, 2, 0}, /* W4 and W8 */
        {{PD_Q4_K, PD_Q6_K, PD_Q6_K}, PD_EPILOGUE_NONE, 22, 2, 1, 0}, /* 22 floats on: 8 bytes */
        {{PD_F16, PD_BF16, PD_F16}, PD_EPILOGUE_NONE, 24, 3, 3, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pd_simt_gemms asked = ask(cases[i].types, cases[i].epilogue, cases[i].first);

        if (asked.run != cases[i].run || asked.biases != cases[i].biases ||
            asked.accumulated != cases[i].accumulated)
            fail_msg("case %zu: %ld products, %ld biases, %ld residuals", i, asked.run,
                     asked.biases, asked.accumulated);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_table_forgets_its_oldest),
        cmocka_unit_test(test_bytes_are_taken_whole_or_not_at_all),
        cmocka_unit_test(test_a_forged_shape_is_refused),
        cmocka_unit_test(test_a_file_keeps_what_others_added),
        cmocka_unit_test(test_the_quickest_is_chosen_once_for_a_shape),
        cmocka_unit_test(test_the_next_process_need_not_choose),
        cmocka_unit_test(test_sources_of_one_format_are_one_product),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
