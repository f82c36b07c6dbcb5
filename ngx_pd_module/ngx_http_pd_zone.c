
/*
 * The shared zone: see the header for what it holds.
 *
 *     master      init (fresh, or handed on by the old configuration),
 *                 configure
 *     process     enter ... lock, unlock ... sweep ... leave
 *
 * Its memory, its configuration and its lock are here; processes that come and
 * go are in ngx_http_pd_slot.c.
 */


#include "ngx_http_pd_zone.h"
#include "ngx_http_pd_account.h"
#include "ngx_http_pd_affinity.h"
#include "ngx_http_pd_ledger.h"
#include "ngx_http_pd_policy.h"
#include "ngx_http_pd_queue.h"
#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_slot.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>


static char *ngx_http_pd_zone_parse(ngx_conf_t *cf, ngx_str_t *name,
    ssize_t *size, ngx_str_t *state);
static ngx_int_t ngx_http_pd_zone_init(ngx_shm_zone_t *shm_zone, void *data);
static ngx_int_t ngx_http_pd_zone_fresh(ngx_shm_zone_t *shm_zone,
    ngx_http_pd_zone_t *zone);
static ngx_int_t ngx_http_pd_zone_files(ngx_http_pd_zone_t *zone,
    ngx_log_t *log);
static void ngx_http_pd_zone_cleanup(void *data);
static void ngx_http_pd_zone_place_cluster(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *cluster, ngx_log_t *log);
static ngx_uint_t ngx_http_pd_zone_find_cluster(ngx_http_pd_zone_t *zone,
    ngx_str_t *name);
static void ngx_http_pd_zone_place_worker(ngx_http_pd_zone_t *zone,
    ngx_uint_t cluster, ngx_http_pd_worker_conf_t *conf, ngx_log_t *log);


char *
ngx_http_pd_zone_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_main_conf_t  *pmcf = conf;

    ssize_t              size;
    ngx_str_t            name, state;
    ngx_pool_cleanup_t  *cln;
    ngx_http_pd_zone_t  *zone;

    if (pmcf->zone) {
        return "is duplicate: one zone serves all clusters";
    }

    if (ngx_http_pd_zone_parse(cf, &name, &size, &state) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, sizeof(ngx_http_pd_zone_t));
    if (cln == NULL) {
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_http_pd_zone_cleanup;

    zone = cln->data;
    ngx_memzero(zone, sizeof(ngx_http_pd_zone_t));
    zone->cycle = cf->cycle;
    zone->state = state;

    pmcf->zone = ngx_shared_memory_add(cf, &name, size, &ngx_http_pd_module);
    if (pmcf->zone == NULL) {
        return NGX_CONF_ERROR;
    }

    pmcf->zone->init = ngx_http_pd_zone_init;
    pmcf->zone->data = zone;

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_zone_parse(ngx_conf_t *cf, ngx_str_t *name, ssize_t *size,
    ngx_str_t *state)
{
    u_char     *p;
    ngx_str_t  *value, s;

    value = cf->args->elts;

    ngx_str_null(state);

    if (cf->args->nelts == 3) {
        state->data = value[2].data + 6;
        state->len = value[2].len - 6;

        if (value[2].len <= 6 || ngx_strncmp(value[2].data, "state=", 6) != 0
            || ngx_conf_full_name(cf->cycle, state, 0) != NGX_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"pd_zone\": "
                               "use state=PATH", &value[2]);
            return NGX_CONF_ERROR;
        }
    }

    name->data = value[1].data;

    p = (u_char *) ngx_strchr(name->data, ':');

    if (p == NULL || p == name->data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid \"pd_zone %V\": write NAME:SIZE, "
                           "for example pd:32m", &value[1]);
        return NGX_CONF_ERROR;
    }

    name->len = p - name->data;

    s.data = p + 1;
    s.len = value[1].data + value[1].len - s.data;

    *size = ngx_parse_size(&s);

    if (*size == NGX_ERROR || *size < NGX_HTTP_PD_ZONE_MIN) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid size \"%V\" in \"pd_zone %V\": "
                           "use 512k or more, for example 32m",
                           &s, &value[1]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_http_pd_zone_t  *old = data;

    ngx_http_pd_zone_t  *zone;

    zone = shm_zone->data;
    zone->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (old == NULL && !shm_zone->shm.exists) {
        return ngx_http_pd_zone_fresh(shm_zone, zone);
    }

    zone->sh = zone->shpool->data;

    if (old) {
        zone->previous = old;
        zone->nfiles = old->nfiles;
        ngx_memcpy(zone->files, old->files, sizeof(zone->files));
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_zone_fresh(ngx_shm_zone_t *shm_zone, ngx_http_pd_zone_t *zone)
{
    size_t                 size, records;
    u_char                 random[16 + sizeof(uint64_t)];
    ngx_uint_t             i;
    ngx_http_pd_shared_t  *sh;

    /* all free pages in one piece; they come from mmap() and are zero */

    size = zone->shpool->pfree * ngx_pagesize;

    sh = ngx_slab_alloc(zone->shpool, size);
    if (sh == NULL) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "pd_zone \"%V\" is too small", &shm_zone->shm.name);
        return NGX_ERROR;
    }

    records = size - offsetof(ngx_http_pd_shared_t, records);

    sh->naccounts = records / NGX_HTTP_PD_ZONE_ACCOUNTS
                    / sizeof(ngx_http_pd_account_t)
                    / NGX_HTTP_PD_ACCOUNT_SET * NGX_HTTP_PD_ACCOUNT_SET;
    sh->accounts = (ngx_http_pd_account_t *) ((u_char *) sh + size)
                   - sh->naccounts;

    records -= sh->naccounts * sizeof(ngx_http_pd_account_t);

    /* and a quarter for what is known of prompts, in front of them */

    sh->nknown = ngx_http_pd_affinity_sets(records / 4);
    records -= sh->nknown * sizeof(ngx_http_pd_known_set_t);
    sh->known = (ngx_http_pd_known_set_t *) sh->accounts - sh->nknown;

    sh->nrecords = ngx_min(records / sizeof(ngx_http_pd_record_t),
                           NGX_HTTP_PD_NIL - 1);
    sh->free = NGX_HTTP_PD_NIL;

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {
        sh->slots[i].wake = -1;
        sh->slots[i].grants = NGX_HTTP_PD_NIL;
    }

    for (i = 0; i < NGX_HTTP_PD_ZONE_CLUSTERS; i++) {
        ngx_http_pd_queue_init(&sh->clusters[i]);
    }

    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, ngx_errno,
                      "getrandom() failed");
        return NGX_ERROR;
    }

    *ngx_hex_dump(sh->frontend_id, random, 16) = '\0';
    ngx_memcpy(&sh->seed, random + 16, sizeof(sh->seed));

    zone->sh = sh;
    zone->shpool->data = sh;

    return ngx_http_pd_zone_files(zone, shm_zone->shm.log);
}


static ngx_int_t
ngx_http_pd_zone_files(ngx_http_pd_zone_t *zone, ngx_log_t *log)
{
    ngx_fd_t               fd;
    ngx_uint_t             i, n;
    ngx_core_conf_t       *ccf;
    ngx_http_pd_shared_t  *sh;

    sh = zone->sh;
    zone->owner = 1;
    zone->fresh = 1;

    sh->liveness = memfd_create("ngx_pd", MFD_CLOEXEC);

    if (sh->liveness == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "memfd_create() failed");
        return NGX_ERROR;
    }

    zone->files[zone->nfiles++] = sh->liveness;

    /*
     * A few generations of processes live at once while reloads wait for long
     * answers.  The first configuration decides: later ones cannot give
     * descriptors to processes that run already.
     */

    ccf = (ngx_core_conf_t *) ngx_get_conf(zone->cycle->conf_ctx,
                                           ngx_core_module);

    n = ngx_min(4 * ccf->worker_processes + 4, NGX_HTTP_PD_ZONE_SLOTS);

    for (i = 0; i < n; i++) {
        fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

        if (fd == -1) {
            ngx_log_error(NGX_LOG_WARN, log, ngx_errno,
                          "eventfd() failed: queued pd requests may wait "
                          "0.1 s longer than they must");
            break;
        }

        sh->slots[i].wake = fd;
        zone->files[zone->nfiles++] = fd;
    }

    return NGX_OK;
}


static void
ngx_http_pd_zone_cleanup(void *data)
{
    ngx_http_pd_zone_t  *zone = data;

    ngx_uint_t  i;

    if (!zone->owner) {
        return;
    }

    for (i = 0; i < zone->nfiles; i++) {
        (void) close(zone->files[i]);
    }
}


void
ngx_http_pd_zone_configure(ngx_http_pd_main_conf_t *pmcf, ngx_log_t *log)
{
    ngx_uint_t               i;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_shared_t    *sh;
    ngx_http_pd_cluster_t  **clusters;

    zone = pmcf->zone->data;
    sh = zone->sh;

    /* the old configuration ends here, if there was one */

    if (zone->previous) {
        zone->previous->owner = 0;
        zone->previous = NULL;
        zone->owner = 1;
    }

    clusters = pmcf->clusters.elts;

    ngx_http_pd_zone_lock(zone);

    zone->generation = ++sh->generation;
    sh->changes++;

    for (i = 0; i < NGX_HTTP_PD_ZONE_CLUSTERS; i++) {
        sh->clusters[i].configured = 0;
    }

    for (i = 0; i < sh->nworkers; i++) {
        sh->workers[i].configured = 0;
    }

    for (i = 0; i < pmcf->clusters.nelts; i++) {
        ngx_http_pd_zone_place_cluster(zone, clusters[i], log);
    }

    ngx_http_pd_slot_wake_all(zone);

    ngx_http_pd_zone_unlock(zone);
}


static void
ngx_http_pd_zone_place_cluster(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *cluster, ngx_log_t *log)
{
    ngx_uint_t                   i, place;
    ngx_http_pd_worker_t        *worker;
    ngx_http_pd_worker_conf_t   *conf;
    ngx_http_pd_zone_cluster_t  *zc;

    place = ngx_http_pd_zone_find_cluster(zone, &cluster->name);

    if (place == NGX_HTTP_PD_NONE) {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd cluster \"%V\" finds no place beside those of "
                      "earlier configurations that still have requests; "
                      "reload again", &cluster->name);
        cluster->shared_id = 0;
        return;
    }

    zc = &zone->sh->clusters[place];

    if (zc->id == 0) {
        zc->id = ++zone->sh->last_id;
        zc->name_len = cluster->name.len;
        ngx_memcpy(zc->name, cluster->name.data, cluster->name.len);
        zc->waited = 0;
        zc->grants = 0;
        zc->span = 0;
        ngx_memzero(&zc->ready, sizeof(ngx_http_pd_readiness_t));
    }

    zone->sh->nclusters = ngx_max(zone->sh->nclusters, place + 1);

    zc->configured = 1;
    zc->direct_threshold = cluster->direct_threshold;
    zc->borrow_threshold = cluster->borrow_threshold;

    zc->policy = cluster->policy;

    cluster->shared = place;
    cluster->shared_id = zc->id;

    ngx_http_pd_revision_place(zone, cluster);
    ngx_http_pd_ready_place(zone, cluster);

    conf = cluster->workers.elts;

    for (i = 0; i < cluster->workers.nelts; i++) {
        ngx_http_pd_zone_place_worker(zone, place, &conf[i], log);
    }

    for (i = 0; i < zone->sh->nworkers; i++) {
        worker = &zone->sh->workers[i];

        if (worker->id && worker->cluster == place && !cluster->registration) {
            worker->lease = 0;
        }
    }
}


/* the cluster's own place, or a free one */

static ngx_uint_t
ngx_http_pd_zone_find_cluster(ngx_http_pd_zone_t *zone, ngx_str_t *name)
{
    ngx_uint_t                   i, spare;
    ngx_http_pd_zone_cluster_t  *zc;

    spare = NGX_HTTP_PD_NONE;

    for (i = 0; i < NGX_HTTP_PD_ZONE_CLUSTERS; i++) {
        zc = &zone->sh->clusters[i];

        if (zc->id == 0) {
            if (spare == NGX_HTTP_PD_NONE) {
                spare = i;
            }

        } else if (zc->name_len == name->len
                   && ngx_memcmp(zc->name, name->data, name->len) == 0)
        {
            return i;
        }
    }

    return spare;
}


static void
ngx_http_pd_zone_place_worker(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    ngx_http_pd_worker_conf_t *conf, ngx_log_t *log)
{
    ngx_http_pd_worker_t  *worker;

    worker = ngx_http_pd_zone_worker_add(zone, cluster, &conf->address);

    if (worker == NULL) {
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "pd worker \"%V\" finds no place among %d workers",
                      &conf->address, NGX_HTTP_PD_ZONE_WORKERS);
        return;
    }

    worker->configured = 1;
    worker->asserted = conf->role;
    worker->weight = conf->weight;
    worker->max_streams = conf->max_streams;
    worker->down = conf->down;
    worker->backup = conf->backup;
    worker->labelled = (conf->zone.len != 0);

    if (worker->labelled) {
        worker->zone_len = conf->zone.len;
        ngx_memcpy(worker->zone, conf->zone.data, conf->zone.len);
    }
}


void
ngx_http_pd_zone_lock(ngx_http_pd_zone_t *zone)
{
    ngx_shmtx_lock(&zone->shpool->mutex);

    if (zone->sh->dirty) {
        ngx_http_pd_ledger_rebuild(zone);
    }

    zone->sh->dirty = 1;
}


void
ngx_http_pd_zone_unlock(ngx_http_pd_zone_t *zone)
{
    zone->sh->dirty = 0;

    ngx_shmtx_unlock(&zone->shpool->mutex);
}


/*
 * Names come from clients: the seed keeps them from choosing two with the same
 * hash (FNV-1a).
 */

uint64_t
ngx_http_pd_zone_hash(ngx_http_pd_zone_t *zone, ngx_str_t *model)
{
    uint64_t    hash;
    ngx_uint_t  i;

    if (model->len == 0) {
        return 0;
    }

    hash = zone->sh->seed ^ 14695981039346656037u;

    for (i = 0; i < model->len; i++) {
        hash ^= model->data[i];
        hash *= 1099511628211u;
    }

    return hash ? hash : 1;
}


ngx_http_pd_worker_t *
ngx_http_pd_zone_worker(ngx_http_pd_zone_t *zone, ngx_uint_t index,
    uint64_t id)
{
    ngx_http_pd_worker_t  *worker;

    worker = &zone->sh->workers[index];

    return (worker->id == id) ? worker : NULL;
}


ngx_http_pd_worker_t *
ngx_http_pd_zone_worker_add(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    ngx_str_t *address)
{
    ngx_uint_t             i;
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_worker_t  *worker, *spare;

    sh = zone->sh;
    spare = NULL;

    for (i = 0; i < NGX_HTTP_PD_ZONE_WORKERS; i++) {
        worker = &sh->workers[i];

        if (worker->id == 0) {
            if (spare == NULL) {
                spare = worker;
            }

        } else if (worker->cluster == cluster
                   && worker->address_len == address->len
                   && ngx_memcmp(worker->address, address->data, address->len)
                      == 0)
        {
            return worker;
        }
    }

    if (spare == NULL) {
        return NULL;
    }

    ngx_memzero(spare, sizeof(ngx_http_pd_worker_t));

    spare->id = ++sh->last_id;
    sh->nworkers = ngx_max(sh->nworkers,
                           ngx_http_pd_worker_index(zone, spare) + 1);
    spare->cluster = cluster;
    spare->weight = 1;
    spare->unseen = NGX_HTTP_PD_NIL;
    spare->address_len = address->len;
    ngx_memcpy(spare->address, address->data, address->len);
    spare->name_hash = ngx_http_pd_policy_hash(address);
    spare->cache = (uint16_t) sh->last_id;

    sh->changes++;

    return spare;
}
