/* The block pool against a plain model of it: every answer of a long random run is checked by
 * counting, not by a second implementation of the same tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "worker/kv/block_pool.h"

enum { BLOCKS = 70, SIZE = 8, HOLDERS = 12, DEEP = 9 };

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

static struct pd_block_pool *make_pool(int64_t blocks, bool caching)
{
    struct pd_block_pool_options options = {blocks, SIZE, caching};
    struct pd_block_pool *pool;

    assert_int_equal(pd_block_pool_create(&options, &pool, NULL), PD_OK);
    return pool;
}

static struct pd_block_counts counts_of(const struct pd_block_pool *pool)
{
    struct pd_block_counts counts;

    pd_block_pool_count(pool, &counts);
    return counts;
}

/* The 8 tokens of the block that `letter` stands for. */
static void spell(const char *letters, int32_t *tokens)
{
    for (size_t i = 0; i < strlen(letters); i++)
        for (int j = 0; j < SIZE; j++)
            tokens[i * SIZE + (size_t)j] = letters[i] * 100 + j;
}

/* Holds and publishes the prompt `letters`; returns the table's length. */
static size_t store(struct pd_block_pool *pool, const char *letters, int32_t *table)
{
    int32_t tokens[DEEP * SIZE];
    size_t count = strlen(letters), have;
    pd_prefix prefix;

    spell(letters, tokens);
    have = pd_block_pool_match(pool, tokens, count * SIZE, table, &prefix);
    assert_true(pd_block_pool_alloc(pool, count - have, have ? table[have - 1] : PD_NO_BLOCK,
                                    table + have));
    for (size_t i = have; i < count; i++)
        prefix = pd_block_pool_publish(pool, prefix, tokens + i * SIZE, table[i]);
    return count;
}

static size_t cached_length(struct pd_block_pool *pool, const char *letters)
{
    int32_t tokens[DEEP * SIZE], table[DEEP];
    pd_prefix prefix;
    size_t found;

    spell(letters, tokens);
    found = pd_block_pool_match(pool, tokens, strlen(letters) * SIZE, table, &prefix);
    pd_block_pool_release(pool, table, found);
    return found;
}

/* ---- single facts ---------------------------------------------------------------------------- */

static void test_all_or_nothing(void **state)
{
    struct pd_block_pool *pool = make_pool(5, true);
    int32_t blocks[6];

    (void)state;
    assert_false(pd_block_pool_alloc(pool, 6, PD_NO_BLOCK, blocks));
    assert_int_equal(counts_of(pool).available, 5);
    assert_true(pd_block_pool_alloc(pool, 5, PD_NO_BLOCK, blocks));
    assert_false(pd_block_pool_alloc(pool, 1, PD_NO_BLOCK, blocks + 5));
    assert_true(pd_block_pool_alloc(pool, 0, PD_NO_BLOCK, blocks + 5));
    pd_block_pool_release(pool, blocks, 5);
    assert_int_equal(counts_of(pool).available, 5);
    pd_block_pool_destroy(pool);
}

static void test_prefixes_are_shared_without_a_copy(void **state)
{
    struct pd_block_pool *pool = make_pool(10, true);
    int32_t first[4], second[4];

    (void)state;
    store(pool, "abcd", first);
    store(pool, "abxy", second);
    assert_int_equal(first[0], second[0]);
    assert_int_equal(first[1], second[1]);
    assert_int_not_equal(first[2], second[2]);
    assert_int_equal(pd_block_pool_references(pool, first[0]), 2);
    assert_int_equal(counts_of(pool).available, 4);
    pd_block_pool_release(pool, first, 4);
    assert_int_equal(pd_block_pool_references(pool, second[1]), 1);
    assert_int_equal(counts_of(pool).available, 6);
    pd_block_pool_release(pool, second, 4);
    assert_int_equal(counts_of(pool).available, 10);
    assert_int_equal(counts_of(pool).cached, 6);
    pd_block_pool_destroy(pool);
}

static void test_a_block_alone_is_not_a_prefix(void **state)
{
    struct pd_block_pool *pool = make_pool(10, true);
    int32_t table[4];

    (void)state;
    pd_block_pool_release(pool, table, store(pool, "abc", table));
    assert_int_equal(cached_length(pool, "abc"), 3);
    assert_int_equal(cached_length(pool, "b"), 0);
    assert_int_equal(cached_length(pool, "acb"), 1);
    assert_int_equal(cached_length(pool, "aab"), 1);
    pd_block_pool_destroy(pool);
}

static void test_the_end_of_a_prompt_is_evicted_first(void **state)
{
    struct pd_block_pool *pool = make_pool(6, true);
    int32_t table[4], more[4];

    (void)state;
    pd_block_pool_release(pool, table, store(pool, "abc", table));
    pd_block_pool_release(pool, table, store(pool, "xyz", table));
    assert_int_equal(cached_length(pool, "abc"), 3); /* used last, so x y z is older now */
    assert_true(pd_block_pool_alloc(pool, 2, PD_NO_BLOCK, more));
    assert_int_equal(cached_length(pool, "abc"), 3);
    assert_int_equal(cached_length(pool, "xyz"), 1);
    assert_int_equal(counts_of(pool).evictions, 2);
    pd_block_pool_release(pool, more, 2);
    pd_block_pool_destroy(pool);
}

static void test_free_blocks_go_before_cached_ones(void **state)
{
    struct pd_block_pool *pool = make_pool(6, true);
    int32_t table[4], more[4];

    (void)state;
    pd_block_pool_release(pool, table, store(pool, "abc", table));
    assert_true(pd_block_pool_alloc(pool, 3, PD_NO_BLOCK, more));
    assert_int_equal(cached_length(pool, "abc"), 3);
    assert_int_equal(counts_of(pool).evictions, 0);
    pd_block_pool_destroy(pool);
}

static void test_without_caching_nothing_is_found(void **state)
{
    struct pd_block_pool *pool = make_pool(6, false);
    int32_t table[4];

    (void)state;
    pd_block_pool_release(pool, table, store(pool, "abc", table));
    assert_int_equal(cached_length(pool, "abc"), 0);
    assert_int_equal(counts_of(pool).cached, 0);
    pd_block_pool_destroy(pool);
}

static void test_forgotten_blocks_are_not_matched(void **state)
{
    struct pd_block_pool *pool = make_pool(6, true);
    int32_t table[4];

    (void)state;
    store(pool, "abc", table);
    pd_block_pool_forget(pool, table[1]);
    pd_block_pool_forget(pool, table[1]);
    assert_int_equal(cached_length(pool, "abc"), 1);
    pd_block_pool_release(pool, table, 3);
    assert_int_equal(counts_of(pool).available, 6);
    assert_int_equal(counts_of(pool).cached, 2);
    pd_block_pool_forget(pool, table[0]);
    assert_int_equal(cached_length(pool, "abc"), 0);
    assert_int_equal(counts_of(pool).available, 6);
    pd_block_pool_destroy(pool);
}

static void test_a_table_grows_where_it_ends(void **state)
{
    struct pd_block_pool *pool = make_pool(20, true);
    int32_t first[4], second[4], more[3];

    (void)state;
    assert_true(pd_block_pool_alloc(pool, 4, PD_NO_BLOCK, first));
    assert_true(pd_block_pool_alloc(pool, 4, PD_NO_BLOCK, second));
    pd_block_pool_release(pool, first, 4);
    assert_true(
        pd_block_pool_alloc(pool, 3, second[3], more)); /* though the hole is the better fit */
    for (int i = 0; i < 3; i++)
        assert_int_equal(more[i], second[3] + 1 + i);
    pd_block_pool_destroy(pool);
}

static void test_the_shortest_hole_is_taken(void **state)
{
    struct pd_block_pool *pool = make_pool(20, true);
    int32_t all[20], got[3];

    (void)state;
    assert_true(pd_block_pool_alloc(pool, 20, PD_NO_BLOCK, all));
    pd_block_pool_release(pool, all + 1, 5);  /* 1 to 5 */
    pd_block_pool_release(pool, all + 8, 3);  /* 8 to 10 */
    pd_block_pool_release(pool, all + 13, 4); /* 13 to 16 */
    assert_true(pd_block_pool_alloc(pool, 3, PD_NO_BLOCK, got));
    for (int i = 0; i < 3; i++)
        assert_int_equal(got[i], 8 + i);
    pd_block_pool_destroy(pool);
}

static void test_hopeless_sizes_are_refused(void **state)
{
    struct pd_block_pool_options none = {0, SIZE, true}, huge = {INT64_C(1) << 40, SIZE, true};
    struct pd_block_pool *pool;

    (void)state;
    assert_int_equal(pd_block_pool_create(&none, &pool, NULL), PD_INVALID);
    assert_int_equal(pd_block_pool_create(&huge, &pool, NULL), PD_INVALID);
    assert_null(pool);
}

/* ---- a long random run ----------------------------------------------------------------------- */

struct holder {
    int32_t tokens[DEEP * SIZE], table[DEEP];
    size_t count;
};

static struct {
    struct pd_block_pool *pool;
    struct holder holders[HOLDERS];
    uint32_t references[BLOCKS];
    bool published[BLOCKS];
    int32_t content[BLOCKS][DEEP * SIZE]; /* the whole prefix whose end a block holds */
    size_t depth[BLOCKS];
    int32_t lru[BLOCKS];
    size_t lru_count;
    pd_prefix last_name;
} model;

static size_t lru_find(int32_t block)
{
    for (size_t i = 0; i < model.lru_count; i++)
        if (model.lru[i] == block)
            return i;
    return BLOCKS;
}

static void lru_drop(size_t at)
{
    assert_true(at < model.lru_count);
    memmove(model.lru + at, model.lru + at + 1, (--model.lru_count - at) * sizeof(*model.lru));
}

static bool shadow_free(int32_t block)
{
    return model.references[block] == 0 && !model.published[block];
}

static size_t shadow_free_count(void)
{
    size_t count = 0;

    for (int32_t i = 0; i < BLOCKS; i++)
        count += shadow_free(i);
    return count;
}

static int longest_first(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

/* Fewest runs of free blocks that hold `need`, when those behind `after` come for nothing. */
static size_t fewest_runs(size_t need, int32_t after)
{
    bool taken[BLOCKS] = {false};
    int lengths[BLOCKS + 1], runs = 0;
    size_t used = 0;

    for (int32_t i = after + 1; after >= 0 && need > 0 && i < BLOCKS && shadow_free(i); i++) {
        taken[i] = true;
        need--;
    }
    for (int32_t i = 0; i < BLOCKS; i++) {
        if (!shadow_free(i) || taken[i])
            continue;
        if (runs == 0 || i == 0 || !shadow_free(i - 1) || taken[i - 1])
            lengths[runs++] = 0;
        lengths[runs - 1]++;
    }
    qsort(lengths, (size_t)runs, sizeof(*lengths), longest_first);
    for (int i = 0; need > 0; i++, used++) {
        assert_true(i < runs);
        need -= (size_t)lengths[i] < need ? (size_t)lengths[i] : need;
    }
    return used;
}

static size_t count_runs(const int32_t *blocks, size_t count, int32_t after)
{
    size_t runs = 0;

    for (size_t i = 0; i < count; i++)
        if (i == 0 ? after < 0 || blocks[0] != after + 1 : blocks[i] != blocks[i - 1] + 1)
            runs++;
    return runs;
}

static bool model_alloc(size_t count, int32_t after, int32_t *blocks)
{
    bool fits = count <= shadow_free_count() + model.lru_count;
    size_t fewest;

    assert_int_equal(pd_block_pool_alloc(model.pool, count, after, blocks), fits);
    if (!fits)
        return false;
    while (shadow_free_count() < count) { /* exactly the oldest ones, and no more than needed */
        model.published[model.lru[0]] = false;
        lru_drop(0);
    }
    fewest = fewest_runs(count, after);
    assert_int_equal(count_runs(blocks, count, after), fewest);
    for (size_t i = 0; i < count; i++) {
        assert_true(blocks[i] >= 0 && blocks[i] < BLOCKS);
        assert_true(shadow_free(blocks[i]));
        model.references[blocks[i]] = 1;
    }
    return true;
}

static void start_holder(struct holder *holder)
{
    size_t count = 1 + draw(DEEP), have;
    pd_prefix prefix;

    /* Few kinds of block, so that prompts share and fork. */
    for (size_t i = 0; i < count; i++)
        for (int j = 0; j < SIZE; j++)
            holder->tokens[i * SIZE + (size_t)j] = j == SIZE - 1 ? (int32_t)draw(2) : 7;
    have = pd_block_pool_match(model.pool, holder->tokens, count * SIZE, holder->table, &prefix);
    for (size_t i = 0; i < have; i++) {
        int32_t block = holder->table[i];

        assert_true(model.published[block]);
        assert_int_equal(model.depth[block], i + 1);
        assert_memory_equal(model.content[block], holder->tokens,
                            (i + 1) * SIZE * sizeof(*holder->tokens));
        if (model.references[block]++ == 0)
            lru_drop(lru_find(block));
    }
    if (!model_alloc(count - have, have ? holder->table[have - 1] : PD_NO_BLOCK,
                     holder->table + have))
        count = have;
    holder->count = count;
    for (size_t i = have; i < count; i++) {
        int32_t block = holder->table[i];

        if (draw(8) == 0)
            break; /* computed no further */
        prefix = pd_block_pool_publish(model.pool, prefix, holder->tokens + i * SIZE, block);
        assert_true(prefix > 0);
        model.depth[block] = i + 1;
        memcpy(model.content[block], holder->tokens, (i + 1) * SIZE * sizeof(*holder->tokens));
        if (prefix <= model.last_name) { /* an equal one is known: it counts as used */
            for (size_t k = 0; k < model.lru_count; k++) {
                int32_t twin = model.lru[k];

                if (model.depth[twin] == i + 1 &&
                    memcmp(model.content[twin], holder->tokens,
                           (i + 1) * SIZE * sizeof(*holder->tokens)) == 0) {
                    lru_drop(k);
                    model.lru[model.lru_count++] = twin;
                    break;
                }
            }
            continue;
        }
        model.last_name = prefix;
        model.published[block] = true;
    }
}

static void end_holder(struct holder *holder)
{
    pd_block_pool_release(model.pool, holder->table, holder->count);
    for (size_t i = holder->count; i-- > 0;) {
        int32_t block = holder->table[i];

        if (--model.references[block] == 0 && model.published[block])
            model.lru[model.lru_count++] = block;
    }
    holder->count = 0;
}

static void check_model(void)
{
    struct pd_block_counts counts = counts_of(model.pool);

    assert_int_equal(counts.total, BLOCKS);
    assert_int_equal(counts.cached, model.lru_count);
    assert_int_equal(counts.available, shadow_free_count() + model.lru_count);
    for (int32_t i = 0; i < BLOCKS; i++)
        assert_int_equal(pd_block_pool_references(model.pool, i), model.references[i]);
}

static void test_random_life(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        memset(&model, 0, sizeof(model));
        random_state = seed;
        model.pool = make_pool(BLOCKS, true);
        for (int turn = 0; turn < 1500; turn++) {
            struct holder *holder = &model.holders[draw(HOLDERS)];

            if (holder->count)
                end_holder(holder);
            else
                start_holder(holder);
            check_model();
        }
        for (int i = 0; i < HOLDERS; i++)
            end_holder(&model.holders[i]);
        check_model();
        assert_int_equal(counts_of(model.pool).available, BLOCKS);
        assert_true(counts_of(model.pool).evictions > 0);
        pd_block_pool_destroy(model.pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_or_nothing),
        cmocka_unit_test(test_prefixes_are_shared_without_a_copy),
        cmocka_unit_test(test_a_block_alone_is_not_a_prefix),
        cmocka_unit_test(test_the_end_of_a_prompt_is_evicted_first),
        cmocka_unit_test(test_free_blocks_go_before_cached_ones),
        cmocka_unit_test(test_without_caching_nothing_is_found),
        cmocka_unit_test(test_forgotten_blocks_are_not_matched),
        cmocka_unit_test(test_a_table_grows_where_it_ends),
        cmocka_unit_test(test_the_shortest_hole_is_taken),
        cmocka_unit_test(test_hopeless_sizes_are_refused),
        cmocka_unit_test(test_random_life),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
