
/*
 * Answers that go on elsewhere: see the header.
 */


#include "ngx_http_pd_failover.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_wire.h"


#define NGX_HTTP_PD_FAILOVER_IDS        64      /* bytes, at first */
#define NGX_HTTP_PD_FAILOVER_COMMENT    1000    /* ms between comments */

/* fields of Submit and TokenList: number << 3 | wire type */

#define NGX_HTTP_PD_TAG_GENERATED       (13 << 3 | 2)
#define NGX_HTTP_PD_TAG_IDS             (1 << 3 | 2)


static void ngx_http_pd_failover_off(ngx_http_pd_attempt_t *attempt);
static void ngx_http_pd_failover_forget(ngx_http_pd_attempt_t *attempt);
static ngx_int_t ngx_http_pd_failover_room(ngx_http_pd_attempt_t *attempt,
    size_t len);
static void ngx_http_pd_failover_numerics(ngx_http_pd_failover_t *f,
    ngx_http_pd_side_t *side);
static void ngx_http_pd_failover_moved(ngx_http_pd_attempt_t *attempt);
static uint64_t ngx_http_pd_failover_turn(ngx_http_pd_attempt_t *attempt);


void
ngx_http_pd_failover_init(ngx_http_pd_attempt_t *attempt)
{
    if (attempt->submit_size > attempt->job->failover_buffer) {
        ngx_http_pd_failover_off(attempt);
    }
}


void
ngx_http_pd_failover_free(ngx_http_pd_attempt_t *attempt)
{
    if (attempt->failover.ids) {
        ngx_free(attempt->failover.ids);
        attempt->failover.ids = NULL;
    }
}


void
ngx_http_pd_failover_keep(ngx_http_pd_attempt_t *attempt,
    ngx_http_pd_sequence_t *seq)
{
    size_t                   i;
    ngx_http_pd_failover_t  *f;

    f = &attempt->failover;

    if (f->counted != attempt->number) {
        f->counted = attempt->number;

        ngx_http_pd_failover_numerics(f, &attempt->prefill);
        ngx_http_pd_failover_numerics(f, &attempt->decode);
    }

    if (f->moving) {
        ngx_http_pd_failover_moved(attempt);
    }

    if (f->off) {

        /* from the first token on, the submission is of no more use */

        ngx_http_pd_failover_forget(attempt);
        return;
    }

    if (ngx_http_pd_failover_room(attempt, seq->tokens.len) != NGX_OK) {
        ngx_http_pd_failover_off(attempt);
        ngx_http_pd_failover_free(attempt);
        ngx_http_pd_failover_forget(attempt);
        ngx_http_pd_attempt_settled(attempt);
        return;
    }

    for (i = 0; i < seq->tokens.len; i++) {
        f->ids[f->len++] = seq->tokens.data[i];    /* few, as a rule */
    }
}


static void
ngx_http_pd_failover_off(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_job_t   *job;
    ngx_http_pd_zone_t  *zone;

    job = attempt->job;
    zone = attempt->process->zone;

    attempt->failover.off = 1;

    if (job->failover_buffer == 0) {
        return;
    }

    ngx_http_pd_zone_lock(zone);
    zone->sh->clusters[job->cluster->shared].unpromised++;
    ngx_http_pd_zone_unlock(zone);

    ngx_log_error(NGX_LOG_INFO, job->log, 0,
                  "pd: request \"%V\" will not go on if its workers die: "
                  "pd_failover_buffer is smaller than it", &job->id);
}


/* all but the options, which come first, is the prompt's */

static void
ngx_http_pd_failover_forget(ngx_http_pd_attempt_t *attempt)
{
    ngx_buf_t          *b;
    ngx_chain_t        *cl;
    ngx_http_pd_job_t  *job;

    job = attempt->job;

    /* who sends tokens before it has read the prompt is up to no good */

    if (job->submit == NULL || job->submit_shared
        || attempt->prefill.submission.waits
        || attempt->decode.submission.waits
        || attempt->owner.submission.waits)
    {
        return;
    }

    for (cl = job->submit; cl; cl = cl->next) {
        b = cl->buf;

        if (b != job->options->buf) {
            (void) ngx_pfree(job->pool, b->start);
        }
    }

    job->submit = NULL;
}


static ngx_int_t
ngx_http_pd_failover_room(ngx_http_pd_attempt_t *attempt, size_t len)
{
    u_char                  *ids;
    size_t                   size, most;
    ngx_http_pd_failover_t  *f;

    f = &attempt->failover;

    if (f->size - f->len >= len) {
        return NGX_OK;
    }

    most = attempt->job->failover_buffer - attempt->submit_size;

    if (f->len + len > most) {
        return NGX_ERROR;
    }

    size = ngx_max(f->size * 2, NGX_HTTP_PD_FAILOVER_IDS);
    size = ngx_min(ngx_max(size, f->len + len), most);

    ids = ngx_alloc(size, attempt->job->log);
    if (ids == NULL) {
        return NGX_ERROR;
    }

    if (f->ids) {
        ngx_memcpy(ids, f->ids, f->len);
        ngx_free(f->ids);
    }

    f->ids = ids;
    f->size = size;

    return NGX_OK;
}


/* a worker that does not say how it computes is like no other */

static void
ngx_http_pd_failover_numerics(ngx_http_pd_failover_t *f,
    ngx_http_pd_side_t *side)
{
    if (side->attach == NULL) {
        return;
    }

    if (f->numerics == 0) {
        f->numerics = side->attach->numerics;
    }

    if (f->numerics == 0 || f->numerics != side->attach->numerics) {
        f->mixed = 1;
    }
}


/* the first tokens elsewhere */

static void
ngx_http_pd_failover_moved(ngx_http_pd_attempt_t *attempt)
{
    ngx_uint_t               level;
    ngx_http_pd_job_t       *job;
    ngx_http_pd_move_e       move;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_failover_t  *f;

    job = attempt->job;
    zone = attempt->process->zone;
    f = &attempt->failover;

    move = !f->paused ? NGX_HTTP_PD_MOVED_ANEW
                      : f->mixed ? NGX_HTTP_PD_MOVED_APPROXIMATE
                                 : NGX_HTTP_PD_MOVED_EXACT;

    f->moving = 0;
    f->paused = 0;

    if (job->canary == 0) {
        ngx_http_pd_zone_lock(zone);
        zone->sh->clusters[job->cluster->shared].moves[move]++;
        ngx_http_pd_zone_unlock(zone);
    }

    if (move == NGX_HTTP_PD_MOVED_ANEW) {
        return;
    }

    level = f->mixed ? NGX_LOG_WARN : NGX_LOG_INFO;

    ngx_log_error(level, job->log, 0,
                  "pd: request \"%V\" has gone on from token %ui, %s, "
                  "prefill \"%V\", decode \"%V\"",
                  &job->id, attempt->position,
                  f->mixed ? "approximate" : "exact",
                  &job->prefill.name, &job->decode.name);
}


ngx_uint_t
ngx_http_pd_failover_possible(ngx_http_pd_attempt_t *attempt)
{
    return !attempt->delivered || !attempt->failover.off;
}


void
ngx_http_pd_failover_begin(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_job_t       *job;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_failover_t  *f;

    job = attempt->job;
    zone = attempt->process->zone;
    f = &attempt->failover;

    job->failovers++;
    f->moving = 1;

    attempt->queue_end = ngx_current_msec + job->queue_timeout;

    if (!attempt->delivered) {
        f->numerics = 0;
        f->mixed = 0;

    } else if (!f->paused) {
        f->paused = 1;
        f->comment = ngx_current_msec + NGX_HTTP_PD_FAILOVER_COMMENT;
    }

    /* who has come further may be helped as often as who begins */

    if (attempt->position > f->base) {
        attempt->choices = 0;
    }

    ngx_http_pd_zone_lock(zone);

    f->due = ngx_http_pd_failover_turn(attempt);

    if (f->due) {
        zone->sh->clusters[job->cluster->shared].paced++;
    }

    if (attempt->delivered) {
        ngx_http_pd_revision_pin(zone, &zone->sh->records[attempt->record]);
        ngx_http_pd_load_exact(zone, attempt->record,
                               job->prompt_tokens + attempt->position);
    }

    ngx_http_pd_zone_unlock(zone);
}


/* a leaky bucket: failover_rate a second, failover_burst of them at once */

static uint64_t
ngx_http_pd_failover_turn(ngx_http_pd_attempt_t *attempt)
{
    uint64_t                     now, interval, ahead;
    ngx_http_pd_cluster_t       *conf;
    ngx_http_pd_zone_cluster_t  *cluster;

    conf = attempt->job->cluster;
    cluster = &attempt->process->zone->sh->clusters[conf->shared];

    now = ngx_http_pd_now_us();
    interval = 1000000 / conf->failover_rate;
    ahead = (conf->failover_burst - 1) * interval;

    cluster->failover_due = ngx_max(cluster->failover_due, now);

    now = (cluster->failover_due > now + ahead)
          ? cluster->failover_due - ahead : 0;

    cluster->failover_due += interval;

    return now;
}


ngx_uint_t
ngx_http_pd_failover_waits(ngx_http_pd_attempt_t *attempt)
{
    ngx_http_pd_failover_t  *f;

    f = &attempt->failover;

    if (f->due > ngx_http_pd_now_us()) {
        return 1;
    }

    f->due = 0;
    f->base = attempt->position;

    return 0;
}


ngx_msec_int_t
ngx_http_pd_failover_left(ngx_http_pd_attempt_t *attempt, ngx_msec_int_t left)
{
    uint64_t                 now;
    ngx_msec_int_t           n;
    ngx_http_pd_failover_t  *f;

    f = &attempt->failover;

    if (f->paused) {
        n = (ngx_msec_int_t) (f->comment - ngx_current_msec);
        left = ngx_min(left, n);
    }

    if (f->due && !attempt->queued) {
        now = ngx_http_pd_now_us();
        n = (f->due > now) ? (f->due - now) / 1000 + 1 : 1;
        left = ngx_min(left, n);
    }

    return left;
}


ngx_int_t
ngx_http_pd_failover_timer(ngx_http_pd_attempt_t *attempt)
{
    uint64_t                 number;
    ngx_http_pd_job_t       *job;
    ngx_http_pd_process_t   *process;
    ngx_http_pd_failover_t  *f;

    f = &attempt->failover;
    job = attempt->job;
    process = attempt->process;

    if (f->paused
        && (ngx_msec_int_t) (f->comment - ngx_current_msec) <= 0)
    {
        f->comment = ngx_current_msec + NGX_HTTP_PD_FAILOVER_COMMENT;

        if (job->handlers->paused) {
            number = job->number;

            job->handlers->paused(job);

            if (ngx_http_pd_attempt_find(process, number) == NULL) {
                return NGX_DONE;
            }
        }
    }

    if (f->due && !attempt->queued && f->due <= ngx_http_pd_now_us()) {
        ngx_http_pd_attempt_start(attempt);
        return NGX_DONE;
    }

    return NGX_OK;
}


size_t
ngx_http_pd_failover_size(ngx_http_pd_attempt_t *attempt)
{
    size_t  len;
    u_char  header[NGX_HTTP_PD_WIRE_NUMBER];

    len = attempt->failover.len;

    if (len == 0) {
        return 0;
    }

    len += 1 + (ngx_http_pd_wire_put(header, len) - header);

    return len + 1 + (ngx_http_pd_wire_put(header, len) - header);
}


u_char *
ngx_http_pd_failover_pack(ngx_http_pd_attempt_t *attempt, u_char *p)
{
    size_t  len;
    u_char  header[NGX_HTTP_PD_WIRE_NUMBER];

    len = attempt->failover.len;

    if (len == 0) {
        return p;
    }

    *p++ = NGX_HTTP_PD_TAG_GENERATED;
    p = ngx_http_pd_wire_put(p, len + 1
                    + (ngx_http_pd_wire_put(header, len) - header));
    *p++ = NGX_HTTP_PD_TAG_IDS;
    p = ngx_http_pd_wire_put(p, len);

    return ngx_cpymem(p, attempt->failover.ids, len);
}
