
/*
 * Accounts: what each tenant has had of each model, in the shared zone.
 *
 * An account holds debts that are paid off steadily: a limit of 600 a minute
 * pays ten each second, and refuses what would make the debt more than 600.
 * So a minute's worth may come at once to who has been idle, and then as much
 * as is paid off.
 *
 *     reserve   before a request starts: its prompt as estimated, its answer as
 *               long as it may get; where the client sets no bound to that, in
 *               slices, of which each is paid before its first token is sent
 *     exact     a worker has counted the prompt: the estimate is put right
 *     settle    the request has ended: what it has not used is given back
 *
 * Requests that run at once can therefore not exceed a limit together, and the
 * error of an estimate is a debt that the next ones wait for.
 *
 * The table has a fixed size, in sets of eight.  Where a set is full, the
 * account goes that owes nothing, else the one idle for longest; one with
 * requests never goes, and if all eight have some, a newcomer is refused.
 *
 * How many requests an account has is a sum over records, like all counters.
 * A process that dies leaves behind what its requests had reserved, which is
 * paid off like the rest.
 *
 * All functions are called under the zone's lock; "now" is
 * ngx_http_pd_now_us().
 */


#ifndef _NGX_HTTP_PD_ACCOUNT_H_INCLUDED_
#define _NGX_HTTP_PD_ACCOUNT_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_ACCOUNT_SET      8
#define NGX_HTTP_PD_ACCOUNT_SLICE    256      /* tokens */


typedef enum {
    NGX_HTTP_PD_CLAIM_NONE = 0,               /* nothing limits it */
    NGX_HTTP_PD_CLAIM_PASSED,
    NGX_HTTP_PD_CLAIM_REQUESTS,               /* too many a minute */
    NGX_HTTP_PD_CLAIM_TOKENS,                 /* too many a minute */
    NGX_HTTP_PD_CLAIM_CONCURRENT,             /* too many at once */
    NGX_HTTP_PD_CLAIM_LARGE                   /* more than a minute's tokens */
} ngx_http_pd_claim_e;


/* what a request with one or more prompts wants, and whether it gets it */

struct ngx_http_pd_claim_s {
    ngx_http_pd_limits_t    limits;           /* all said */
    ngx_uint_t              prompts;          /* not admitted yet */
    size_t                  bytes;            /* of these */
    ngx_uint_t              dry_run;

    ngx_http_pd_claim_e     state;
    ngx_http_pd_claim_e     exempt;           /* what dry_run let pass */
    ngx_uint_t              retry_after;      /* seconds, if refused */
    ngx_uint_t              reserved;         /* tokens */
    ngx_uint_t              requests;         /* that are left now */
    ngx_uint_t              tokens;
    uint64_t                requests_us;      /* until all are, us */
    uint64_t                tokens_us;
};


/* what is wanted for one of its prompts */

typedef struct {
    uint64_t                key;              /* the account's */
    size_t                  bytes;            /* of the prompt */
    size_t                  prompt;           /* tokens, estimated */
    size_t                  output;           /* tokens, 0: no limit given */
} ngx_http_pd_want_t;


/* which account it is */
uint64_t ngx_http_pd_account_key(ngx_http_pd_zone_t *zone, ngx_str_t *cluster,
    ngx_str_t *tenant, ngx_str_t *model);

/*
 * NGX_OK: the record has an account, and what it wants is reserved;
 * NGX_DECLINED: refused, claim->state says why; NGX_BUSY: no account is free.
 */
ngx_int_t ngx_http_pd_account_reserve(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_http_pd_claim_t *claim,
    ngx_http_pd_want_t *want, uint64_t now);

/* the prompt's true length */
void ngx_http_pd_account_exact(ngx_http_pd_zone_t *zone, uint32_t record,
    size_t prompt, uint64_t now);

/* tokens of another slice, 0: the limit is reached */
size_t ngx_http_pd_account_more(ngx_http_pd_zone_t *zone, uint32_t record,
    uint64_t now);

/* it has ended; "started" is 0 if no worker has seen it */
void ngx_http_pd_account_settle(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, size_t tokens, ngx_uint_t started,
    uint64_t now);

/* the record's part in its account's sum, added (1) or taken (-1) */
void ngx_http_pd_account_count(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_int_t sign);

/* all sums are 0 */
void ngx_http_pd_account_clear(ngx_http_pd_zone_t *zone);

/* debts at "now", in whole requests and tokens; 0: none */
ngx_uint_t ngx_http_pd_account_owes(ngx_http_pd_account_t *account,
    uint64_t now, uint64_t owed[2]);

/* makes an account with the debts that it had so many microseconds ago */
void ngx_http_pd_account_restore(ngx_http_pd_zone_t *zone, uint64_t key,
    uint64_t limits[2], uint64_t owed[2], uint64_t age);


#endif /* _NGX_HTTP_PD_ACCOUNT_H_INCLUDED_ */
