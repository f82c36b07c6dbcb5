/* Bytes per token: each model and tenant has its own, a newcomer the model's, a stranger 4. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_ratio.h"
#include "ngx_shim.h"

enum { MODEL = 1000, OTHER_MODEL = 2000, PROSE = 7, CHINESE = 8, NEWCOMER = 9 };

static ngx_http_pd_zone_t *zone_create(void)
{
    ngx_http_pd_zone_t *zone = calloc(1, sizeof *zone);

    zone->sh = calloc(1, sizeof *zone->sh);
    return zone;
}

static void zone_destroy(ngx_http_pd_zone_t *zone)
{
    free(zone->sh);
    free(zone);
}

static void each_tenant_has_its_own(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();

    for (int i = 0; i < 100; i++) {
        ngx_http_pd_ratio_learn(zone, MODEL, PROSE, 5000, 1000);
        ngx_http_pd_ratio_learn(zone, MODEL, CHINESE, 1500, 1000);
    }
    assert_in_range(ngx_http_pd_ratio_tokens(zone, MODEL, PROSE, 10000), 1990, 2010);
    assert_in_range(ngx_http_pd_ratio_tokens(zone, MODEL, CHINESE, 10000), 6600, 6700);
    /* the model's own lies between them */
    assert_in_range(ngx_http_pd_ratio_tokens(zone, MODEL, NEWCOMER, 10000), 2010, 6600);
    assert_in_range(ngx_http_pd_ratio_tokens(zone, OTHER_MODEL, PROSE, 10000), 2500, 2501);
    zone_destroy(zone);
}

/* A tenant that changes from prose to base64 is known for it some prompts later. */
static void it_follows(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();

    ngx_http_pd_ratio_learn(zone, MODEL, PROSE, 5000, 1000);
    for (int i = 0; i < 24; i++)
        ngx_http_pd_ratio_learn(zone, MODEL, PROSE, 1300, 1000);
    assert_in_range(ngx_http_pd_ratio_tokens(zone, MODEL, PROSE, 1300), 850, 1001);
    zone_destroy(zone);
}

/* Numbers of peers and clients can be any. */
static void whatever_it_is_told(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();

    ngx_http_pd_ratio_learn(zone, MODEL, PROSE, 5, 1); /* too few tokens to teach anything */
    assert_in_range(ngx_http_pd_ratio_tokens(zone, MODEL, PROSE, 400), 100, 101);
    ngx_http_pd_ratio_learn(zone, MODEL, PROSE, 0, 1000);
    assert_true(ngx_http_pd_ratio_tokens(zone, MODEL, PROSE, 10) > 0);
    ngx_http_pd_ratio_learn(zone, MODEL, CHINESE, SIZE_MAX, 16);
    assert_true(ngx_http_pd_ratio_tokens(zone, MODEL, CHINESE, SIZE_MAX) > 0);
    zone_destroy(zone);
}

/* More tenants than places: the table keeps its size, and the one that was taught last is known. */
static void more_tenants_than_places(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();

    for (uint64_t tenant = 1; tenant <= 100000; tenant++)
        ngx_http_pd_ratio_learn(zone, MODEL, tenant, 2000, 1000);
    ngx_http_pd_ratio_learn(zone, MODEL, 55555, 8000, 1000);
    assert_true(ngx_http_pd_ratio_tokens(zone, MODEL, 55555, 8000) < 4000);
    zone_destroy(zone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tenant_has_its_own),
        cmocka_unit_test(it_follows),
        cmocka_unit_test(whatever_it_is_told),
        cmocka_unit_test(more_tenants_than_places),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
