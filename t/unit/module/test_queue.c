/* The queue's order, by simulation: shares by weight, turns between classes, and how long a newcomer
 * is told that he would wait, beside how long he waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_queue.h"
#include "ngx_shim.h"

enum { RECORDS = 4096, TENANTS = 8, SECOND = 1000000 };

static ngx_http_pd_zone_t *zone_create(void)
{
    ngx_http_pd_zone_t *zone = calloc(1, sizeof *zone);

    zone->sh = calloc(1, sizeof *zone->sh + RECORDS * sizeof(ngx_http_pd_record_t));
    zone->sh->accounts = calloc(TENANTS, sizeof(ngx_http_pd_account_t));
    ngx_http_pd_queue_init(&zone->sh->clusters[0]);
    return zone;
}

static void zone_destroy(ngx_http_pd_zone_t *zone)
{
    free(zone->sh->accounts);
    free(zone->sh);
    free(zone);
}

static ngx_http_pd_record_t *place(ngx_http_pd_zone_t *zone, uint32_t index, ngx_uint_t class,
                                   uint32_t tenant, unsigned weight, uint32_t tokens)
{
    ngx_http_pd_record_t *record = &zone->sh->records[index];

    memset(record, 0, sizeof *record);
    record->class = (uint8_t) class;
    record->account = tenant;
    record->model = 1;
    record->prompt = tokens;
    record->bytes = tokens;
    ngx_http_pd_queue_place(zone, record, weight);
    return record;
}

static void wait_in(ngx_http_pd_zone_t *zone, uint32_t index, ngx_uint_t class, uint32_t tenant,
                    unsigned weight, uint32_t tokens)
{
    place(zone, index, class, tenant, weight, tokens);
    ngx_http_pd_queue_insert(zone, index);
}

/* The next in order gets room; NIL: nobody waits. */
static uint32_t serve(ngx_http_pd_zone_t *zone)
{
    ngx_http_pd_queue_walk_t walk;
    uint32_t index;

    ngx_http_pd_queue_walk(&zone->sh->clusters[0], &walk);
    index = ngx_http_pd_queue_next(zone, &walk);
    if (index != NGX_HTTP_PD_NIL) {
        uint64_t key = zone->sh->records[index].node.key;

        ngx_http_pd_queue_remove(zone, index);
        zone->sh->records[index].node.key = key; /* the tree's double wipes it */
        ngx_http_pd_queue_served(zone, &zone->sh->records[index], 1);
    }
    return index;
}

/* Whoever has always somebody waiting gets tokens by weight, whatever the sizes of requests. */
static void shares_by_weight(void **state)
{
    static const unsigned weights[3] = {1, 2, 5};
    ngx_http_pd_zone_t *zone = zone_create();
    double served[3] = {0}, total = 0;
    uint32_t index;

    (void)state;
    srand(3);
    for (uint32_t i = 0; i < 90; i++) /* the light one sends large requests, the heavy one small */
        wait_in(zone, i, NGX_HTTP_PD_CLASS_STANDARD, i % 3, weights[i % 3],
                1 + (uint32_t)rand() % (i % 3 == 0 ? 4000 : 100));
    for (int n = 0; n < 50000; n++) {
        index = serve(zone);
        served[index % 3] += zone->sh->records[index].prompt;
        total += zone->sh->records[index].prompt;
        wait_in(zone, index, NGX_HTTP_PD_CLASS_STANDARD, index % 3, weights[index % 3],
                1 + (uint32_t)rand() % (index % 3 == 0 ? 4000 : 100));
    }
    for (int i = 0; i < 3; i++) {
        assert_true(served[i] / total > 0.97 * weights[i] / 8);
        assert_true(served[i] / total < 1.03 * weights[i] / 8);
    }
    zone_destroy(zone);
}

static void keeps_each_tenants_order(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    uint32_t last[TENANTS] = {0};

    (void)state;
    srand(4);
    for (uint32_t i = 1; i < 2000; i++)
        wait_in(zone, i, NGX_HTTP_PD_CLASS_STANDARD, (uint32_t)rand() % TENANTS, 1,
                1 + (uint32_t)rand() % 500);
    for (uint32_t i = 1, index; i < 2000; i++) {
        index = serve(zone);
        assert_true(index > last[zone->sh->records[index].account]);
        last[zone->sh->records[index].account] = index;
    }
    assert_int_equal(serve(zone), NGX_HTTP_PD_NIL);
    zone_destroy(zone);
}

/* However many interactive ones come, k standard ones have gone after 8 k turns. */
static void no_class_starves(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    uint32_t next = 2000, standard = 0;

    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        wait_in(zone, i, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10);
    for (uint32_t i = 1000; i < 1050; i++)
        wait_in(zone, i, NGX_HTTP_PD_CLASS_INTERACTIVE, 1, 1, 10);
    for (uint32_t turn = 1; turn <= 800; turn++) {
        standard += serve(zone) < 1000;
        assert_int_equal(standard, turn / NGX_HTTP_PD_QUEUE_TURN);
        wait_in(zone, next++, NGX_HTTP_PD_CLASS_INTERACTIVE, 1, 1, 10);
    }
    zone_destroy(zone);
}

/* A tenant that was busy while nobody else was owes nobody anything when the queue was empty. */
static void begins_anew_when_empty(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();

    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        wait_in(zone, i, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 100);
    for (uint32_t i = 0; i < 500; i++)
        assert_int_equal(serve(zone), i);
    for (uint32_t i = 500; i < 1000; i++) { /* the others leave, nobody has served them */
        ngx_http_pd_queue_remove(zone, i);
        ngx_http_pd_queue_forgo(zone, &zone->sh->records[i]);
    }
    wait_in(zone, 1000, NGX_HTTP_PD_CLASS_STANDARD, 1, 1, 100);
    wait_in(zone, 1001, NGX_HTTP_PD_CLASS_STANDARD, 1, 1, 100);
    wait_in(zone, 1002, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 100);
    assert_int_equal(serve(zone), 1000);
    assert_int_equal(serve(zone), 1002);
    assert_int_equal(serve(zone), 1001);
    zone_destroy(zone);
}

/* One every 100 ms: what newcomers are told is what they wait, in either class. */
static void tells_how_long_it_takes(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    ngx_http_pd_zone_cluster_t *cluster = &zone->sh->clusters[0];
    uint64_t told[2], waited = 0;
    uint32_t index;

    (void)state;
    place(zone, 0, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10);
    assert_int_equal(ngx_http_pd_queue_wait(zone, &zone->sh->records[0], SECOND), 0);

    for (uint32_t i = 1; i <= 300; i++) /* tenants with numbers of their own share the order */
        wait_in(zone, i, i % 3 ? NGX_HTTP_PD_CLASS_STANDARD : NGX_HTTP_PD_CLASS_INTERACTIVE,
                i % TENANTS, 1, 10);
    for (int n = 0; n < 100; n++) {
        shim_clock_us += SECOND / 10;
        serve(zone);
    }
    assert_in_range(ngx_http_pd_queue_drain(cluster), 20, 21); /* of 200, and oneself */

    for (int class = 0; class < 2; class ++) {
        place(zone, 1000 + (uint32_t) class, (ngx_uint_t) class, 7, 1, 10);
        told[class] =
            ngx_http_pd_queue_wait(zone, &zone->sh->records[1000 + class], 3600 * (uint64_t)SECOND);
        ngx_http_pd_queue_insert(zone, 1000 + (uint32_t) class);
    }
    for (;;) {
        shim_clock_us += SECOND / 10;
        waited += SECOND / 10;
        index = serve(zone);
        if (index == NGX_HTTP_PD_NIL)
            break;
        if (index >= 1000) {
            assert_true(told[index - 1000] > waited * 8 / 10);
            assert_true(told[index - 1000] < waited * 12 / 10);
        }
    }

    /* who asks for less than that hears that it is enough, without being counted to the end */
    for (uint32_t i = 0; i < 1000; i++)
        wait_in(zone, i, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10);
    place(zone, 1000, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10);
    assert_true(ngx_http_pd_queue_wait(zone, &zone->sh->records[1000], SECOND) > SECOND);
    assert_true(ngx_http_pd_queue_wait(zone, &zone->sh->records[1000], SECOND) < 3 * SECOND);
    zone_destroy(zone);
}

/* What stands still makes the estimate grow, and a pause between busy times does not. */
static void measures_only_while_somebody_waits(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    ngx_http_pd_zone_cluster_t *cluster = &zone->sh->clusters[0];

    (void)state;
    for (uint32_t i = 0; i < 20; i++)
        wait_in(zone, i, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10);
    for (int n = 0; n < 20; n++) {
        shim_clock_us += SECOND;
        serve(zone);
    }
    shim_clock_us += 3600 * (uint64_t)SECOND;
    assert_int_equal(ngx_http_pd_queue_drain(cluster), 1);
    wait_in(zone, 0, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10);
    assert_int_equal(ngx_http_pd_queue_drain(cluster), 2);
    shim_clock_us += 60 * (uint64_t)SECOND;
    assert_true(ngx_http_pd_queue_drain(cluster) > 10);
    zone_destroy(zone);
}

static void leaves_out_who_waits_for_the_same(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    ngx_http_pd_zone_cluster_t *cluster = &zone->sh->clusters[0];
    ngx_http_pd_queue_walk_t walk;

    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        wait_in(zone, i, i % 2, 0, 1, 10);
    ngx_http_pd_queue_walk(cluster, &walk);
    assert_int_not_equal(ngx_http_pd_queue_next(zone, &walk), NGX_HTTP_PD_NIL);
    ngx_http_pd_queue_stuck(&walk, 1);
    assert_int_equal(ngx_http_pd_queue_next(zone, &walk), NGX_HTTP_PD_NIL);

    /* one that wants another model: its class is walked to the end */
    place(zone, 10, NGX_HTTP_PD_CLASS_STANDARD, 0, 1, 10)->model = 2;
    ngx_http_pd_queue_insert(zone, 10);
    ngx_http_pd_queue_walk(cluster, &walk);
    ngx_http_pd_queue_stuck(&walk, 1);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(zone->sh->records[ngx_http_pd_queue_next(zone, &walk)].class,
                         NGX_HTTP_PD_CLASS_STANDARD);
    assert_int_equal(ngx_http_pd_queue_next(zone, &walk), NGX_HTTP_PD_NIL);
    zone_destroy(zone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_by_weight),
        cmocka_unit_test(keeps_each_tenants_order),
        cmocka_unit_test(no_class_starves),
        cmocka_unit_test(begins_anew_when_empty),
        cmocka_unit_test(tells_how_long_it_takes),
        cmocka_unit_test(measures_only_while_somebody_waits),
        cmocka_unit_test(leaves_out_who_waits_for_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
