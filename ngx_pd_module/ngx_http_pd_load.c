
/*
 * Load: see the header.
 */


#include "ngx_http_pd_load.h"
#include "ngx_http_pd_choose.h"



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
        }

        worker->held_blocks += sign * (int64_t) blocks;
    }
}


void
ngx_http_pd_load_drop(ngx_http_pd_zone_t *zone, ngx_http_pd_record_t *record)
{
    ngx_http_pd_load_charge(zone, record, -1);

    record->prefill = NGX_HTTP_PD_NONE;
    record->decode = NGX_HTTP_PD_NONE;
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
ngx_http_pd_load_seen(ngx_http_pd_zone_t *zone, uint32_t index,
    ngx_uint_t decode)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_charge(zone, record, -1);

    if (decode) {
        record->unseen_decode = 0;

    } else {
        record->unseen_prefill = 0;
    }

    ngx_http_pd_load_charge(zone, record, 1);
}


void
ngx_http_pd_load_progress(ngx_http_pd_zone_t *zone, uint32_t index,
    size_t tokens)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_charge(zone, record, -1);
    record->output -= ngx_min(record->output, tokens);
    ngx_http_pd_load_charge(zone, record, 1);
}


void
ngx_http_pd_load_prefilled(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_charge(zone, record, -1);
    record->prefilled = 1;
    ngx_http_pd_load_charge(zone, record, 1);
}
