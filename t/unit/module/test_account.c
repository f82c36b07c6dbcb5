/* Accounts: that requests which run at once keep to a limit together, by a simulation beside a
 * ledger that knows every token; that Retry-After is true; who is forgotten when the table is full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_account.h"
#include "ngx_shim.h"

enum { ACCOUNTS = 16, RECORDS = 64, SECOND = 1000000 };

#define clock_us shim_clock_us

/* A zone without nginx: tables of a few entries. */
static ngx_http_pd_zone_t *zone_create(void)
{
    ngx_http_pd_zone_t *zone = calloc(1, sizeof *zone);

    zone->sh = calloc(1, sizeof *zone->sh + RECORDS * sizeof(ngx_http_pd_record_t));
    zone->sh->naccounts = ACCOUNTS;
    zone->sh->accounts = calloc(ACCOUNTS, sizeof(ngx_http_pd_account_t));
    zone->sh->seed = 42;
    return zone;
}

static void zone_destroy(ngx_http_pd_zone_t *zone)
{
    free(zone->sh->accounts);
    free(zone->sh);
    free(zone);
}

static ngx_http_pd_claim_t claim_of(ngx_uint_t requests, ngx_uint_t tokens, ngx_uint_t concurrent)
{
    return (ngx_http_pd_claim_t){
        .limits = {.requests = requests, .tokens = tokens, .concurrent = concurrent}, .prompts = 1};
}

static ngx_int_t reserve(ngx_http_pd_zone_t *zone, int index, ngx_http_pd_claim_t *claim,
                         size_t prompt, size_t output)
{
    ngx_http_pd_want_t want = {.key = 7, .bytes = 1, .prompt = prompt, .output = output};

    memset(&zone->sh->records[index], 0, sizeof(ngx_http_pd_record_t));
    claim->prompts = 1;
    claim->bytes = 1;
    return ngx_http_pd_account_reserve(zone, &zone->sh->records[index], claim, &want, clock_us);
}

static void end(ngx_http_pd_zone_t *zone, int index, size_t tokens)
{
    ngx_http_pd_account_settle(zone, &zone->sh->records[index], tokens, 1, clock_us);
    ngx_http_pd_account_count(zone, &zone->sh->records[index], -1);
    zone->sh->records[index].metered = 0;
}

/* Whatever comes and goes: what was used, and what running requests may still use, is at no time
 * more than one minute's limit and what time has paid off. */
static void keeps_to_the_limit_together(void **state)
{
    enum { LIMIT = 600, STEPS = 200000 };
    ngx_http_pd_zone_t *zone = zone_create();
    struct {
        int runs;
        size_t prompt, output;
    } request[RECORDS] = {{0}};
    uint64_t start = clock_us;
    double used = 0, open = 0;
    int passed = 0, refused = 0;

    (void)state;
    srand(1);
    for (int step = 0; step < STEPS; step++) {
        int i = rand() % RECORDS;

        clock_us += (unsigned)rand() % SECOND;
        if (request[i].runs) {
            size_t tokens = request[i].prompt + (size_t)rand() % (request[i].output + 1);

            end(zone, i, tokens);
            open -= (double)(request[i].prompt + request[i].output);
            used += (double)tokens;
            request[i].runs = 0;
            continue;
        }
        request[i].prompt = 1 + (size_t)rand() % 100;
        request[i].output = 1 + (size_t)rand() % 200;

        ngx_http_pd_claim_t claim = claim_of(0, LIMIT, 0);

        if (reserve(zone, i, &claim, request[i].prompt, request[i].output) != NGX_OK) {
            refused++;
            assert_int_equal(claim.state, NGX_HTTP_PD_CLAIM_TOKENS);
            continue;
        }
        passed++;
        request[i].runs = 1;
        open += (double)(request[i].prompt + request[i].output);
        assert_true(used + open <=
                    LIMIT + LIMIT * (double)(clock_us - start) / (60.0 * SECOND) + 1);
    }
    assert_true(passed > STEPS / 20 && refused > STEPS / 20);

    /* and the limit is used: nobody is refused what there is */
    assert_true(used > 0.9 * LIMIT * (double)(clock_us - start) / (60.0 * SECOND));
    zone_destroy(zone);
}

static void says_when_to_come_again(void **state)
{
    (void)state;
    srand(2);
    for (int round = 0; round < 2000; round++) {
        ngx_http_pd_zone_t *zone = zone_create();
        ngx_uint_t limit = 1 + (ngx_uint_t)rand() % 1000;
        size_t first = 1 + (size_t)rand() % limit, second = 1 + (size_t)rand() % limit;
        ngx_http_pd_claim_t claim = claim_of(0, limit, 0);
        ngx_uint_t wait;

        assert_int_equal(reserve(zone, 0, &claim, first, 0),
                         first + 256 <= limit ? NGX_OK : NGX_DECLINED);
        if (claim.state == NGX_HTTP_PD_CLAIM_LARGE) {
            zone_destroy(zone);
            continue;
        }
        end(zone, 0, first);
        second = second > 1 ? second - 1 : 1;
        if (reserve(zone, 1, &claim, second, 1) == NGX_OK) {
            zone_destroy(zone);
            continue;
        }
        if (claim.state == NGX_HTTP_PD_CLAIM_TOKENS) {
            wait = claim.retry_after;
            assert_true(wait >= 1);
            clock_us += (uint64_t)(wait - 1) * SECOND;
            assert_int_equal(reserve(zone, 1, &claim, second, 1), NGX_DECLINED);
            clock_us += SECOND;
            assert_int_equal(reserve(zone, 1, &claim, second, 1), NGX_OK);
        }
        zone_destroy(zone);
    }
}

static void gives_answers_their_tokens_in_slices(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    ngx_http_pd_claim_t claim = claim_of(0, 600, 0);

    (void)state;
    assert_int_equal(reserve(zone, 3, &claim, 10, 0), NGX_OK);
    assert_int_equal(claim.tokens, 600 - 10 - NGX_HTTP_PD_ACCOUNT_SLICE);
    assert_int_equal(ngx_http_pd_account_more(zone, 3, clock_us), NGX_HTTP_PD_ACCOUNT_SLICE);
    assert_int_equal(ngx_http_pd_account_more(zone, 3, clock_us), 600 - 10 - 512);
    assert_int_equal(ngx_http_pd_account_more(zone, 3, clock_us), 0);
    clock_us += SECOND; /* ten a second */
    assert_int_equal(ngx_http_pd_account_more(zone, 3, clock_us), 10);
    end(zone, 3, 20);
    assert_int_equal(reserve(zone, 4, &claim, 1, 1), NGX_OK);
    assert_int_equal(claim.tokens, 600 - 2 - 10);
    zone_destroy(zone);
}

static void counts_requests_that_run(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    ngx_http_pd_claim_t claim = claim_of(0, 0, 2);

    (void)state;
    assert_int_equal(reserve(zone, 0, &claim, 1, 1), NGX_OK);
    assert_int_equal(reserve(zone, 1, &claim, 1, 1), NGX_OK);
    assert_int_equal(reserve(zone, 2, &claim, 1, 1), NGX_DECLINED);
    assert_int_equal(claim.state, NGX_HTTP_PD_CLAIM_CONCURRENT);
    clock_us += 8 * SECOND;
    end(zone, 0, 2);
    assert_int_equal(reserve(zone, 2, &claim, 1, 1), NGX_OK);
    assert_int_equal(reserve(zone, 3, &claim, 1, 1), NGX_DECLINED);
    assert_int_equal(claim.retry_after, 1); /* a quarter of 8 s, two at a time */

    /* a rebuild counts again what records say */
    ngx_http_pd_account_clear(zone);
    for (int i = 0; i < 3; i++)
        ngx_http_pd_account_count(zone, &zone->sh->records[i], 1);
    assert_int_equal(reserve(zone, 3, &claim, 1, 1), NGX_DECLINED);
    end(zone, 1, 2);
    assert_int_equal(reserve(zone, 3, &claim, 1, 1), NGX_OK);
    zone_destroy(zone);
}

static ngx_int_t reserve_key(ngx_http_pd_zone_t *zone, int index, uint64_t key)
{
    ngx_http_pd_claim_t claim = claim_of(10, 0, 0);
    ngx_http_pd_want_t want = {.key = key, .bytes = 1, .prompt = 1, .output = 1};

    claim.bytes = 1;
    memset(&zone->sh->records[index], 0, sizeof(ngx_http_pd_record_t));
    return ngx_http_pd_account_reserve(zone, &zone->sh->records[index], &claim, &want, clock_us);
}

static int known(ngx_http_pd_zone_t *zone, uint64_t key)
{
    for (int i = 0; i < ACCOUNTS; i++)
        if (zone->sh->accounts[i].key == key)
            return 1;
    return 0;
}

static void forgets_whom_it_costs_least(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();

    (void)state;
    /* eight of one set: the first four have ended, of these the first owes nothing any more */
    for (int i = 0; i < 8; i++) {
        assert_int_equal(reserve_key(zone, i, 2 + 2 * (uint64_t)i), NGX_OK);
        if (i < 4)
            end(zone, i, 2);
        clock_us += 3 * SECOND;
    }
    assert_int_equal(reserve_key(zone, 8, 100), NGX_OK);
    assert_false(known(zone, 2));
    assert_true(known(zone, 4));
    assert_int_equal(reserve_key(zone, 9, 102), NGX_OK); /* the one idle for longest */
    assert_false(known(zone, 4));
    assert_int_equal(reserve_key(zone, 10, 104), NGX_OK);
    assert_int_equal(reserve_key(zone, 11, 106), NGX_OK);
    assert_int_equal(reserve_key(zone, 12, 108), NGX_BUSY); /* all have requests */
    assert_int_equal(reserve_key(zone, 12, 101), NGX_OK);   /* of the other set */
    zone_destroy(zone);
}

static void remembers_debts_for_the_next_master(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create(), *next = zone_create();
    ngx_http_pd_claim_t claim = claim_of(6, 600, 0);
    uint64_t owed[2], limits[2] = {6, 600};

    (void)state;
    assert_int_equal(reserve(zone, 0, &claim, 100, 200), NGX_OK);
    assert_int_equal(
        ngx_http_pd_account_owes(&zone->sh->accounts[zone->sh->records[0].account], clock_us, owed),
        1);
    assert_int_equal(owed[0], 1);
    assert_int_equal(owed[1], 300);
    ngx_http_pd_account_restore(next, 7, limits, owed, 5 * SECOND);
    assert_int_equal(reserve(next, 0, &claim, 100, 200), NGX_OK);
    assert_int_equal(claim.tokens, 600 - 300 + 50 - 300);
    assert_int_equal(claim.requests, 4);
    zone_destroy(zone);
    zone_destroy(next);
}

static void tells_names_apart(void **state)
{
    ngx_http_pd_zone_t *zone = zone_create();
    ngx_str_t ab = ngx_string("ab"), a = ngx_string("a"), bc = ngx_string("bc"),
              c = ngx_string("c"), none = ngx_null_string;

    (void)state;
    assert_true(ngx_http_pd_account_key(zone, &none, &ab, &c) !=
                ngx_http_pd_account_key(zone, &none, &a, &bc));
    assert_true(ngx_http_pd_account_key(zone, &ab, &none, &c) !=
                ngx_http_pd_account_key(zone, &none, &ab, &c));
    assert_true(ngx_http_pd_account_key(zone, &none, &none, &none) != 0);
    zone_destroy(zone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_to_the_limit_together),
        cmocka_unit_test(says_when_to_come_again),
        cmocka_unit_test(gives_answers_their_tokens_in_slices),
        cmocka_unit_test(counts_requests_that_run),
        cmocka_unit_test(forgets_whom_it_costs_least),
        cmocka_unit_test(remembers_debts_for_the_next_master),
        cmocka_unit_test(tells_names_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
