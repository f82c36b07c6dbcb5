
/*
 * The shared zone as text for Prometheus.
 *
 * The numbers are copied under the lock and written without it.  Records are
 * counted one by one, a few at a time, and not believed from the sums that are
 * kept of them: so the page also shows when those are wrong.
 *
 * A family is a line of the tables below: where its number lies in what was
 * copied of a cluster or a worker, and, where it has several, by which label
 * they differ.
 */


#include "ngx_http_pd_metrics.h"
#include "ngx_http_pd_attempt.h"
#include "ngx_http_pd_ledger.h"
#include "ngx_http_pd_verdict.h"
#include "ngx_http_pd_vitals.h"


#define NGX_HTTP_PD_METRICS_PIECE     1024     /* records at a time */
#define NGX_HTTP_PD_METRICS_LINE      (128 + NGX_INT64_LEN)


typedef struct {
    ngx_str_t                     labels;
    uint64_t                      admitted;
    uint64_t                      refused[NGX_HTTP_PD_REFUSALS];
    uint64_t                      ended[NGX_HTTP_PD_OUTCOMES];
    uint64_t                      waiting[NGX_HTTP_PD_CLASSES];
    uint64_t                      running;
    uint64_t                      moved[NGX_HTTP_PD_MOVES];
    uint64_t                      gave_up;
    uint64_t                      paced;
    uint64_t                      unpromised;
    uint64_t                      kv_transfers;
    uint64_t                      kv_bytes;
    uint64_t                      kv_us[NGX_HTTP_PD_KV_TIMES];
    uint64_t                      borrows[NGX_HTTP_PD_BORROWS];
    uint64_t                      borrowed_tokens;
    uint64_t                      window[2];
    uint64_t                      degraded;
    uint64_t                      away;
} ngx_http_pd_metrics_cluster_t;


typedef struct {
    ngx_str_t                     labels;
    uint64_t                      state[5];
    uint64_t                      jobs;
    uint64_t                      unseen_tokens;
    uint64_t                      held_blocks;
    uint64_t                      kv_blocks;
    uint64_t                      free_blocks;
    uint64_t                      reserved_blocks;
    uint64_t                      growth_blocks;
    uint64_t                      ejections;
} ngx_http_pd_metrics_worker_t;


typedef struct {
    ngx_str_t                     labels;      /* none */
    uint64_t                      records;
    uint64_t                      used;
    uint64_t                      processes;
} ngx_http_pd_metrics_zone_t;


typedef struct {
    ngx_pool_t                     *pool;
    ngx_uint_t                      nclusters;
    ngx_uint_t                      nworkers;
    ngx_http_pd_metrics_cluster_t  *clusters;
    ngx_http_pd_metrics_worker_t   *workers;
    ngx_http_pd_metrics_zone_t      zone;
    u_char                         *pos;
    u_char                         *last;
} ngx_http_pd_metrics_t;


typedef struct {
    const char    *name;
    const char    *type;
    const char    *help;
    size_t         offset;
    const char    *label;          /* NULL: one number */
    const char   **values;
    ngx_uint_t     nvalues;
} ngx_http_pd_metrics_family_t;


static ngx_int_t ngx_http_pd_metrics_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_metrics_take(ngx_http_pd_metrics_t *m,
    ngx_http_pd_zone_t *zone);
static ngx_int_t ngx_http_pd_metrics_cluster(ngx_http_pd_metrics_t *m,
    ngx_http_pd_zone_cluster_t *cluster);
static ngx_int_t ngx_http_pd_metrics_worker(ngx_http_pd_metrics_t *m,
    ngx_http_pd_zone_t *zone, ngx_http_pd_worker_t *worker);
static void ngx_http_pd_metrics_records(ngx_http_pd_metrics_t *m,
    ngx_http_pd_zone_t *zone);
static ngx_int_t ngx_http_pd_metrics_labels(ngx_pool_t *pool,
    ngx_str_t *labels, ngx_str_t *cluster, ngx_str_t *worker,
    const char *role);
static u_char *ngx_http_pd_metrics_escape(u_char *dst, ngx_str_t *src);
static ngx_int_t ngx_http_pd_metrics_write(ngx_http_pd_metrics_t *m);
static size_t ngx_http_pd_metrics_size(
    const ngx_http_pd_metrics_family_t *family, u_char *elts, size_t size,
    ngx_uint_t n);
static void ngx_http_pd_metrics_table(ngx_http_pd_metrics_t *m,
    const ngx_http_pd_metrics_family_t *family, u_char *elts, size_t size,
    ngx_uint_t n);


/* in the order of the enumerations that they name */

static const char  *ngx_http_pd_metrics_refusals[] = {
    "model", "limit", "queue", "wait", "table"
};

static const char  *ngx_http_pd_metrics_outcomes[] = {
    "answered", "failed", "left", "lost"
};

static const char  *ngx_http_pd_metrics_verdicts[] = {
    "finished", "failed"
};

static const char  *ngx_http_pd_metrics_moves[] = {
    "exact", "approximate", "restarted"
};

static const char  *ngx_http_pd_metrics_kv_times[] = {
    "wait", "wire", "exposed"
};

static const char  *ngx_http_pd_metrics_borrows[] = {
    "borrowed", "computed"
};

static const char  *ngx_http_pd_metrics_classes[] = {
    "interactive", "standard"
};

static const char  *ngx_http_pd_metrics_states[] = {
    "well", "suspect", "ejected", "draining", "unknown"
};

static const char  *ngx_http_pd_metrics_roles[] = {
    "unknown", "prefill", "decode", "mixed"
};


#define NGX_HTTP_PD_METRICS_AT(type, member)                                 \
    offsetof(ngx_http_pd_metrics_##type##_t, member)

#define NGX_HTTP_PD_METRICS_BY(label, values)                                \
    label, values, sizeof(values) / sizeof(values[0])

#define NGX_HTTP_PD_METRICS_ONE     NULL, NULL, 1


static const ngx_http_pd_metrics_family_t  ngx_http_pd_metrics_of_clusters[] = {

    { "pd_requests_total", "counter",
      "Requests that were admitted.",
      NGX_HTTP_PD_METRICS_AT(cluster, admitted), NGX_HTTP_PD_METRICS_ONE },

    { "pd_requests_refused_total", "counter",
      "Requests that were not, by what was missing.",
      NGX_HTTP_PD_METRICS_AT(cluster, refused),
      NGX_HTTP_PD_METRICS_BY("reason", ngx_http_pd_metrics_refusals) },

    { "pd_requests_ended_total", "counter",
      "Admitted requests that have ended, by how.",
      NGX_HTTP_PD_METRICS_AT(cluster, ended),
      NGX_HTTP_PD_METRICS_BY("outcome", ngx_http_pd_metrics_outcomes) },

    { "pd_requests_running", "gauge",
      "Requests that have workers, counted one by one.",
      NGX_HTTP_PD_METRICS_AT(cluster, running), NGX_HTTP_PD_METRICS_ONE },

    { "pd_requests_waiting", "gauge",
      "Requests in the queue.",
      NGX_HTTP_PD_METRICS_AT(cluster, waiting),
      NGX_HTTP_PD_METRICS_BY("class", ngx_http_pd_metrics_classes) },

    { "pd_failovers_total", "counter",
      "Answers that have gone on elsewhere, or begun anew.",
      NGX_HTTP_PD_METRICS_AT(cluster, moved),
      NGX_HTTP_PD_METRICS_BY("kind", ngx_http_pd_metrics_moves) },

    { "pd_failovers_gave_up_total", "counter",
      "Requests that failed because they could not move.",
      NGX_HTTP_PD_METRICS_AT(cluster, gave_up), NGX_HTTP_PD_METRICS_ONE },

    { "pd_failovers_paced_total", "counter",
      "Moves that had to wait for their turn (failover_rate).",
      NGX_HTTP_PD_METRICS_AT(cluster, paced), NGX_HTTP_PD_METRICS_ONE },

    { "pd_failovers_unpromised_total", "counter",
      "Requests over pd_failover_buffer, which cannot move.",
      NGX_HTTP_PD_METRICS_AT(cluster, unpromised), NGX_HTTP_PD_METRICS_ONE },

    { "pd_kv_transfers_total", "counter",
      "KV hand-offs that a decode worker has told of.",
      NGX_HTTP_PD_METRICS_AT(cluster, kv_transfers), NGX_HTTP_PD_METRICS_ONE },

    { "pd_kv_bytes_total", "counter",
      "What decode workers have read by them.",
      NGX_HTTP_PD_METRICS_AT(cluster, kv_bytes), NGX_HTTP_PD_METRICS_ONE },

    { "pd_kv_microseconds_total", "counter",
      "How long they took: waiting, reading, and what clients waited for.",
      NGX_HTTP_PD_METRICS_AT(cluster, kv_us),
      NGX_HTTP_PD_METRICS_BY("part", ngx_http_pd_metrics_kv_times) },

    { "pd_borrows_total", "counter",
      "Prompts whose beginning another worker was asked for, and the outcome.",
      NGX_HTTP_PD_METRICS_AT(cluster, borrows),
      NGX_HTTP_PD_METRICS_BY("result", ngx_http_pd_metrics_borrows) },

    { "pd_borrowed_tokens_total", "counter",
      "Tokens of prompts that prefill workers have read from other workers.",
      NGX_HTTP_PD_METRICS_AT(cluster, borrowed_tokens),
      NGX_HTTP_PD_METRICS_ONE },

    { "pd_window_requests", "gauge",
      "Requests of the last minutes by which this frontend is judged.",
      NGX_HTTP_PD_METRICS_AT(cluster, window),
      NGX_HTTP_PD_METRICS_BY("verdict", ngx_http_pd_metrics_verdicts) },

    { "pd_degraded", "gauge",
      "1 while this frontend stays in though too few requests finish.",
      NGX_HTTP_PD_METRICS_AT(cluster, degraded), NGX_HTTP_PD_METRICS_ONE },

    { "pd_away", "gauge",
      "1 while this frontend has taken itself out of its load balancer.",
      NGX_HTTP_PD_METRICS_AT(cluster, away), NGX_HTTP_PD_METRICS_ONE },

    { NULL, NULL, NULL, 0, NGX_HTTP_PD_METRICS_ONE }
};


static const ngx_http_pd_metrics_family_t  ngx_http_pd_metrics_of_workers[] = {

    { "pd_cluster_worker_state", "gauge",
      "1 for the state that the worker is in.",
      NGX_HTTP_PD_METRICS_AT(worker, state),
      NGX_HTTP_PD_METRICS_BY("state", ngx_http_pd_metrics_states) },

    { "pd_cluster_worker_jobs", "gauge",
      "Requests that it has.",
      NGX_HTTP_PD_METRICS_AT(worker, jobs), NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_unseen_tokens", "gauge",
      "Tokens of prompts that were sent and are in no report yet.",
      NGX_HTTP_PD_METRICS_AT(worker, unseen_tokens), NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_held_blocks", "gauge",
      "KV blocks that its requests will need and that no report has.",
      NGX_HTTP_PD_METRICS_AT(worker, held_blocks), NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_kv_blocks", "gauge",
      "Blocks of its KV pool.",
      NGX_HTTP_PD_METRICS_AT(worker, kv_blocks), NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_free_blocks", "gauge",
      "KV blocks that were free in its last report.",
      NGX_HTTP_PD_METRICS_AT(worker, free_blocks), NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_reserved_blocks", "gauge",
      "KV blocks that it had promised and not yet written.",
      NGX_HTTP_PD_METRICS_AT(worker, reserved_blocks),
      NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_growth_blocks", "gauge",
      "Of the free ones, what its running answers will as a rule still take.",
      NGX_HTTP_PD_METRICS_AT(worker, growth_blocks),
      NGX_HTTP_PD_METRICS_ONE },

    { "pd_cluster_worker_ejections", "gauge",
      "Ejections that count for the next one's backoff.",
      NGX_HTTP_PD_METRICS_AT(worker, ejections), NGX_HTTP_PD_METRICS_ONE },

    { NULL, NULL, NULL, 0, NGX_HTTP_PD_METRICS_ONE }
};


static const ngx_http_pd_metrics_family_t  ngx_http_pd_metrics_of_zone[] = {

    { "pd_zone_records", "gauge",
      "Requests that the zone has room for.",
      NGX_HTTP_PD_METRICS_AT(zone, records), NGX_HTTP_PD_METRICS_ONE },

    { "pd_zone_records_used", "gauge",
      "Requests that it holds, canaries included.",
      NGX_HTTP_PD_METRICS_AT(zone, used), NGX_HTTP_PD_METRICS_ONE },

    { "pd_zone_processes", "gauge",
      "Processes of nginx that have a place in it.",
      NGX_HTTP_PD_METRICS_AT(zone, processes), NGX_HTTP_PD_METRICS_ONE },

    { NULL, NULL, NULL, 0, NGX_HTTP_PD_METRICS_ONE }
};


char *
ngx_http_pd_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_pd_metrics_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_metrics_handler(ngx_http_request_t *r)
{
    ngx_int_t               rc;
    ngx_buf_t              *b;
    ngx_chain_t             out;
    ngx_http_pd_metrics_t   m;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_pd_process == NULL) {
        return NGX_HTTP_NOT_FOUND;
    }

    ngx_memzero(&m, sizeof(ngx_http_pd_metrics_t));
    m.pool = r->pool;

    b = ngx_calloc_buf(r->pool);

    if (b == NULL
        || ngx_http_pd_metrics_take(&m, ngx_http_pd_process->zone) != NGX_OK
        || ngx_http_pd_metrics_write(&m) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->start = b->pos = m.pos;
    b->last = b->end = m.last;
    b->memory = 1;
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;
    ngx_str_set(&r->headers_out.content_type,
                "text/plain; version=0.0.4; charset=utf-8");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static ngx_int_t
ngx_http_pd_metrics_take(ngx_http_pd_metrics_t *m, ngx_http_pd_zone_t *zone)
{
    ngx_int_t              rc;
    ngx_uint_t             i;
    ngx_http_pd_shared_t  *sh;

    sh = zone->sh;

    m->clusters = ngx_pcalloc(m->pool, NGX_HTTP_PD_ZONE_CLUSTERS
                                       * sizeof(ngx_http_pd_metrics_cluster_t));
    m->workers = ngx_pcalloc(m->pool, NGX_HTTP_PD_ZONE_WORKERS
                                      * sizeof(ngx_http_pd_metrics_worker_t));

    if (m->clusters == NULL || m->workers == NULL) {
        return NGX_ERROR;
    }

    ngx_http_pd_metrics_records(m, zone);

    rc = NGX_OK;

    ngx_http_pd_zone_lock(zone);

    for (i = 0; i < sh->nworkers && rc == NGX_OK; i++) {
        if (sh->workers[i].id) {
            rc = ngx_http_pd_metrics_worker(m, zone, &sh->workers[i]);
        }
    }

    /* those without an entry any more have no line either */

    for (i = 0; i < sh->nclusters && rc == NGX_OK; i++) {
        m->clusters[m->nclusters].running = m->clusters[i].running;

        if (sh->clusters[i].id) {
            rc = ngx_http_pd_metrics_cluster(m, &sh->clusters[i]);
        }
    }

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {
        m->zone.processes += (sh->slots[i].pid != 0);
    }

    m->zone.records = sh->nrecords;

    ngx_http_pd_zone_unlock(zone);

    return rc;
}


static void
ngx_http_pd_metrics_records(ngx_http_pd_metrics_t *m, ngx_http_pd_zone_t *zone)
{
    uint32_t               i, end, fresh;
    ngx_http_pd_record_t  *record;

    i = 0;

    do {
        ngx_http_pd_zone_lock(zone);

        fresh = zone->sh->fresh;
        end = ngx_min(fresh, i + NGX_HTTP_PD_METRICS_PIECE);

        for ( /* void */ ; i < end; i++) {
            record = &zone->sh->records[i];

            if (record->state == NGX_HTTP_PD_RECORD_FREE) {
                continue;
            }

            m->zone.used++;

            if (record->state != NGX_HTTP_PD_RECORD_QUEUED
                && record->canary == 0)
            {
                m->clusters[record->cluster].running++;
            }
        }

        ngx_http_pd_zone_unlock(zone);

    } while (i < fresh);
}


static ngx_int_t
ngx_http_pd_metrics_cluster(ngx_http_pd_metrics_t *m,
    ngx_http_pd_zone_cluster_t *cluster)
{
    uint64_t                        requests;
    ngx_str_t                       name;
    ngx_uint_t                      i;
    ngx_http_pd_metrics_cluster_t  *copy;

    copy = &m->clusters[m->nclusters++];

    copy->admitted = cluster->admitted;
    copy->gave_up = cluster->gave_up;
    copy->paced = cluster->paced;
    copy->unpromised = cluster->unpromised;
    copy->kv_transfers = cluster->kv_transfers;
    copy->kv_bytes = cluster->kv_bytes;
    copy->borrowed_tokens = cluster->borrowed_tokens;
    copy->degraded = cluster->ready.degraded;
    copy->away = cluster->ready.away;

    ngx_http_pd_verdict_sum(cluster, &requests, &copy->window[0]);
    copy->window[1] = requests - copy->window[0];

    ngx_memcpy(copy->refused, cluster->refused, sizeof(copy->refused));
    ngx_memcpy(copy->ended, cluster->ended, sizeof(copy->ended));
    ngx_memcpy(copy->moved, cluster->moves, sizeof(copy->moved));
    ngx_memcpy(copy->kv_us, cluster->kv_us, sizeof(copy->kv_us));
    ngx_memcpy(copy->borrows, cluster->borrows, sizeof(copy->borrows));

    for (i = 0; i < NGX_HTTP_PD_CLASSES; i++) {
        copy->waiting[i] = cluster->lines[i].queued;
    }

    name.data = cluster->name;
    name.len = cluster->name_len;

    return ngx_http_pd_metrics_labels(m->pool, &copy->labels, &name, NULL,
                                      NULL);
}


static ngx_int_t
ngx_http_pd_metrics_worker(ngx_http_pd_metrics_t *m, ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker)
{
    ngx_str_t                      cluster, name;
    ngx_uint_t                     state;
    ngx_http_pd_zone_cluster_t    *owner;
    ngx_http_pd_metrics_worker_t  *copy;

    copy = &m->workers[m->nworkers++];

    owner = &zone->sh->clusters[worker->cluster];

    if (!worker->known) {
        state = 4;

    } else if (worker->draining) {
        state = 3;

    } else {
        state = worker->vital;
    }

    copy->state[state] = 1;
    copy->jobs = worker->jobs;
    copy->unseen_tokens = worker->unseen_tokens;
    copy->held_blocks = worker->held_blocks;
    copy->kv_blocks = worker->kv_blocks;
    copy->free_blocks = worker->kv_free;
    copy->reserved_blocks = worker->kv_reserved;
    copy->growth_blocks = worker->kv_growth;
    copy->ejections = worker->ejections;

    cluster.data = owner->name;
    cluster.len = owner->name_len;
    name.data = worker->address;
    name.len = worker->address_len;

    return ngx_http_pd_metrics_labels(m->pool, &copy->labels, &cluster, &name,
                                      ngx_http_pd_metrics_roles[worker->role]);
}


/* of a cluster, or, with the last two, of one of its workers */

static ngx_int_t
ngx_http_pd_metrics_labels(ngx_pool_t *pool, ngx_str_t *labels,
    ngx_str_t *cluster, ngx_str_t *worker, const char *role)
{
    u_char  *p;
    size_t   len;

    len = sizeof("cluster=\"\",worker=\"\",role=\"\"") + 2 * cluster->len;

    if (worker) {
        len += 2 * worker->len + ngx_strlen(role);
    }

    p = ngx_pnalloc(pool, len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    labels->data = p;

    p = ngx_cpymem(p, "cluster=\"", sizeof("cluster=\"") - 1);
    p = ngx_http_pd_metrics_escape(p, cluster);
    *p++ = '"';

    if (worker) {
        p = ngx_cpymem(p, ",worker=\"", sizeof(",worker=\"") - 1);
        p = ngx_http_pd_metrics_escape(p, worker);
        p = ngx_sprintf(p, "\",role=\"%s\"", role);
    }

    labels->len = p - labels->data;

    return NGX_OK;
}


/* a name may have been chosen by a worker */

static u_char *
ngx_http_pd_metrics_escape(u_char *dst, ngx_str_t *src)
{
    size_t  i;

    for (i = 0; i < src->len; i++) {

        if (src->data[i] == '"' || src->data[i] == '\\') {
            *dst++ = '\\';
        }

        *dst++ = (src->data[i] < 0x20 || src->data[i] > 0x7e) ? '?'
                                                              : src->data[i];
    }

    return dst;
}


static ngx_int_t
ngx_http_pd_metrics_write(ngx_http_pd_metrics_t *m)
{
    size_t  size;

    size = ngx_http_pd_metrics_size(ngx_http_pd_metrics_of_clusters,
                                    (u_char *) m->clusters,
                                    sizeof(ngx_http_pd_metrics_cluster_t),
                                    m->nclusters)
           + ngx_http_pd_metrics_size(ngx_http_pd_metrics_of_workers,
                                      (u_char *) m->workers,
                                      sizeof(ngx_http_pd_metrics_worker_t),
                                      m->nworkers)
           + ngx_http_pd_metrics_size(ngx_http_pd_metrics_of_zone,
                                      (u_char *) &m->zone,
                                      sizeof(ngx_http_pd_metrics_zone_t), 1);

    m->pos = ngx_pnalloc(m->pool, size);
    if (m->pos == NULL) {
        return NGX_ERROR;
    }

    m->last = m->pos;

    ngx_http_pd_metrics_table(m, ngx_http_pd_metrics_of_clusters,
                              (u_char *) m->clusters,
                              sizeof(ngx_http_pd_metrics_cluster_t),
                              m->nclusters);
    ngx_http_pd_metrics_table(m, ngx_http_pd_metrics_of_workers,
                              (u_char *) m->workers,
                              sizeof(ngx_http_pd_metrics_worker_t),
                              m->nworkers);
    ngx_http_pd_metrics_table(m, ngx_http_pd_metrics_of_zone,
                              (u_char *) &m->zone,
                              sizeof(ngx_http_pd_metrics_zone_t), 1);

    return NGX_OK;
}


/* an element begins with its labels; at most so many bytes */

static size_t
ngx_http_pd_metrics_size(const ngx_http_pd_metrics_family_t *family,
    u_char *elts, size_t size, ngx_uint_t n)
{
    size_t      bytes;
    ngx_str_t  *labels;
    ngx_uint_t  i;

    bytes = 0;

    for ( /* void */ ; family->name; family++) {
        bytes += sizeof("# HELP  \n# TYPE  \n") + ngx_strlen(family->help)
                 + ngx_strlen(family->type) + 2 * ngx_strlen(family->name);

        for (i = 0; i < n; i++) {
            labels = (ngx_str_t *) (elts + i * size);

            bytes += family->nvalues
                     * (labels->len + ngx_strlen(family->name)
                        + NGX_HTTP_PD_METRICS_LINE);
        }
    }

    return bytes;
}


static void
ngx_http_pd_metrics_table(ngx_http_pd_metrics_t *m,
    const ngx_http_pd_metrics_family_t *family, u_char *elts, size_t size,
    ngx_uint_t n)
{
    u_char      *p;
    uint64_t    *number;
    ngx_str_t   *labels;
    ngx_uint_t   i, k;

    p = m->last;

    for ( /* void */ ; family->name; family++) {
        p = ngx_sprintf(p, "# HELP %s %s\n# TYPE %s %s\n", family->name,
                        family->help, family->name, family->type);

        for (i = 0; i < n; i++) {
            labels = (ngx_str_t *) (elts + i * size);
            number = (uint64_t *) (elts + i * size + family->offset);

            for (k = 0; k < family->nvalues; k++) {

                if (family->label) {
                    p = ngx_sprintf(p, "%s{%V,%s=\"%s\"} %uL\n", family->name,
                                    labels, family->label, family->values[k],
                                    number[k]);

                } else if (labels->len) {
                    p = ngx_sprintf(p, "%s{%V} %uL\n", family->name, labels,
                                    number[k]);

                } else {
                    p = ngx_sprintf(p, "%s %uL\n", family->name, number[k]);
                }
            }
        }
    }

    m->last = p;
}
