/* The weights' fingerprint: its definition against a second implementation in Python, and what it
 * notices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/fingerprint.h"
#include "worker/model/parallel.h"

enum { PATTERN = 9 << 20 };

/* What `python3 t/oracle/fingerprint.py` prints. */
static const char known[] = "bd9ae97c94e5c9237a68a3864d70f523526785575bc1bb5bdcef75dbff59cc34";

static uint8_t *pattern;

static int make_pattern(void **state)
{
    (void)state;
    pattern = malloc(PATTERN);
    if (!pattern)
        return -1;
    for (size_t i = 0; i < PATTERN; i++)
        pattern[i] = (uint8_t)(i * 7 % 251);
    return 0;
}

static int free_pattern(void **state)
{
    (void)state;
    free(pattern);
    return 0;
}

static void add(struct pd_tensor_table *table, const char *name, enum pd_dtype type, int rank,
                const uint64_t *shape, const uint8_t *data)
{
    struct pd_file_tensor tensor = {.file = "x", .type = type, .data = data};

    assert_true(pd_tensor_set_name(&tensor, name, strlen(name)));
    assert_int_equal(pd_tensor_measure(&tensor, shape, rank, NULL), PD_OK);
    assert_int_equal(pd_tensor_table_add(table, &tensor, NULL), PD_OK);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct pd_file_tensor *)a)->name,
                  ((const struct pd_file_tensor *)b)->name);
}

/* The table of the known answer. Its tensors share bytes, which sealing would refuse: ordered by
 * hand. */
static struct pd_tensor_table known_table(void)
{
    static const uint64_t small[] = {4}, whole[] = {2048, 2048}, pieces[] = {2, PD_PIECE / 2},
                          a[] = {2, 3};
    struct pd_tensor_table table = {0};

    add(&table, "small", PD_F32, 1, small, pattern);
    add(&table, "whole", PD_Q8_0, 2, whole, pattern);
    add(&table, "pieces", PD_F16, 2, pieces, pattern);
    add(&table, "a", PD_BF16, 2, a, pattern + 5);
    qsort(table.tensors, table.count, sizeof(*table.tensors), compare_names);
    return table;
}

static int hash_piece(void *tree, size_t index, struct pd_error *error)
{
    return pd_weight_tree_hash(tree, index, error);
}

static void digest_of(const struct pd_tensor_table *table, int threads, uint8_t digest[PD_DIGEST])
{
    struct pd_weight_tree *tree;
    struct pd_tasks tasks = {.run = hash_piece};

    assert_int_equal(pd_weight_tree_create(table, &tree, NULL), PD_OK);
    tasks.count = pd_weight_tree_pieces(tree);
    tasks.context = tree;
    assert_int_equal(pd_tasks_run(&tasks, threads, NULL), PD_OK);
    assert_int_equal(pd_weight_tree_root(tree, digest, NULL), PD_OK);
    pd_weight_tree_destroy(tree);
}

static void test_known_answer(void **state)
{
    struct pd_tensor_table table = known_table();
    uint8_t digest[PD_DIGEST];
    char text[2 * PD_DIGEST + 1];

    (void)state;
    digest_of(&table, 1, digest);
    for (int i = 0; i < PD_DIGEST; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text, known);
    digest_of(&table, 7, digest);
    for (int i = 0; i < PD_DIGEST; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    assert_string_equal(text, known);
    pd_tensor_table_free(&table);
}

static void test_pieces_cover_every_byte_once(void **state)
{
    struct pd_tensor_table table = known_table();
    struct pd_weight_tree *tree;
    size_t piece = 0, bytes;

    (void)state;
    assert_int_equal(pd_weight_tree_create(&table, &tree, NULL), PD_OK);
    for (size_t i = 0; i < table.count; i++)
        for (size_t offset = 0; offset < table.tensors[i].bytes; offset += bytes) {
            assert_true(piece < pd_weight_tree_pieces(tree));
            assert_ptr_equal(pd_weight_tree_piece(tree, piece++, &bytes),
                             table.tensors[i].data + offset);
            assert_true(bytes > 0 && bytes <= PD_PIECE);
            assert_true(offset + bytes <= table.tensors[i].bytes);
        }
    assert_int_equal(piece, pd_weight_tree_pieces(tree));
    pd_weight_tree_destroy(tree);
    pd_tensor_table_free(&table);
}

/* Whatever changes in a table must change its digest. */
static void test_every_change_is_noticed(void **state)
{
    uint8_t before[PD_DIGEST], after[PD_DIGEST];
    struct pd_tensor_table table = known_table();
    struct pd_file_tensor *tensor = &table.tensors[1]; /* "pieces" */

    (void)state;
    digest_of(&table, 2, before);
#define NOTICED(change, undo)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        digest_of(&table, 2, after);                                                               \
        assert_memory_not_equal(before, after, PD_DIGEST);                                         \
        undo;                                                                                      \
    } while (0)
    NOTICED(pattern[0] ^= 1, pattern[0] ^= 1);
    NOTICED(pattern[tensor->bytes - 1] ^= 0x80, pattern[tensor->bytes - 1] ^= 0x80);
    NOTICED(tensor->name[5] = 'z', tensor->name[5] = 's');
    NOTICED(tensor->type = PD_BF16, tensor->type = PD_F16);
    NOTICED((tensor->shape[0] = 4, tensor->shape[1] /= 2),
            (tensor->shape[0] = 2, tensor->shape[1] *= 2));
    NOTICED(table.count--, table.count++);
#undef NOTICED
    digest_of(&table, 2, after);
    assert_memory_equal(before, after, PD_DIGEST);
    pd_tensor_table_free(&table);
}

/* ---- layout ------------------------------------------------------------------------------------
 */

static struct pd_model_config config;
static struct pd_rope rope;
static float frequency[4];
static enum pd_dtype kv_type;

static void layout(uint8_t digest[PD_DIGEST])
{
    assert_int_equal(pd_layout_digest(&config, &rope, frequency, kv_type, digest, NULL), PD_OK);
}

static void test_the_layout_notices_what_gives_kv_its_meaning(void **state)
{
    uint8_t before[PD_DIGEST], after[PD_DIGEST];
    int *const sizes[] = {&config.layers, &config.heads,  &config.kv_heads,     &config.head_dim,
                          &config.window, &config.hidden, &config.feed_forward, &config.vocabulary};

    (void)state;
    config = (struct pd_model_config){.architecture = "llama", .rope_dim = 8, .norm_eps = 1e-5f};
    layout(before);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        (*sizes[i])++;
        layout(after);
        assert_memory_not_equal(before, after, PD_DIGEST);
        (*sizes[i])--;
    }
#define NOTICED(change, undo)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        layout(after);                                                                             \
        assert_memory_not_equal(before, after, PD_DIGEST);                                         \
        undo;                                                                                      \
    } while (0)
    NOTICED(kv_type = PD_BF16, kv_type = PD_F32);
    NOTICED(rope.style = PD_ROPE_INTERLEAVED, rope.style = PD_ROPE_HALF);
    NOTICED(frequency[3] = 1, frequency[3] = 0);
    NOTICED(config.norm_eps = 1e-6f, config.norm_eps = 1e-5f);
    NOTICED(config.architecture[0] = 'x', config.architecture[0] = 'l');
#undef NOTICED
    strcpy(config.name, "another name, the same model");
    config.context = 99;
    layout(after);
    assert_memory_equal(before, after, PD_DIGEST);
}

/* ---- the threads -------------------------------------------------------------------------------
 */

enum { TASKS = 1000, BAD = 400 };

static _Atomic int runs[TASKS];
static int ticks;

static int count_run(void *context, size_t index, struct pd_error *error)
{
    runs[index]++;
    if (context && index == BAD)
        return pd_fail(error, PD_IO, "task %zu broke", index);
    return PD_OK;
}

static void count_tick(void *context)
{
    (void)context;
    ticks++; /* caller's thread only: a plain int, which the thread sanitizer watches */
}

static void test_each_task_runs_once(void **state)
{
    struct pd_tasks tasks = {.count = TASKS, .run = count_run, .tick = count_tick};
    struct pd_error error = {PD_OK, ""};

    (void)state;
    for (int threads = 0; threads <= 8; threads += 4) {
        memset((void *)runs, 0, sizeof(runs));
        assert_int_equal(pd_tasks_run(&tasks, threads, &error), PD_OK);
        for (int i = 0; i < TASKS; i++)
            assert_int_equal(runs[i], 1);
    }
    tasks.count = 0;
    assert_int_equal(pd_tasks_run(&tasks, 4, &error), PD_OK);
}

static void test_a_failure_ends_the_run(void **state)
{
    bool fails = true;
    struct pd_tasks tasks = {.count = TASKS, .run = count_run, .context = &fails};
    struct pd_error error = {PD_OK, ""};

    (void)state;
    memset((void *)runs, 0, sizeof(runs));
    assert_int_equal(pd_tasks_run(&tasks, 1, &error), PD_IO);
    assert_string_equal(error.text, "task 400 broke");
    for (int i = 0; i < TASKS; i++)
        assert_int_equal(runs[i], i <= BAD);
    assert_int_equal(pd_tasks_run(&tasks, 4, &error), PD_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answer),
        cmocka_unit_test(test_pieces_cover_every_byte_once),
        cmocka_unit_test(test_every_change_is_noticed),
        cmocka_unit_test(test_the_layout_notices_what_gives_kv_its_meaning),
        cmocka_unit_test(test_each_task_runs_once),
        cmocka_unit_test(test_a_failure_ends_the_run),
    };

    return cmocka_run_group_tests(tests, make_pattern, free_pattern);
}
