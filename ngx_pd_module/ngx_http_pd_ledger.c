
/*
 * The ledger: see the header.
 */


#include "ngx_http_pd_ledger.h"
#include "ngx_http_pd_account.h"
#include "ngx_http_pd_affinity.h"
#include "ngx_http_pd_choose.h"
#include "ngx_http_pd_load.h"
#include "ngx_http_pd_queue.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_slot.h"


#define NGX_HTTP_PD_LEDGER_GRANT    100000     /* us to take a grant */
#define NGX_HTTP_PD_LEDGER_STUCK    8          /* models that wait, looked at */


static ngx_int_t ngx_http_pd_ledger_reserve(ngx_http_pd_zone_t *zone,
    ngx_http_pd_need_t *need, ngx_http_pd_record_t *record,
    ngx_http_pd_refused_e *why);
static ngx_http_pd_record_t *ngx_http_pd_ledger_alloc(ngx_http_pd_zone_t *zone,
    uint32_t *index);
static void ngx_http_pd_ledger_free(ngx_http_pd_zone_t *zone, uint32_t index);
static ngx_int_t ngx_http_pd_ledger_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);
static ngx_int_t ngx_http_pd_ledger_wait(ngx_http_pd_zone_t *zone,
    ngx_http_pd_need_t *need, ngx_http_pd_record_t *record,
    ngx_http_pd_refused_e *why);
static void ngx_http_pd_ledger_run_cluster(ngx_http_pd_zone_t *zone,
    ngx_http_pd_zone_cluster_t *cluster);
static void ngx_http_pd_ledger_grant(ngx_http_pd_zone_t *zone, uint32_t index);
static void ngx_http_pd_ledger_ungrant(ngx_http_pd_zone_t *zone,
    uint32_t index);
static ngx_uint_t ngx_http_pd_ledger_nobody(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *cluster, uint64_t model);


ngx_int_t
ngx_http_pd_ledger_admit(ngx_http_pd_zone_t *zone, ngx_http_pd_need_t *need,
    uint32_t *index, ngx_http_pd_refused_e *why)
{
    uint64_t                     model;
    ngx_http_pd_shared_t        *sh;
    ngx_http_pd_record_t        *record;
    ngx_http_pd_zone_cluster_t  *cluster;

    sh = zone->sh;
    cluster = &sh->clusters[need->cluster->shared];

    if (need->cluster->shared_id == 0
        || cluster->id != need->cluster->shared_id)
    {
        *why = NGX_HTTP_PD_REFUSED_TABLE;
        return NGX_DECLINED;
    }

    model = ngx_http_pd_zone_hash(zone, &need->model);

    if (ngx_http_pd_ledger_nobody(zone, need->cluster, model)) {
        *why = NGX_HTTP_PD_REFUSED_MODEL;
        return NGX_DECLINED;
    }

    record = ngx_http_pd_ledger_alloc(zone, index);

    if (record == NULL) {
        *why = NGX_HTTP_PD_REFUSED_TABLE;
        return NGX_DECLINED;
    }

    record->number = need->number;
    record->model = model;
    record->slot = zone->slot;
    record->cluster = need->cluster->shared;
    record->prompt = ngx_min(need->prompt, NGX_MAX_INT32_VALUE);
    record->output = need->output ? ngx_min(need->output, NGX_MAX_INT32_VALUE)
                                  : NGX_HTTP_PD_LEDGER_OUTPUT;
    record->single = (need->output == 1);
    record->canary = need->canary;
    record->split = (need->canary != 0);

    if (need->canary == 0) {
        ngx_http_pd_revision_draw(zone, record);
    }
    record->key = need->key;

    if (need->prefix) {
        ngx_http_pd_affinity_find(zone, record, need->prefix);
    }

    if (need->session) {
        ngx_http_pd_affinity_stick(zone, record, need->session);
    }
    record->class = need->class;
    record->bytes = ngx_min(need->bytes, NGX_MAX_INT32_VALUE);

    if (need->claim
        && ngx_http_pd_ledger_reserve(zone, need, record, why) != NGX_OK)
    {
        ngx_http_pd_ledger_free(zone, *index);
        return NGX_DECLINED;
    }

    ngx_http_pd_queue_place(zone, record, need->weight);

    if ((cluster->queued == 0 || need->canary)
        && ngx_http_pd_ledger_place(zone, record) == NGX_OK)
    {
        ngx_http_pd_queue_served(zone, record, 0);
        record->state = NGX_HTTP_PD_RECORD_RUNNING;
        return NGX_OK;
    }

    if (need->canary) {
        ngx_http_pd_ledger_free(zone, *index);
        *why = NGX_HTTP_PD_REFUSED_CANARY;
        return NGX_DECLINED;
    }

    if (ngx_http_pd_ledger_wait(zone, need, record, why) != NGX_OK) {
        ngx_http_pd_queue_forgo(zone, record);
        ngx_http_pd_account_settle(zone, record, 0, 0, ngx_http_pd_now_us());
        ngx_http_pd_ledger_free(zone, *index);
        return NGX_DECLINED;
    }

    /* requests for another model may wait in front, and need not hold us */

    ngx_http_pd_queue_insert(zone, *index);
    ngx_http_pd_ledger_run_cluster(zone, cluster);

    return NGX_AGAIN;
}


/* whether it may wait, and whether that makes sense */

static ngx_int_t
ngx_http_pd_ledger_wait(ngx_http_pd_zone_t *zone, ngx_http_pd_need_t *need,
    ngx_http_pd_record_t *record, ngx_http_pd_refused_e *why)
{
    uint64_t             wait;
    ngx_http_pd_line_t  *line;

    line = &zone->sh->clusters[record->cluster].lines[record->class];

    if (line->queued >= need->cluster->queue
        || line->bytes + need->bytes > need->cluster->queue_bytes)
    {
        *why = NGX_HTTP_PD_REFUSED_QUEUE;
        return NGX_DECLINED;
    }

    wait = (uint64_t) need->wait * 1000;

    if (ngx_http_pd_queue_wait(zone, record, wait) > wait) {
        *why = NGX_HTTP_PD_REFUSED_WAIT;
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* what it may need, on its tenant's account */

static ngx_int_t
ngx_http_pd_ledger_reserve(ngx_http_pd_zone_t *zone, ngx_http_pd_need_t *need,
    ngx_http_pd_record_t *record, ngx_http_pd_refused_e *why)
{
    ngx_http_pd_want_t  want;

    want.key = ngx_http_pd_account_key(zone, &need->cluster->name,
                                       &need->tenant, &need->model);
    want.bytes = need->bytes;
    want.prompt = record->prompt;
    want.output = need->output;

    switch (ngx_http_pd_account_reserve(zone, record, need->claim, &want,
                                        ngx_http_pd_now_us()))
    {

    case NGX_OK:
        return NGX_OK;

    case NGX_BUSY:
        *why = NGX_HTTP_PD_REFUSED_TABLE;
        return NGX_DECLINED;

    default: /* NGX_DECLINED */
        *why = NGX_HTTP_PD_REFUSED_LIMIT;
        return NGX_DECLINED;
    }
}


ngx_int_t
ngx_http_pd_ledger_again(ngx_http_pd_zone_t *zone, uint32_t index,
    ngx_uint_t avoid)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_drop(zone, record);

    record->avoid[2] = record->avoid[1];
    record->avoid[1] = record->avoid[0];
    record->avoid[0] = avoid;

    if (ngx_http_pd_ledger_place(zone, record) == NGX_OK) {
        ngx_http_pd_ledger_run(zone);
        return NGX_OK;
    }

    /* whoever has refused may be the only one: let it be asked later */

    ngx_memset(record->avoid, 0xff, sizeof(record->avoid));

    ngx_http_pd_queue_insert(zone, index);
    ngx_http_pd_ledger_run(zone);

    return NGX_AGAIN;
}


ngx_int_t
ngx_http_pd_ledger_again_decode(ngx_http_pd_zone_t *zone, uint32_t index,
    ngx_uint_t avoid)
{
    ngx_int_t              rc;
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_load_charge(zone, record, -1);
    ngx_http_pd_load_unlink(zone, record, 1);

    record->decode = NGX_HTTP_PD_NONE;
    record->avoid[2] = record->avoid[1];
    record->avoid[1] = record->avoid[0];
    record->avoid[0] = avoid;

    rc = ngx_http_pd_choose_decode(zone, record);

    if (rc == NGX_OK) {
        record->unseen_decode = 1;
    }

    ngx_http_pd_load_charge(zone, record, 1);

    return rc;
}


uint32_t
ngx_http_pd_ledger_take(ngx_http_pd_zone_t *zone)
{
    uint32_t               index;
    ngx_http_pd_slot_t    *slot;
    ngx_http_pd_record_t  *record;

    slot = &zone->sh->slots[zone->slot];
    slot->stalled = 0;

    index = slot->grants;

    if (index != NGX_HTTP_PD_NIL) {
        record = &zone->sh->records[index];
        record->state = NGX_HTTP_PD_RECORD_RUNNING;
        slot->grants = record->next;
    }

    return index;
}


void
ngx_http_pd_ledger_release(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    switch (record->state) {

    case NGX_HTTP_PD_RECORD_QUEUED:
        ngx_http_pd_queue_remove(zone, index);
        ngx_http_pd_queue_forgo(zone, record);
        break;

    case NGX_HTTP_PD_RECORD_GRANTED:
        ngx_http_pd_ledger_ungrant(zone, index);
        break;
    }

    ngx_http_pd_load_drop(zone, record);
    ngx_http_pd_ledger_free(zone, index);
    ngx_http_pd_ledger_run(zone);
}


void
ngx_http_pd_ledger_run(ngx_http_pd_zone_t *zone)
{
    ngx_uint_t                   i;
    ngx_http_pd_zone_cluster_t  *cluster;

    for (i = 0; i < zone->sh->nclusters; i++) {
        cluster = &zone->sh->clusters[i];

        if (cluster->queued) {
            ngx_http_pd_ledger_run_cluster(zone, cluster);
        }
    }
}


/*
 * In the order of the queue, but who waits for one model does not hold up who
 * waits for another, and nobody waits for a process that stands still.
 */

static void
ngx_http_pd_ledger_run_cluster(ngx_http_pd_zone_t *zone,
    ngx_http_pd_zone_cluster_t *cluster)
{
    uint32_t                   index;
    uint64_t                   stuck[NGX_HTTP_PD_LEDGER_STUCK];
    ngx_uint_t                 i, n;
    ngx_http_pd_record_t      *record;
    ngx_http_pd_queue_walk_t   walk;

    n = 0;

    ngx_http_pd_queue_walk(cluster, &walk);

    while ((index = ngx_http_pd_queue_next(zone, &walk)) != NGX_HTTP_PD_NIL) {
        record = &zone->sh->records[index];

        if (zone->sh->slots[record->slot].stalled) {
            continue;
        }

        for (i = 0; i < n; i++) {
            if (stuck[i] == record->model) {
                break;
            }
        }

        if (i < n) {
            continue;
        }

        if (ngx_http_pd_ledger_place(zone, record) != NGX_OK) {
            stuck[n++] = record->model;

            if (n == NGX_HTTP_PD_LEDGER_STUCK) {
                return;
            }

            ngx_http_pd_queue_stuck(&walk, record->model);
            continue;
        }

        ngx_http_pd_queue_remove(zone, index);
        ngx_http_pd_ledger_grant(zone, index);
    }
}


static void
ngx_http_pd_ledger_grant(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_slot_t    *slot;
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];
    slot = &zone->sh->slots[record->slot];

    ngx_http_pd_queue_served(zone, record, 1);

    record->state = NGX_HTTP_PD_RECORD_GRANTED;
    record->since = ngx_http_pd_now_us();
    record->next = slot->grants;
    slot->grants = index;

    ngx_http_pd_slot_wake(zone, record->slot);
}


static void
ngx_http_pd_ledger_ungrant(ngx_http_pd_zone_t *zone, uint32_t index)
{
    uint32_t              *link;
    ngx_http_pd_record_t  *records;

    records = zone->sh->records;
    link = &zone->sh->slots[records[index].slot].grants;

    while (*link != index) {
        link = &records[*link].next;
    }

    *link = records[index].next;
}


void
ngx_http_pd_ledger_expire(ngx_http_pd_zone_t *zone)
{
    uint32_t               index, next;
    uint64_t               now;
    ngx_uint_t             i, moved;
    ngx_http_pd_slot_t    *slot;
    ngx_http_pd_record_t  *record;

    now = ngx_http_pd_now_us();
    moved = 0;

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {
        slot = &zone->sh->slots[i];

        if (slot->pid == 0 || i == zone->slot) {
            continue;
        }

        for (index = slot->grants; index != NGX_HTTP_PD_NIL; index = next) {
            record = &zone->sh->records[index];
            next = record->next;

            if (now - record->since < NGX_HTTP_PD_LEDGER_GRANT) {
                continue;
            }

            slot->stalled = 1;
            moved = 1;

            ngx_http_pd_ledger_ungrant(zone, index);
            ngx_http_pd_load_drop(zone, record);
            ngx_http_pd_queue_insert(zone, index);
        }
    }

    if (moved) {
        ngx_http_pd_ledger_run(zone);
    }
}


void
ngx_http_pd_ledger_forget(ngx_http_pd_zone_t *zone, ngx_uint_t slot)
{
    uint32_t               index;
    ngx_http_pd_record_t  *record;

    for (index = 0; index < zone->sh->fresh; index++) {
        record = &zone->sh->records[index];

        if (record->state != NGX_HTTP_PD_RECORD_FREE && record->slot == slot) {

            if (record->canary == 0) {
                zone->sh->clusters[record->cluster].ended[NGX_HTTP_PD_LOST]++;
            }

            ngx_http_pd_ledger_release(zone, index);
        }
    }
}


/*
 * Whoever held the lock may have died in the middle of anything.  What a
 * record says about itself is written in single words and holds; lists and sums
 * are made anew.
 */

void
ngx_http_pd_ledger_rebuild(ngx_http_pd_zone_t *zone)
{
    uint32_t               index;
    ngx_uint_t             i;
    ngx_http_pd_slot_t    *slot;
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_worker_t  *worker;
    ngx_http_pd_record_t  *record;

    sh = zone->sh;

    for (i = 0; i < NGX_HTTP_PD_ZONE_CLUSTERS; i++) {
        ngx_http_pd_queue_init(&sh->clusters[i]);
    }

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {
        sh->slots[i].grants = NGX_HTTP_PD_NIL;
    }

    for (i = 0; i < NGX_HTTP_PD_ZONE_WORKERS; i++) {
        worker = &sh->workers[i];
        worker->jobs = 0;
        worker->unseen_jobs = 0;
        worker->unseen_tokens = 0;
        worker->held_blocks = 0;
        worker->growing_blocks = 0;
        worker->unseen = NGX_HTTP_PD_NIL;
    }

    ngx_http_pd_account_clear(zone);

    sh->free = NGX_HTTP_PD_NIL;

    for (index = 0; index < sh->fresh; index++) {
        record = &sh->records[index];

        if (record->state != NGX_HTTP_PD_RECORD_FREE) {
            ngx_http_pd_account_count(zone, record, 1);
        }

        switch (record->state) {

        case NGX_HTTP_PD_RECORD_FREE:
            record->next = sh->free;
            sh->free = index;
            break;

        case NGX_HTTP_PD_RECORD_QUEUED:
            record->prefill = NGX_HTTP_PD_NONE;
            record->decode = NGX_HTTP_PD_NONE;
            ngx_http_pd_queue_insert(zone, index);
            break;

        case NGX_HTTP_PD_RECORD_GRANTED:
            slot = &sh->slots[record->slot];
            record->next = slot->grants;
            slot->grants = index;
            ngx_http_pd_load_rebuild(zone, record);
            break;

        case NGX_HTTP_PD_RECORD_RUNNING:
            ngx_http_pd_load_rebuild(zone, record);
            break;
        }
    }
}


static ngx_http_pd_record_t *
ngx_http_pd_ledger_alloc(ngx_http_pd_zone_t *zone, uint32_t *index)
{
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_record_t  *record;

    sh = zone->sh;

    if (sh->free != NGX_HTTP_PD_NIL) {
        *index = sh->free;
        sh->free = sh->records[*index].next;

    } else if (sh->fresh < sh->nrecords) {
        *index = sh->fresh++;

    } else {
        return NULL;
    }

    record = &sh->records[*index];

    ngx_memzero(record, sizeof(ngx_http_pd_record_t));

    record->account = NGX_HTTP_PD_NIL;
    record->prefill = NGX_HTTP_PD_NONE;
    record->decode = NGX_HTTP_PD_NONE;
    ngx_memset(record->avoid, 0xff, sizeof(record->avoid));
    ngx_memset(record->stuck, 0xff, sizeof(record->stuck));
    ngx_memset(record->near, 0xff, sizeof(record->near));

    return record;
}


static void
ngx_http_pd_ledger_free(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_record_t  *record;

    record = &zone->sh->records[index];

    ngx_http_pd_account_count(zone, record, -1);

    record->state = NGX_HTTP_PD_RECORD_FREE;
    record->next = zone->sh->free;
    zone->sh->free = index;
}


static ngx_int_t
ngx_http_pd_ledger_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    if (ngx_http_pd_choose(zone, record) != NGX_OK) {
        return NGX_AGAIN;
    }

    record->unseen_prefill = 1;
    record->unseen_decode = 1;
    record->prefilled = 0;
    record->handed = (record->prefill != NGX_HTTP_PD_NONE);

    ngx_http_pd_load_charge(zone, record, 1);

    return NGX_OK;
}


/*
 * The model does not exist if nobody serves it, provided that everybody who
 * might has been asked for once: at start, workers appear one by one.
 */

static ngx_uint_t
ngx_http_pd_ledger_nobody(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *cluster, uint64_t model)
{
    ngx_uint_t             i, known;
    ngx_http_pd_worker_t  *worker;

    known = 0;

    for (i = 0; i < zone->sh->nworkers; i++) {
        worker = &zone->sh->workers[i];

        if (worker->id == 0 || worker->cluster != cluster->shared
            || worker->down || !(worker->configured || worker->lease))
        {
            continue;
        }

        if (!worker->tried) {
            return 0;
        }

        if (worker->known) {
            if (model == 0 || worker->model_hash == model) {
                return 0;
            }

            known = 1;
        }
    }

    return known;
}
