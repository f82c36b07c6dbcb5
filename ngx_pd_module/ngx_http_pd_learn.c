
/*
 * What a job teaches: see the header.
 *
 * The points of a prompt are many and are needed twice in a row, to choose and
 * to remember the choice; so they lie in one place of the process, not in each
 * job, and are read again if another job came in between.
 */


#include "ngx_http_pd_learn.h"
#include "ngx_http_pd_affinity.h"
#include "ngx_http_pd_policy.h"
#include "ngx_http_pd_ratio.h"


static ngx_http_pd_prefix_t *ngx_http_pd_learn_points(
    ngx_http_pd_attempt_t *attempt);
static uint64_t ngx_http_pd_learn_session(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_learn_worker(ngx_http_pd_attempt_t *attempt,
    ngx_uint_t worker, ngx_http_pd_prefix_t *prefix);


static ngx_http_pd_prefix_t  ngx_http_pd_learn_prefix;
static uint64_t              ngx_http_pd_learn_number;    /* the job's */


void
ngx_http_pd_learn_prompt(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_need_t *need)
{
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    need->prefix = ngx_http_pd_learn_points(attempt);
    need->key = job->hash_key.len ? ngx_http_pd_policy_hash(&job->hash_key)
                                  : 0;
    need->session = ngx_http_pd_learn_session(attempt);

    attempt->tail = need->prefix->tail;
    attempt->learns = need->prefix->chat;

    if (attempt->learns) {
        ngx_http_pd_tail_answer(&attempt->tail);
    }
}


void
ngx_http_pd_learn_estimate(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_need_t *need)
{
    ngx_http_pd_job_t   *job;
    ngx_http_pd_zone_t  *zone;

    job = attempt->job;
    zone = attempt->process->zone;

    job->estimate = ngx_http_pd_ratio_tokens(zone,
                                     ngx_http_pd_zone_hash(zone, &job->model),
                                     ngx_http_pd_zone_hash(zone, &job->tenant),
                                     job->prompt_bytes);
    need->prompt = job->estimate;
}


void
ngx_http_pd_learn_counted(ngx_http_pd_attempt_t *attempt, size_t tokens)
{
    ngx_http_pd_job_t   *job;
    ngx_http_pd_zone_t  *zone;

    job = attempt->job;
    zone = attempt->process->zone;

    ngx_http_pd_ratio_learn(zone, ngx_http_pd_zone_hash(zone, &job->model),
                            ngx_http_pd_zone_hash(zone, &job->tenant),
                            job->prompt_bytes, tokens);
}


static ngx_http_pd_prefix_t *
ngx_http_pd_learn_points(ngx_http_pd_attempt_t *attempt)
{
    uint64_t             seed;
    ngx_http_pd_job_t   *job;
    ngx_http_pd_zone_t  *zone;

    job = attempt->job;
    zone = attempt->process->zone;

    if (ngx_http_pd_learn_number != job->number) {
        ngx_http_pd_learn_number = job->number;

        seed = zone->sh->seed ^ ngx_http_pd_zone_hash(zone, &job->model);

        /* the options come first, and then the prompt */

        ngx_http_pd_prefix_scan(&ngx_http_pd_learn_prefix,
                                job->submit ? job->submit->next : NULL, seed);
    }

    return &ngx_http_pd_learn_prefix;
}


static uint64_t
ngx_http_pd_learn_session(ngx_http_pd_attempt_t *attempt)
{
    uint64_t            session;
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    if (job->sticky_key.len == 0) {
        return 0;
    }

    /* of one cluster, and no point of a prompt */

    session = ngx_http_pd_zone_hash(attempt->process->zone, &job->sticky_key);
    session = (session ^ job->cluster->shared_id) * 0x9e3779b97f4a7c15u;

    return session ? session : 1;
}


void
ngx_http_pd_learn_started(ngx_http_pd_attempt_t *attempt)
{
    ngx_uint_t             i, worker;
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_record_t  *record;
    ngx_http_pd_prefix_t  *prefix;

    zone = attempt->process->zone;
    record = &zone->sh->records[attempt->record];
    prefix = ngx_http_pd_learn_points(attempt);

    ngx_http_pd_zone_lock(zone);

    /* the log tells what was expected of who computes the prompt */

    worker = record->prefill != NGX_HTTP_PD_NONE ? record->prefill
                                                 : record->decode;

    attempt->job->affinity = ngx_http_pd_affinity_cached(zone, record,
                                              &zone->sh->workers[worker]);

    for (i = 0; i < 2; i++) {
        worker = i ? record->decode : record->prefill;

        if (worker != NGX_HTTP_PD_NONE) {
            ngx_http_pd_learn_worker(attempt, worker, prefix);
        }
    }

    ngx_http_pd_zone_unlock(zone);
}


static void
ngx_http_pd_learn_worker(ngx_http_pd_attempt_t *attempt, ngx_uint_t worker,
    ngx_http_pd_prefix_t *prefix)
{
    uint64_t             session;
    ngx_http_pd_zone_t  *zone;

    zone = attempt->process->zone;

    ngx_http_pd_affinity_learn(zone, worker, prefix);

    session = ngx_http_pd_learn_session(attempt);

    if (session) {
        ngx_http_pd_affinity_learn_hash(zone, worker, session);
    }
}


/* of its own workers, it is true soon: they get the prompt now */

void
ngx_http_pd_learn_missing(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_record_t  *record;
    ngx_http_pd_prefix_t  *prefix;

    zone = attempt->process->zone;
    record = &zone->sh->records[attempt->record];

    if (record->owner == NGX_HTTP_PD_NONE || record->owner == record->decode) {
        return;
    }

    prefix = ngx_http_pd_learn_points(attempt);

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_affinity_forget(zone, record->owner, prefix);
    ngx_http_pd_zone_unlock(zone);
}


/* thoughts and tool calls come back in another form than they went, or not */

void
ngx_http_pd_learn_answer(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq)
{
    if (!attempt->learns) {
        return;
    }

    if (seq->reasoning.len || seq->tools) {
        attempt->learns = 0;
        return;
    }

    ngx_http_pd_tail_text(&attempt->tail, seq->text.data, seq->text.len);
}


void
ngx_http_pd_learn_finished(ngx_http_pd_attempt_t *attempt)
{
    ngx_uint_t            worker;
    ngx_http_pd_zone_t   *zone;
    ngx_http_pd_point_t   point;

    if (!attempt->learns) {
        return;
    }

    zone = attempt->process->zone;
    worker = zone->sh->records[attempt->record].decode;

    if (worker == NGX_HTTP_PD_NONE) {
        return;
    }

    ngx_http_pd_tail_end(&attempt->tail, &point);

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_affinity_learn_hash(zone, worker, point.hash);
    ngx_http_pd_zone_unlock(zone);
}
