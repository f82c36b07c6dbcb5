
/*
 * Load: see the header.
 */


#include "ngx_http_pd_load.h"
#include "ngx_http_pd_choose.h"


#define NGX_HTTP_PD_LOAD_STREAMS    255        /* that a report may name */


static void ngx_http_pd_load_link(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, uint32_t node);
static void ngx_http_pd_load_numbers(ngx_http_pd_worker_t *worker,
    Pd__V1__LoadReport *load);
static uint64_t ngx_http_pd_load_included(uint64_t stream, uint64_t own,
    Pd__V1__LoadReport *load);
static void ngx_http_pd_load_seen(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t decode);


#define ngx_http_pd_load_node(zone, node)                                     \
    (&(zone)->sh->records[(node) / 2].unseen[(node) & 1])



/* what the record adds to its workers' sums; always the same way up and down */

void
ngx_http_pd_load_charge(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_int_t sign)
{
    uint64_t               blocks;
    ngx_http_pd_worker_t  *worker;

    if (record->prefill != NGX_HTTP_PD_NONE && !record->prefilled) {
        worker = &zone->sh->workers[record->prefill];
        worker->jobs += sign;

        if (record->unseen_prefill) {
            worker->unseen_jobs += sign;
            worker->unseen_tokens += sign * (int64_t) record->prompt;

            blocks = ngx_http_pd_choose_blocks(worker, record->prompt);
            worker->held_blocks += sign * (int64_t) blocks;
        }
    }

    if (record->decode != NGX_HTTP_PD_NONE) {
        worker = &zone->sh->workers[record->decode];
        worker->jobs += sign;

        blocks = ngx_http_pd_choose_blocks(worker, record->output);

        if (record->unseen_decode) {
            worker->unseen_jobs += sign;
            blocks += ngx_http_pd_choose_blocks(worker, record->prompt);

            if (!record->handed) {
                worker->unseen_tokens += sign * (int64_t) record->prompt;
            }

        } else {
            worker->growing_blocks += sign * (int64_t) blocks;
        }

        worker->held_blocks += sign * (int64_t) blocks;
    }
}


void
ngx_http_pd_load_drop(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record)
{
    ngx_http_pd_load_charge(zone, record, -1);
    ngx_http_pd_load_unlink(zone, record, 0);
    ngx_http_pd_load_unlink(zone, record, 1);

    record->prefill = NGX_HTTP_PD_NONE;
    record->decode = NGX_HTTP_PD_NONE;
}


void
ngx_http_pd_load_rebuild(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    uint32_t  node;

    ngx_http_pd_load_charge(zone, record, 1);

    node = (record - zone->sh->records) * 2;

    if (record->unseen[0].stream && record->prefill != NGX_HTTP_PD_NONE) {
        ngx_http_pd_load_link(zone, &zone->sh->workers[record->prefill], node);
    }

    if (record->unseen[1].stream && record->decode != NGX_HTTP_PD_NONE) {
        ngx_http_pd_load_link(zone, &zone->sh->workers[record->decode],
                              node + 1);
    }
}


void
ngx_http_pd_load_begun(ngx_http_pd_zone_t *zone, uint32_t index,
    ngx_uint_t decode, uint64_t stream, uint64_t number)
{
    ngx_uint_t             worker;
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];
    worker = decode ? record->decode : record->prefill;

    if (worker == NGX_HTTP_PD_NONE) {
        return;
    }

    record->unseen[decode].number = number;
    record->unseen[decode].stream = stream;

    ngx_http_pd_load_link(zone, &zone->sh->workers[worker],
                          index * 2 + decode);
}


static void
ngx_http_pd_load_link(ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker,
    uint32_t node)
{
    ngx_http_pd_unseen_t  *unseen;

    unseen = ngx_http_pd_load_node(zone, node);

    unseen->prev = NGX_HTTP_PD_NIL;
    unseen->next = worker->unseen;

    if (worker->unseen != NGX_HTTP_PD_NIL) {
        ngx_http_pd_load_node(zone, worker->unseen)->prev = node;
    }

    worker->unseen = node;
}


void
ngx_http_pd_load_unlink(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t decode)
{
    ngx_uint_t             worker;
    ngx_http_pd_unseen_t  *unseen;

    unseen = &record->unseen[decode];

    if (unseen->stream == 0) {
        return;
    }

    worker = decode ? record->decode : record->prefill;

    if (unseen->prev == NGX_HTTP_PD_NIL) {
        zone->sh->workers[worker].unseen = unseen->next;

    } else {
        ngx_http_pd_load_node(zone, unseen->prev)->next = unseen->next;
    }

    if (unseen->next != NGX_HTTP_PD_NIL) {
        ngx_http_pd_load_node(zone, unseen->next)->prev = unseen->prev;
    }

    unseen->stream = 0;
}


/*
 * Reports of one worker reach the processes out of order; the worker's own
 * count of them tells which is newer (the engine's step counter, if the worker
 * speaks of no count).
 */

void
ngx_http_pd_load_report(ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker,
    uint64_t stream, Pd__V1__LoadReport *load)
{
    uint32_t               node, next;
    ngx_http_pd_unseen_t  *unseen;

    if (load->taken ? load->taken > worker->taken
                    : load->steps >= worker->steps)
    {
        ngx_http_pd_load_numbers(worker, load);
    }

    for (node = worker->unseen; node != NGX_HTTP_PD_NIL; node = next) {
        unseen = ngx_http_pd_load_node(zone, node);
        next = unseen->next;

        if (unseen->number
            <= ngx_http_pd_load_included(unseen->stream, stream, load))
        {
            ngx_http_pd_load_seen(zone, &zone->sh->records[node / 2],
                                  node & 1);
        }
    }
}


static void
ngx_http_pd_load_numbers(ngx_http_pd_worker_t *worker,
    Pd__V1__LoadReport *load)
{
    worker->reported = ngx_http_pd_now_us();
    worker->taken = load->taken;
    worker->steps = load->steps;
    worker->step_us = load->step_us;
    worker->token_us_x1000 = load->prefill_us_per_token_x1000;
    worker->queued_tokens = load->prefill_queued_tokens;
    worker->kv_free = ngx_min(load->kv_free, worker->kv_blocks);
    worker->kv_reserved = ngx_min(load->kv_reserved, worker->kv_blocks);
    worker->kv_growth = ngx_min(load->kv_growth, worker->kv_blocks);
    worker->running = load->running;
    worker->waiting = load->waiting;
    worker->draining = load->draining;
}


/* the last submission of "stream" that is in the report, which came on "own" */

static uint64_t
ngx_http_pd_load_included(uint64_t stream, uint64_t own,
    Pd__V1__LoadReport *load)
{
    size_t  i, n;

    if (stream == own) {
        return load->last_submission;
    }

    n = ngx_min(load->n_seen, NGX_HTTP_PD_LOAD_STREAMS);

    for (i = 0; i < n; i++) {
        if (load->seen[i]->stream == stream) {
            return load->seen[i]->last_submission;
        }
    }

    return 0;
}


static void
ngx_http_pd_load_seen(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record,
    ngx_uint_t decode)
{
    ngx_http_pd_load_charge(zone, record, -1);
    ngx_http_pd_load_unlink(zone, record, decode);

    if (decode) {
        record->unseen_decode = 0;

    } else {
        record->unseen_prefill = 0;
    }

    ngx_http_pd_load_charge(zone, record, 1);
}


void
ngx_http_pd_load_exact(ngx_http_pd_zone_t *zone, uint32_t index,
    size_t prompt)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_charge(zone, record, -1);
    record->prompt = ngx_min(prompt, NGX_MAX_INT32_VALUE);
    ngx_http_pd_load_charge(zone, record, 1);
}


void
ngx_http_pd_load_progress(ngx_http_pd_zone_t *zone, uint32_t index,
    size_t tokens)
{
    size_t                 left;
    uint64_t               blocks;
    ngx_http_pd_record_t  *record;
    ngx_http_pd_worker_t  *worker;

    record = &zone->sh->records[index];

    left = record->output - ngx_min(record->output, tokens);

    /* of what is charged, only these blocks become fewer */

    if (record->decode != NGX_HTTP_PD_NONE) {
        worker = &zone->sh->workers[record->decode];

        blocks = ngx_http_pd_choose_blocks(worker, record->output)
                 - ngx_http_pd_choose_blocks(worker, left);

        worker->held_blocks -= blocks;

        if (!record->unseen_decode) {
            worker->growing_blocks -= blocks;
        }
    }

    record->output = left;
}


uint64_t
ngx_http_pd_load_promised(ngx_http_pd_worker_t *worker)
{
    return worker->held_blocks - worker->growing_blocks
           + ngx_max(worker->growing_blocks, worker->kv_growth);
}


void
ngx_http_pd_load_prefilled(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_charge(zone, record, -1);
    ngx_http_pd_load_unlink(zone, record, 0);
    record->prefilled = 1;
    ngx_http_pd_load_charge(zone, record, 1);
}
