
/*
 * One Attach stream: see the header.
 *
 *          open            worker's hello
 *     DOWN ------> OPENING ------> UP
 *      ^              |            |   silence, a faulty message,
 *      +--------------+------------+   the end of the stream
 *        0.1 to 1 s, with jitter
 *
 * All timers are cancelable and the connection is idle in nginx's sense: a
 * process that leaves waits for its requests, never for its workers.  Liveness
 * is told by messages, each second in both directions.
 */


#include "ngx_http_pd_attach.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_hello.h"
#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_resolve.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_ATTACH_HELLO      10000    /* ms to say hello */
#define NGX_HTTP_PD_ATTACH_BEAT       1000     /* ms between heartbeats */
#define NGX_HTTP_PD_ATTACH_SILENCE    5000     /* ms until given up */
#define NGX_HTTP_PD_ATTACH_FIRST      100      /* ms until the first retry */
#define NGX_HTTP_PD_ATTACH_RETRY      1000     /* ms between later ones */


static ngx_int_t ngx_http_pd_attach_resolve(ngx_http_pd_attach_t *attach,
    ngx_uint_t cluster);
static void ngx_http_pd_attach_open(ngx_http_pd_attach_t *attach);
static void ngx_http_pd_attach_resolved(ngx_http_pd_attach_t *attach,
    ngx_str_t *why);
static ngx_int_t ngx_http_pd_attach_say_hello(ngx_http_pd_attach_t *attach);
static void ngx_http_pd_attach_timer(ngx_event_t *ev);
static void ngx_http_pd_attach_beat(ngx_http_pd_attach_t *attach);
static void ngx_http_pd_attach_flush_handler(ngx_event_t *ev);
static void ngx_http_pd_attach_give_up(ngx_http_pd_attach_t *attach,
    const char *fault);
static void ngx_http_pd_attach_down(ngx_http_pd_attach_t *attach,
    ngx_str_t *why);

static size_t ngx_http_pd_attach_on_fill(void *data, u_char *buf, size_t size);
static void ngx_http_pd_attach_on_closed(void *data, ngx_str_t *why);
static void ngx_http_pd_attach_on_shutdown(void *data, ngx_uint_t at_once);


static const ngx_http_pd_h2_handlers_t  ngx_http_pd_attach_handlers = {
    ngx_http_pd_attach_on_fill,
    ngx_http_pd_attach_on_message,
    ngx_http_pd_attach_on_closed,
    ngx_http_pd_attach_on_shutdown
};


ngx_http_pd_attach_t *
ngx_http_pd_attach_create(ngx_http_pd_process_t *process,
    ngx_http_pd_worker_t *worker)
{
    ngx_pool_t            *pool;
    ngx_http_pd_attach_t  *attach;

    pool = ngx_create_pool(1024, process->log);
    if (pool == NULL) {
        return NULL;
    }

    attach = ngx_pcalloc(pool, sizeof(ngx_http_pd_attach_t));
    if (attach == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    attach->process = process;
    attach->pool = pool;
    attach->index = ngx_http_pd_worker_index(process->zone, worker);
    attach->id = worker->id;

    attach->name.len = worker->address_len;
    attach->name.data = ngx_pnalloc(pool, attach->name.len);

    if (attach->name.data == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    ngx_memcpy(attach->name.data, worker->address, attach->name.len);

    if (ngx_http_pd_attach_resolve(attach, worker->cluster) != NGX_OK) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    ngx_http_pd_outbox_init(&attach->outbox);
    ngx_queue_init(&attach->sides);

    attach->flush.handler = ngx_http_pd_attach_flush_handler;
    attach->flush.data = attach;
    attach->flush.log = process->log;

    attach->timer.handler = ngx_http_pd_attach_timer;
    attach->timer.data = attach;
    attach->timer.log = process->log;
    attach->timer.cancelable = 1;

    ngx_post_event(&attach->timer, &ngx_posted_events);

    return attach;
}


/* as the configuration has resolved it; a registered address is numeric */

static ngx_int_t
ngx_http_pd_attach_resolve(ngx_http_pd_attach_t *attach, ngx_uint_t cluster)
{
    ngx_uint_t                   i, n;
    ngx_http_pd_cluster_t      **clusters;
    ngx_http_pd_main_conf_t     *pmcf;
    ngx_http_pd_worker_conf_t   *workers;

    pmcf = attach->process->conf;
    clusters = pmcf->clusters.elts;

    for (n = 0; n < pmcf->clusters.nelts; n++) {

        if (clusters[n]->shared_id == 0 || clusters[n]->shared != cluster) {
            continue;
        }

        workers = clusters[n]->workers.elts;

        for (i = 0; i < clusters[n]->workers.nelts; i++) {

            if (workers[i].address.len == attach->name.len
                && ngx_memcmp(workers[i].address.data, attach->name.data,
                              attach->name.len)
                   == 0)
            {
                attach->addrs = workers[i].addrs;
                attach->naddrs = workers[i].naddrs;

                if (attach->addrs == NULL) {
                    attach->host = workers[i].url.host;
                    attach->port = workers[i].url.port;
                    attach->resolved = ngx_http_pd_attach_resolved;
                }

                return NGX_OK;
            }
        }
    }

    attach->naddrs = 1;
    attach->addrs = ngx_pcalloc(attach->pool, sizeof(ngx_addr_t));

    if (attach->addrs == NULL) {
        return NGX_ERROR;
    }

    return ngx_parse_addr_port(attach->pool, attach->addrs, attach->name.data,
                               attach->name.len);
}


void
ngx_http_pd_attach_destroy(ngx_http_pd_attach_t *attach)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    if (attach->h2) {
        ngx_http_pd_h2_close(attach->h2);
    }

    if (attach->timer.timer_set) {
        ngx_del_timer(&attach->timer);
    }

    if (attach->timer.posted) {
        ngx_delete_posted_event(&attach->timer);
    }

    if (attach->flush.posted) {
        ngx_delete_posted_event(&attach->flush);
    }

    ngx_http_pd_outbox_clear(&attach->outbox);
    ngx_http_pd_resolve_end(attach);

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker) {
        ngx_http_pd_slot_set_attached(zone, worker, 0);
    }

    ngx_http_pd_zone_unlock(zone);

    ngx_destroy_pool(attach->pool);
}


static void
ngx_http_pd_attach_timer(ngx_event_t *ev)
{
    ngx_http_pd_attach_t  *attach = ev->data;

    ev->timedout = 0;

    if (attach->fault) {
        ngx_http_pd_attach_give_up(attach, attach->fault);
        return;
    }

    switch (attach->state) {

    case NGX_HTTP_PD_ATTACH_DOWN:
        ngx_http_pd_attach_open(attach);
        break;

    case NGX_HTTP_PD_ATTACH_OPENING:
        ngx_http_pd_attach_give_up(attach, "no hello came");
        break;

    default: /* NGX_HTTP_PD_ATTACH_UP */
        ngx_http_pd_attach_beat(attach);
        break;
    }
}


static void
ngx_http_pd_attach_open(ngx_http_pd_attach_t *attach)
{
    ngx_int_t    rc;
    ngx_str_t    why;
    ngx_addr_t  *addr;

    rc = ngx_http_pd_resolve(attach);

    if (rc == NGX_AGAIN) {
        return;
    }

    if (rc == NGX_ERROR || attach->naddrs == 0) {
        ngx_str_set(&why, "its name cannot be resolved");
        ngx_http_pd_attach_down(attach, &why);
        return;
    }

    addr = &attach->addrs[attach->next_addr];

    attach->moved = 0;
    attach->peer_len = addr->socklen;
    ngx_memcpy(&attach->peer, addr->sockaddr, addr->socklen);

    attach->next_addr = (attach->next_addr + 1) % attach->naddrs;

    attach->state = NGX_HTTP_PD_ATTACH_OPENING;

    if (ngx_http_pd_attach_say_hello(attach) != NGX_OK) {
        ngx_str_set(&why, "no memory");
        ngx_http_pd_attach_down(attach, &why);
        return;
    }

    attach->h2 = ngx_http_pd_h2_open(addr, &attach->name,
                                     "/pd.v1.Worker/Attach",
                                     &ngx_http_pd_attach_handlers, attach,
                                     attach->process->log, &why);

    if (attach->h2 == NULL) {
        ngx_http_pd_attach_down(attach, &why);
        return;
    }

    ngx_add_timer(&attach->timer, NGX_HTTP_PD_ATTACH_HELLO);
}


/* who is up stays so while the name has its address, and else ends its jobs */

static void
ngx_http_pd_attach_resolved(ngx_http_pd_attach_t *attach, ngx_str_t *why)
{
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker;

    if (attach->state == NGX_HTTP_PD_ATTACH_DOWN) {

        if (attach->naddrs == 0) {
            ngx_http_pd_attach_down(attach, why);
            return;
        }

        ngx_http_pd_attach_open(attach);
        return;
    }

    if (attach->moved || ngx_http_pd_resolve_holds(attach)) {
        return;
    }

    attach->moved = 1;

    ngx_log_error(NGX_LOG_NOTICE, attach->process->log, 0,
                  "pd: worker \"%V\" has moved: its name has another address",
                  &attach->name);

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker) {
        ngx_http_pd_slot_set_attached(zone, worker, 0);
    }

    ngx_http_pd_zone_unlock(zone);
}


static ngx_int_t
ngx_http_pd_attach_say_hello(ngx_http_pd_attach_t *attach)
{
    Pd__V1__ToWorker       note = PD__V1__TO_WORKER__INIT;
    ngx_http_pd_zone_t    *zone;
    Pd__V1__FrontendHello  hello = PD__V1__FRONTEND_HELLO__INIT;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);
    attach->stream = ++zone->sh->last_id;
    ngx_http_pd_zone_unlock(zone);

    hello.stream = attach->stream;
    hello.protocol = NGX_HTTP_PD_PROTOCOL;
    hello.protocol_min = NGX_HTTP_PD_PROTOCOL_MIN;
    hello.frontend_id = (char *) zone->sh->frontend_id;
    hello.slot = zone->slot;
    hello.generation = zone->generation;
    hello.report_interval_ms = NGX_HTTP_PD_ATTACH_BEAT;

    note.kind_case = PD__V1__TO_WORKER__KIND_HELLO;
    note.hello = &hello;

    return ngx_http_pd_outbox_note(&attach->outbox, &note);
}


static void
ngx_http_pd_attach_beat(ngx_http_pd_attach_t *attach)
{
    Pd__V1__ToWorker         note = PD__V1__TO_WORKER__INIT;
    Pd__V1__Heartbeat       beat = PD__V1__HEARTBEAT__INIT;
    ngx_http_pd_zone_t     *zone;
    ngx_http_pd_worker_t   *worker;
    Pd__V1__FrontendHealth  health = PD__V1__FRONTEND_HEALTH__INIT;

    if ((ngx_msec_int_t) (ngx_current_msec - attach->heard)
        > NGX_HTTP_PD_ATTACH_SILENCE)
    {
        ngx_http_pd_attach_give_up(attach, "nothing was heard from it for 5 s");
        return;
    }

    (void) ngx_http_pd_resolve(attach);

    if (attach->moved && ngx_queue_empty(&attach->sides)) {
        ngx_http_pd_attach_give_up(attach, "its name has another address");
        return;
    }

    beat.number = ++attach->heartbeats;

    zone = attach->process->zone;

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker) {
        ngx_http_pd_ready_tell(zone, worker->cluster, &health);
        beat.health = &health;
    }

    ngx_http_pd_zone_unlock(zone);

    note.kind_case = PD__V1__TO_WORKER__KIND_HEARTBEAT;
    note.heartbeat = &beat;

    ngx_http_pd_attach_note(attach, &note);

    ngx_add_timer(&attach->timer, NGX_HTTP_PD_ATTACH_BEAT);
}


static void
ngx_http_pd_attach_flush_handler(ngx_event_t *ev)
{
    ngx_http_pd_attach_flush(ev->data);
}


void
ngx_http_pd_attach_flush(ngx_http_pd_attach_t *attach)
{
    if (attach->h2) {
        ngx_http_pd_h2_flush(attach->h2);
    }
}


static void
ngx_http_pd_attach_give_up(ngx_http_pd_attach_t *attach, const char *fault)
{
    ngx_str_t  why;

    why.data = (u_char *) fault;
    why.len = ngx_strlen(fault);

    ngx_http_pd_h2_close(attach->h2);
    attach->h2 = NULL;

    ngx_http_pd_attach_down(attach, &why);
}


static void
ngx_http_pd_attach_down(ngx_http_pd_attach_t *attach, ngx_str_t *why)
{
    ngx_msec_t              delay;
    ngx_uint_t              left, level, was_up;
    ngx_http_pd_zone_t     *zone;
    ngx_http_pd_worker_t   *worker;
    ngx_http_pd_process_t  *process;

    process = attach->process;
    zone = process->zone;
    left = 0;
    was_up = (attach->state == NGX_HTTP_PD_ATTACH_UP);

    attach->state = NGX_HTTP_PD_ATTACH_DOWN;
    attach->fault = NULL;
    attach->drained = 0;

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker) {
        left = was_up && worker->draining && ngx_queue_empty(&attach->sides);
        worker->tried = 1;
        ngx_http_pd_slot_set_attached(zone, worker, 0);
    }

    ngx_http_pd_zone_unlock(zone);

    /* once loudly: who is away for a night does not fill the log */

    level = left ? NGX_LOG_NOTICE
            : (was_up || attach->failures == 0) ? NGX_LOG_ERR : NGX_LOG_INFO;

    ngx_log_error(level, process->log, 0, "pd: %s worker \"%V\": %V",
                  left ? "parted from" : was_up ? "lost" : "cannot attach to",
                  &attach->name, why);

    ngx_http_pd_failure_lost(attach, 0);
    ngx_http_pd_outbox_clear(&attach->outbox);

    if (attach->timer.timer_set) {
        ngx_del_timer(&attach->timer);
    }

    if (process->terminating) {
        return;
    }

    delay = NGX_HTTP_PD_ATTACH_FIRST << ngx_min(attach->failures, 8);
    delay = ngx_min(delay, NGX_HTTP_PD_ATTACH_RETRY);
    delay = delay * 3 / 4 + ngx_random() % (delay / 2);

    attach->failures++;

    ngx_add_timer(&attach->timer, delay);
}


static size_t
ngx_http_pd_attach_on_fill(void *data, u_char *buf, size_t size)
{
    ngx_http_pd_attach_t  *attach = data;

    size_t  n;

    n = ngx_http_pd_outbox_fill(&attach->outbox, buf, size);

    if (attach->process->drained) {
        ngx_http_pd_attach_drain(attach);
    }

    return n;
}


static void
ngx_http_pd_attach_on_closed(void *data, ngx_str_t *why)
{
    ngx_http_pd_attach_t  *attach = data;

    ngx_str_t  fault;

    attach->h2 = NULL;

    if (attach->fault) {
        fault.data = (u_char *) attach->fault;
        fault.len = ngx_strlen(attach->fault);
        why = &fault;
    }

    ngx_http_pd_attach_down(attach, why);
}


static void
ngx_http_pd_attach_on_shutdown(void *data, ngx_uint_t at_once)
{
    ngx_http_pd_attach_t  *attach = data;

    ngx_http_pd_process_shutdown(attach->process, at_once);
}


ngx_int_t
ngx_http_pd_attach_hello(ngx_http_pd_attach_t *attach,
    Pd__V1__WorkerHello *hello)
{
    ngx_str_t              numerics;
    ngx_uint_t             level;
    ngx_http_pd_zone_t    *zone;
    ngx_http_pd_worker_t  *worker, *other;

    if (attach->state == NGX_HTTP_PD_ATTACH_UP) {
        attach->fault = "it said hello twice";
        return NGX_ERROR;
    }

    attach->fault = ngx_http_pd_hello_check(hello);

    if (attach->fault) {
        return NGX_ERROR;
    }

    zone = attach->process->zone;

    numerics.data = (u_char *) hello->numerics_id;
    numerics.len = ngx_strlen(hello->numerics_id);

    attach->numerics = ngx_http_pd_zone_hash(zone, &numerics);

    ngx_http_pd_zone_lock(zone);

    worker = ngx_http_pd_zone_worker(zone, attach->index, attach->id);

    if (worker == NULL) {
        ngx_http_pd_zone_unlock(zone);
        attach->fault = "it is not in the configuration any more";
        return NGX_ERROR;
    }

    other = ngx_http_pd_hello_namesake(zone, worker, hello);

    if (other) {
        ngx_http_pd_zone_unlock(zone);

        level = attach->failures ? NGX_LOG_INFO : NGX_LOG_ERR;

        ngx_log_error(level, attach->process->log, 0,
                      "pd: worker \"%V\" is not used: it claims the name "
                      "\"%s\" of worker \"%*s\"", &attach->name,
                      hello->instance, (size_t) other->address_len,
                      other->address);

        attach->fault = "it claims the name of another worker";
        return NGX_ERROR;
    }

    ngx_http_pd_hello_learn(zone, worker, hello);
    ngx_http_pd_hello_log(zone, worker, attach->process->log);

    attach->state = NGX_HTTP_PD_ATTACH_UP;
    attach->boot = hello->boot;
    attach->max_submit = hello->max_submit_bytes;
    attach->failures = 0;
    attach->submitted = 0;
    attach->heartbeats = 0;

    ngx_http_pd_slot_set_attached(zone, worker, 1);
    ngx_http_pd_ledger_run(zone);

    ngx_http_pd_zone_unlock(zone);

    ngx_add_timer(&attach->timer, NGX_HTTP_PD_ATTACH_BEAT);

    if (attach->process->drained) {
        ngx_http_pd_attach_drain(attach);
    }

    ngx_http_pd_vitals_try(attach->process, attach->index);

    return NGX_OK;
}
