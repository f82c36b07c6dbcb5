/* The table of who has seen what: its size stays, the entry that was used longest ago makes room, and
 * a worker that has started again has seen nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_affinity.h"
#include "ngx_shim.h"

enum { WORKERS = 8 };

static ngx_http_pd_zone_t *zone_create(size_t sets)
{
    ngx_http_pd_zone_t *zone = calloc(1, sizeof *zone);

    zone->sh = calloc(1, sizeof *zone->sh);
    zone->sh->nknown = sets;
    zone->sh->known = calloc(sets, sizeof(ngx_http_pd_known_set_t));
    zone->sh->nworkers = WORKERS;
    for (ngx_uint_t i = 0; i < WORKERS; i++)
        zone->sh->workers[i].id = i + 1;
    return zone;
}

static void zone_destroy(ngx_http_pd_zone_t *zone)
{
    free(zone->sh->known);
    free(zone->sh);
    free(zone);
}

/* A prompt of 1,000 bytes that has one point, where it ends. */
static ngx_http_pd_prefix_t prompt(uint64_t hash)
{
    ngx_http_pd_prefix_t prefix = {0};

    prefix.tail.bytes = 1000;
    prefix.ends = 1;
    prefix.end[0] = (ngx_http_pd_point_t){hash, 1000};
    return prefix;
}

static void learn(ngx_http_pd_zone_t *zone, ngx_uint_t worker, uint64_t hash)
{
    ngx_http_pd_prefix_t prefix = prompt(hash);

    ngx_http_pd_affinity_learn(zone, worker, &prefix);
}

/* How many tokens of a prompt of 100 the worker has in its cache, as far as the table knows. */
static uint32_t cached(ngx_http_pd_zone_t *zone, ngx_uint_t worker, uint64_t hash)
{
    ngx_http_pd_prefix_t prefix = prompt(hash);
    ngx_http_pd_record_t record = {.prompt = 100};

    for (int i = 0; i < NGX_HTTP_PD_NEAR; i++)
        record.near[i].worker = NGX_HTTP_PD_NONE;
    ngx_http_pd_affinity_find(zone, &record, &prefix);
    return ngx_http_pd_affinity_cached(zone, &record, &zone->sh->workers[worker]);
}

static void longest_unused_makes_room(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(1);

    for (uint64_t hash = 1; hash <= NGX_HTTP_PD_WAYS; hash++)
        learn(zone, 0, hash);
    assert_int_equal(cached(zone, 0, 1), 100); /* and now the second was not used for longest */
    learn(zone, 0, 100);
    assert_int_equal(cached(zone, 0, 2), 0);
    assert_int_equal(cached(zone, 0, 1), 100);
    for (uint64_t hash = 3; hash <= NGX_HTTP_PD_WAYS; hash++)
        assert_int_equal(cached(zone, 0, hash), 100);
    assert_int_equal(cached(zone, 0, 100), 100);
    zone_destroy(zone);
}

/* The count of uses is 32 bits wide and comes round. */
static void order_survives_the_counter(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(1);

    zone->sh->known_clock = UINT32_MAX - NGX_HTTP_PD_WAYS - 2;
    for (uint64_t hash = 100; hash < 100 + NGX_HTTP_PD_WAYS; hash++)
        learn(zone, 0, hash);
    for (uint64_t hash = 1; hash <= NGX_HTTP_PD_WAYS + 1; hash++)
        learn(zone, 0, hash);
    assert_int_equal(cached(zone, 0, 1), 0);
    for (uint64_t hash = 2; hash <= NGX_HTTP_PD_WAYS + 1; hash++)
        assert_int_equal(cached(zone, 0, hash), 100);
    zone_destroy(zone);
}

/* However many prompts come, nothing is written beyond the table, and the newest are known. */
static void a_million_prompts(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(16);
    uint64_t hash = 0x9e3779b97f4a7c15, known = 0;

    for (int i = 0; i < 1000000; i++, hash = hash * 6364136223846793005 + 1442695040888963407)
        learn(zone, (ngx_uint_t)i % WORKERS, hash | 1);
    learn(zone, 3, 77);
    assert_int_equal(cached(zone, 3, 77), 100);
    for (size_t i = 0; i < 16; i++)
        for (int way = 0; way < NGX_HTTP_PD_WAYS; way++)
            known += zone->sh->known[i].entry[way].hash != 0;
    assert_int_equal(known, 16 * NGX_HTTP_PD_WAYS);
    zone_destroy(zone);
}

static void a_point_remembers_its_last_workers(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(1);

    for (ngx_uint_t worker = 0; worker <= NGX_HTTP_PD_HOLDERS; worker++)
        learn(zone, worker, 1);
    for (ngx_uint_t i = 0; i < NGX_HTTP_PD_NEAR; i++)
        assert_int_equal(cached(zone, NGX_HTTP_PD_HOLDERS - i, 1), 100);
    assert_int_equal(cached(zone, 0, 1), 0);
    learn(zone, 1, 1); /* again: it moves to the front, and nobody is there twice */
    assert_int_equal(cached(zone, 1, 1), 100);
    assert_int_equal(cached(zone, NGX_HTTP_PD_HOLDERS, 1), 100);
    zone_destroy(zone);
}

static void a_worker_that_starts_again_has_an_empty_cache(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(1);
    ngx_http_pd_record_t record = {.stuck = {NGX_HTTP_PD_NONE, NGX_HTTP_PD_NONE}};

    learn(zone, 2, 1);
    ngx_http_pd_affinity_learn_hash(zone, 2, 50); /* a session */
    ngx_http_pd_affinity_stick(zone, &record, 50);
    assert_int_equal(record.stuck[0], 2);
    zone->sh->workers[2].cache++;
    assert_int_equal(cached(zone, 2, 1), 0);
    record.stuck[0] = NGX_HTTP_PD_NONE;
    ngx_http_pd_affinity_stick(zone, &record, 50);
    assert_int_equal(record.stuck[0], NGX_HTTP_PD_NONE);
    learn(zone, 2, 1);
    assert_int_equal(cached(zone, 2, 1), 100);
    zone_destroy(zone);
}

/* A zone so small that no table fits. */
static void no_table_at_all(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(0);

    learn(zone, 0, 1);
    assert_int_equal(cached(zone, 0, 1), 0);
    zone_destroy(zone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longest_unused_makes_room),
        cmocka_unit_test(order_survives_the_counter),
        cmocka_unit_test(a_million_prompts),
        cmocka_unit_test(a_point_remembers_its_last_workers),
        cmocka_unit_test(a_worker_that_starts_again_has_an_empty_cache),
        cmocka_unit_test(no_table_at_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
