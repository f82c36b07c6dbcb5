
/*
 * Accounts: see ngx_http_pd_account.h.
 *
 * Debts are counted in 60,000,000ths, so that a limit a minute is its own
 * number of units a microsecond, and arithmetic is exact.
 */


#include "ngx_http_pd_account.h"


#define NGX_HTTP_PD_ACCOUNT_MINUTE      60000000
#define NGX_HTTP_PD_ACCOUNT_MOST        100      /* minutes of debt */

#define NGX_HTTP_PD_ACCOUNT_REQUESTS    0
#define NGX_HTTP_PD_ACCOUNT_TOKENS      1


static ngx_http_pd_account_t *ngx_http_pd_account_find(
    ngx_http_pd_zone_t *zone, uint64_t key, uint64_t now);
static ngx_http_pd_account_t *ngx_http_pd_account_make(
    ngx_http_pd_account_t *account, uint64_t key, uint64_t now);
static void ngx_http_pd_account_pay(ngx_http_pd_account_t *account,
    uint64_t now);
static void ngx_http_pd_account_check(ngx_http_pd_account_t *account,
    ngx_http_pd_claim_t *claim, ngx_http_pd_want_t *want, size_t output);
static ngx_uint_t ngx_http_pd_account_over(ngx_http_pd_account_t *account,
    ngx_uint_t kind, uint64_t wanted, ngx_uint_t *retry_after);
static void ngx_http_pd_account_tell(ngx_http_pd_account_t *account,
    ngx_http_pd_claim_t *claim);
static void ngx_http_pd_account_add(ngx_http_pd_account_t *account,
    ngx_uint_t kind, int64_t n);


uint64_t
ngx_http_pd_account_key(ngx_http_pd_zone_t *zone, ngx_str_t *cluster,
    ngx_str_t *tenant, ngx_str_t *model)
{
    size_t       n;
    uint64_t     hash;
    ngx_str_t   *parts[3];
    ngx_uint_t   i;

    parts[0] = cluster;
    parts[1] = tenant;
    parts[2] = model;

    hash = zone->sh->seed ^ 14695981039346656037u;

    for (i = 0; i < 3; i++) {

        for (n = 0; n < parts[i]->len; n++) {
            hash ^= parts[i]->data[n];
            hash *= 1099511628211u;
        }

        /* no byte of a name */

        hash ^= 0x100;
        hash *= 1099511628211u;
    }

    return hash ? hash : 1;
}


ngx_int_t
ngx_http_pd_account_reserve(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_claim_t *claim,
    ngx_http_pd_want_t *want, uint64_t now)
{
    size_t                  output;
    ngx_http_pd_limits_t   *limits;
    ngx_http_pd_account_t  *account;

    limits = &claim->limits;

    account = ngx_http_pd_account_find(zone, want->key, now);

    if (account == NULL) {
        return NGX_BUSY;
    }

    ngx_http_pd_account_pay(account, now);

    account->limits[NGX_HTTP_PD_ACCOUNT_REQUESTS] = limits->requests;
    account->limits[NGX_HTTP_PD_ACCOUNT_TOKENS] = limits->tokens;

    record->account = account - zone->sh->accounts;
    record->metered = 0;

    if (limits->requests == 0 && limits->tokens == 0
        && limits->concurrent == 0)
    {
        claim->state = NGX_HTTP_PD_CLAIM_NONE;
        return NGX_OK;
    }

    output = want->output ? want->output : NGX_HTTP_PD_ACCOUNT_SLICE;
    output = ngx_min(output, NGX_HTTP_PD_LIMIT_MAX);

    ngx_http_pd_account_check(account, claim, want, output);

    if (claim->state == NGX_HTTP_PD_CLAIM_PASSED) {
        record->metered = 1;
        record->estimate = want->prompt;
        record->reserved = want->prompt + output;
        record->admitted = now;

        ngx_http_pd_account_add(account, NGX_HTTP_PD_ACCOUNT_REQUESTS, 1);
        ngx_http_pd_account_add(account, NGX_HTTP_PD_ACCOUNT_TOKENS,
                                record->reserved);
        ngx_http_pd_account_count(zone, record, 1);

        claim->reserved += record->reserved;
        zone->sh->charges++;
    }

    claim->prompts--;
    claim->bytes -= want->bytes;

    ngx_http_pd_account_tell(account, claim);

    if (claim->state != NGX_HTTP_PD_CLAIM_PASSED) {

        if (!claim->dry_run) {
            return NGX_DECLINED;
        }

        claim->exempt = claim->state;
    }

    return NGX_OK;
}


/* for all its prompts at once: none shall start if another is refused */

static void
ngx_http_pd_account_check(ngx_http_pd_account_t *account,
    ngx_http_pd_claim_t *claim, ngx_http_pd_want_t *want, size_t output)
{
    uint64_t               tokens;
    ngx_uint_t             retry_after;
    ngx_http_pd_limits_t  *limits;

    limits = &claim->limits;

    tokens = want->prompt + output;

    if (claim->prompts > 1) {
        tokens = (uint64_t) want->prompt * claim->bytes
                 / ngx_max(want->bytes, 1)
                 + (uint64_t) output * claim->prompts;
    }

    claim->state = NGX_HTTP_PD_CLAIM_PASSED;
    claim->retry_after = 0;

    if (limits->concurrent
        && account->live + claim->prompts > limits->concurrent)
    {
        claim->state = NGX_HTTP_PD_CLAIM_CONCURRENT;
        claim->retry_after = ngx_max(account->duration / 1000
                                     / limits->concurrent, 1);
    }

    if (limits->tokens && tokens > limits->tokens) {
        claim->state = NGX_HTTP_PD_CLAIM_LARGE;
        return;
    }

    if (ngx_http_pd_account_over(account, NGX_HTTP_PD_ACCOUNT_TOKENS, tokens,
                                 &retry_after)
        && retry_after > claim->retry_after)
    {
        claim->state = NGX_HTTP_PD_CLAIM_TOKENS;
        claim->retry_after = retry_after;
    }

    if (ngx_http_pd_account_over(account, NGX_HTTP_PD_ACCOUNT_REQUESTS,
                                 claim->prompts, &retry_after)
        && retry_after > claim->retry_after)
    {
        claim->state = NGX_HTTP_PD_CLAIM_REQUESTS;
        claim->retry_after = retry_after;
    }
}


static ngx_uint_t
ngx_http_pd_account_over(ngx_http_pd_account_t *account, ngx_uint_t kind,
    uint64_t wanted, ngx_uint_t *retry_after)
{
    uint64_t  limit, over, debt;

    limit = account->limits[kind];

    if (limit == 0) {
        return 0;
    }

    debt = account->debts[kind] + wanted * NGX_HTTP_PD_ACCOUNT_MINUTE;

    if (debt <= limit * NGX_HTTP_PD_ACCOUNT_MINUTE) {
        return 0;
    }

    over = debt - limit * NGX_HTTP_PD_ACCOUNT_MINUTE;

    *retry_after = ((over + limit - 1) / limit + 999999) / 1000000;

    return 1;
}


/* what the answer's headers say */

static void
ngx_http_pd_account_tell(ngx_http_pd_account_t *account,
    ngx_http_pd_claim_t *claim)
{
    uint64_t    limit, full, left[2], us[2];
    ngx_uint_t  i;

    for (i = 0; i < 2; i++) {
        limit = account->limits[i];
        full = limit * NGX_HTTP_PD_ACCOUNT_MINUTE;

        left[i] = (full > account->debts[i])
                  ? (full - account->debts[i]) / NGX_HTTP_PD_ACCOUNT_MINUTE
                  : 0;
        us[i] = limit ? account->debts[i] / limit : 0;
    }

    claim->requests = left[NGX_HTTP_PD_ACCOUNT_REQUESTS];
    claim->requests_us = us[NGX_HTTP_PD_ACCOUNT_REQUESTS];
    claim->tokens = left[NGX_HTTP_PD_ACCOUNT_TOKENS];
    claim->tokens_us = us[NGX_HTTP_PD_ACCOUNT_TOKENS];
}


void
ngx_http_pd_account_exact(ngx_http_pd_zone_t *zone, uint32_t index,
    size_t prompt, uint64_t now)
{
    int64_t                 more;
    ngx_http_pd_record_t   *record;
    ngx_http_pd_account_t  *account;

    record = &zone->sh->records[index];

    if (!record->metered) {
        return;
    }

    account = &zone->sh->accounts[record->account];

    prompt = ngx_min(prompt, NGX_HTTP_PD_LIMIT_MAX);
    more = (int64_t) prompt - (int64_t) record->estimate;

    ngx_http_pd_account_pay(account, now);
    ngx_http_pd_account_add(account, NGX_HTTP_PD_ACCOUNT_TOKENS, more);

    record->estimate = prompt;
    record->reserved += more;
    zone->sh->charges++;
}


size_t
ngx_http_pd_account_more(ngx_http_pd_zone_t *zone, uint32_t index,
    uint64_t now)
{
    uint64_t                n, full;
    ngx_http_pd_record_t   *record;
    ngx_http_pd_account_t  *account;

    record = &zone->sh->records[index];

    n = NGX_HTTP_PD_ACCOUNT_SLICE;

    if (!record->metered) {
        return n;
    }

    account = &zone->sh->accounts[record->account];

    ngx_http_pd_account_pay(account, now);

    if (account->limits[NGX_HTTP_PD_ACCOUNT_TOKENS]) {
        full = (uint64_t) account->limits[NGX_HTTP_PD_ACCOUNT_TOKENS]
               * NGX_HTTP_PD_ACCOUNT_MINUTE;

        if (full <= account->debts[NGX_HTTP_PD_ACCOUNT_TOKENS]) {
            return 0;
        }

        n = ngx_min(n, (full - account->debts[NGX_HTTP_PD_ACCOUNT_TOKENS])
                       / NGX_HTTP_PD_ACCOUNT_MINUTE);
    }

    ngx_http_pd_account_add(account, NGX_HTTP_PD_ACCOUNT_TOKENS, n);

    record->reserved += n;
    zone->sh->charges++;

    return n;
}


void
ngx_http_pd_account_settle(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, size_t tokens, ngx_uint_t started,
    uint64_t now)
{
    int64_t                 more, duration;
    ngx_http_pd_account_t  *account;

    if (!record->metered) {
        return;
    }

    account = &zone->sh->accounts[record->account];

    tokens = ngx_min(tokens, NGX_HTTP_PD_LIMIT_MAX);
    more = (int64_t) tokens - (int64_t) record->reserved;

    ngx_http_pd_account_pay(account, now);
    ngx_http_pd_account_add(account, NGX_HTTP_PD_ACCOUNT_TOKENS, more);

    record->reserved = tokens;
    zone->sh->charges++;

    if (!started) {
        ngx_http_pd_account_add(account, NGX_HTTP_PD_ACCOUNT_REQUESTS, -1);
        return;
    }

    duration = ngx_min((now - record->admitted) / 1000, NGX_MAX_INT32_VALUE);

    account->duration += (duration - (int64_t) account->duration) / 4;
}


void
ngx_http_pd_account_count(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_int_t sign)
{
    if (record->metered) {
        zone->sh->accounts[record->account].live += sign;
    }
}


void
ngx_http_pd_account_clear(ngx_http_pd_zone_t *zone)
{
    ngx_uint_t  i;

    for (i = 0; i < zone->sh->naccounts; i++) {
        zone->sh->accounts[i].live = 0;
    }
}


/* the account of that key, or one that can become it */

static ngx_http_pd_account_t *
ngx_http_pd_account_find(ngx_http_pd_zone_t *zone, uint64_t key, uint64_t now)
{
    ngx_uint_t              i;
    ngx_http_pd_account_t  *set;

    set = &zone->sh->accounts[key % (zone->sh->naccounts
                                     / NGX_HTTP_PD_ACCOUNT_SET)
                              * NGX_HTTP_PD_ACCOUNT_SET];

    for (i = 0; i < NGX_HTTP_PD_ACCOUNT_SET; i++) {

        if (set[i].key == key) {
            return &set[i];
        }
    }

    return ngx_http_pd_account_make(set, key, now);
}


/* in the place of the one whom it costs least to forget */

static ngx_http_pd_account_t *
ngx_http_pd_account_make(ngx_http_pd_account_t *account, uint64_t key,
    uint64_t now)
{
    uint64_t                owed[2], best, rank;
    ngx_uint_t              i;
    ngx_http_pd_account_t  *found;

    found = NULL;
    best = 0;

    for (i = 0; i < NGX_HTTP_PD_ACCOUNT_SET; i++, account++) {

        if (account->key == 0) {
            rank = (uint64_t) -1;

        } else if (account->live) {
            continue;

        } else {
            rank = now - account->updated + 1;

            if (!ngx_http_pd_account_owes(account, now, owed)) {
                rank += (uint64_t) 1 << 62;
            }
        }

        if (rank > best) {
            best = rank;
            found = account;
        }
    }

    if (found) {
        ngx_memzero(found, sizeof(ngx_http_pd_account_t));
        found->key = key;
        found->updated = now;
    }

    return found;
}


/* what has been paid off since the last time */

static void
ngx_http_pd_account_pay(ngx_http_pd_account_t *account, uint64_t now)
{
    uint64_t    elapsed, paid;
    ngx_uint_t  i;

    if (now <= account->updated) {
        return;
    }

    /* so long that it pays any debt there can be, and the product fits */

    elapsed = ngx_min(now - account->updated,
                      (uint64_t) NGX_HTTP_PD_ACCOUNT_MOST
                      * NGX_HTTP_PD_ACCOUNT_MINUTE);
    account->updated = now;

    for (i = 0; i < 2; i++) {
        paid = elapsed * account->limits[i];

        account->debts[i] = (account->limits[i] && account->debts[i] > paid)
                            ? account->debts[i] - paid : 0;
    }
}


static void
ngx_http_pd_account_add(ngx_http_pd_account_t *account, ngx_uint_t kind,
    int64_t n)
{
    uint64_t  units;

    if (account->limits[kind] == 0) {
        return;
    }

    units = (uint64_t) (n < 0 ? -n : n) * NGX_HTTP_PD_ACCOUNT_MINUTE;

    if (n > 0) {
        account->debts[kind] = ngx_min(account->debts[kind] + units,
                                       (uint64_t) account->limits[kind]
                                       * NGX_HTTP_PD_ACCOUNT_MINUTE
                                       * NGX_HTTP_PD_ACCOUNT_MOST);

    } else {
        account->debts[kind] -= ngx_min(units, account->debts[kind]);
    }
}


ngx_uint_t
ngx_http_pd_account_owes(ngx_http_pd_account_t *account, uint64_t now,
    uint64_t owed[2])
{
    ngx_uint_t             i;
    ngx_http_pd_account_t  copy;

    copy = *account;

    ngx_http_pd_account_pay(&copy, now);

    for (i = 0; i < 2; i++) {
        owed[i] = (copy.debts[i] + NGX_HTTP_PD_ACCOUNT_MINUTE - 1)
                  / NGX_HTTP_PD_ACCOUNT_MINUTE;
    }

    return owed[0] || owed[1];
}


void
ngx_http_pd_account_restore(ngx_http_pd_zone_t *zone, uint64_t key,
    uint64_t limits[2], uint64_t owed[2], uint64_t age)
{
    uint64_t                now;
    ngx_uint_t              i;
    ngx_http_pd_account_t  *account;

    now = ngx_http_pd_now_us();

    account = ngx_http_pd_account_find(zone, key, now);

    if (account == NULL) {
        return;
    }

    for (i = 0; i < 2; i++) {
        account->limits[i] = limits[i];
        ngx_http_pd_account_add(account, i, owed[i]);
    }

    /* the clock of then is gone */

    account->updated = 0;
    ngx_http_pd_account_pay(account, age);
    account->updated = now;
}
