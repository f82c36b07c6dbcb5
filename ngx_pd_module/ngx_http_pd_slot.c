
/*
 * Processes in the shared zone: each has the slot that nginx gave it.
 *
 * Liveness without pids: each process holds a record lock on its byte of a
 * memfd that all have inherited from the master.  The kernel drops the lock
 * when, and only when, the process ends.  The same descriptor must never be
 * closed or opened again by a living process, that would drop its lock.
 *
 * Waking: an eventfd for each slot, made once, so that processes of different
 * generations can wake each other.  A slot without one looks by timer.
 */


#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_ledger.h"


static void ngx_http_pd_slot_free_clusters(ngx_http_pd_zone_t *zone);
static ngx_uint_t ngx_http_pd_slot_alive(ngx_http_pd_zone_t *zone,
    ngx_uint_t slot);
static void ngx_http_pd_slot_forget(ngx_http_pd_zone_t *zone, ngx_uint_t slot);


ngx_int_t
ngx_http_pd_slot_enter(ngx_http_pd_zone_t *zone, ngx_log_t *log)
{
    ngx_pid_t              pid;
    struct flock           lock;
    ngx_uint_t             slot;
    ngx_http_pd_shared_t  *sh;

    sh = zone->sh;
    slot = (ngx_process == NGX_PROCESS_WORKER) ? ngx_process_slot : 0;

    ngx_memzero(&lock, sizeof(struct flock));
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = slot;
    lock.l_len = 1;

    ngx_http_pd_zone_lock(zone);

    if (fcntl(sh->liveness, F_SETLK, &lock) == -1) {
        ngx_http_pd_zone_unlock(zone);
        ngx_log_error(NGX_LOG_ALERT, log, ngx_errno,
                      "pd process slot %ui is taken", slot);
        return NGX_ERROR;
    }

    /* who had it before has died: one that leaves gives it back */

    pid = sh->slots[slot].pid;

    ngx_http_pd_slot_forget(zone, slot);

    zone->slot = slot;
    zone->entered = 1;
    zone->owner = 0;
    sh->slots[slot].pid = ngx_pid;

    ngx_http_pd_zone_unlock(zone);

    if (pid) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "pd: forgot the requests of process %P", pid);
    }

    return NGX_OK;
}


void
ngx_http_pd_slot_leave(ngx_http_pd_zone_t *zone)
{
    if (!zone->entered) {
        return;
    }

    ngx_http_pd_zone_lock(zone);
    ngx_http_pd_slot_forget(zone, zone->slot);
    ngx_http_pd_zone_unlock(zone);

    zone->entered = 0;
}


void
ngx_http_pd_slot_leaving(ngx_http_pd_zone_t *zone)
{
    ngx_http_pd_zone_lock(zone);
    zone->sh->slots[zone->slot].leaving = 1;
    ngx_http_pd_zone_unlock(zone);
}


ngx_uint_t
ngx_http_pd_slot_sweep(ngx_http_pd_zone_t *zone, ngx_log_t *log)
{
    ngx_pid_t              pid;
    uint64_t               now;
    ngx_uint_t             i;
    ngx_http_pd_shared_t  *sh;
    ngx_http_pd_worker_t  *worker;

    sh = zone->sh;

    ngx_http_pd_zone_lock(zone);

    /* the lowest slot that lives sweeps for all, but rather one that stays */

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {

        pid = sh->slots[i].pid;

        if (pid == 0 || i == zone->slot) {
            continue;
        }

        if (ngx_http_pd_slot_alive(zone, i)) {
            if (sh->slots[i].leaving < sh->slots[zone->slot].leaving
                || (sh->slots[i].leaving == sh->slots[zone->slot].leaving
                    && i < zone->slot))
            {
                ngx_http_pd_zone_unlock(zone);
                return 0;
            }

            continue;
        }

        ngx_http_pd_slot_forget(zone, i);

        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "pd: forgot the requests of process %P", pid);
    }

    now = ngx_http_pd_now_us();

    for (i = 0; i < sh->nworkers; i++) {
        worker = &sh->workers[i];

        if (worker->lease && worker->lease < now) {
            worker->lease = 0;
            sh->leases++;
            sh->changes++;

            ngx_log_error(NGX_LOG_WARN, log, 0,
                          "pd: the lease of worker \"%*s\" has ended",
                          (size_t) worker->address_len, worker->address);
        }

        if (worker->id && !worker->configured && !worker->lease
            && worker->jobs == 0
            && !ngx_http_pd_slot_attached_any(zone, worker))
        {
            worker->id = 0;
        }
    }

    ngx_http_pd_slot_free_clusters(zone);

    ngx_http_pd_zone_unlock(zone);

    return 1;
}


/* clusters that no configuration names, once their last request is gone */

static void
ngx_http_pd_slot_free_clusters(ngx_http_pd_zone_t *zone)
{
    ngx_uint_t             i;
    ngx_uint_t             used[NGX_HTTP_PD_ZONE_CLUSTERS];
    ngx_http_pd_shared_t  *sh;

    sh = zone->sh;

    for (i = 0; i < NGX_HTTP_PD_ZONE_CLUSTERS; i++) {
        used[i] = sh->clusters[i].configured || sh->clusters[i].queued;
    }

    for (i = 0; i < sh->nworkers; i++) {
        if (sh->workers[i].id) {
            used[sh->workers[i].cluster] = 1;
        }
    }

    for (i = 0; i < NGX_HTTP_PD_ZONE_CLUSTERS; i++) {
        if (!used[i]) {
            sh->clusters[i].id = 0;
        }
    }
}


static ngx_uint_t
ngx_http_pd_slot_alive(ngx_http_pd_zone_t *zone, ngx_uint_t slot)
{
    struct flock  lock;

    ngx_memzero(&lock, sizeof(struct flock));
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = slot;
    lock.l_len = 1;

    if (fcntl(zone->sh->liveness, F_GETLK, &lock) == -1) {
        return 1;
    }

    return lock.l_type != F_UNLCK;
}


/* a process has ended: so have its requests and its connections */

static void
ngx_http_pd_slot_forget(ngx_http_pd_zone_t *zone, ngx_uint_t slot)
{
    ngx_http_pd_slot_t  *s;

    s = &zone->sh->slots[slot];

    if (s->pid == 0) {
        return;
    }

    ngx_http_pd_ledger_forget(zone, slot);

    s->pid = 0;
    s->stalled = 0;
    s->leaving = 0;
    s->grants = NGX_HTTP_PD_NIL;
    ngx_memzero(s->attached, sizeof(s->attached));
}


void
ngx_http_pd_slot_wake(ngx_http_pd_zone_t *zone, ngx_uint_t slot)
{
    uint64_t             one;
    ngx_http_pd_slot_t  *s;

    if (zone->entered && slot == zone->slot) {
        ngx_post_event(zone->self, &ngx_posted_events);
        return;
    }

    s = &zone->sh->slots[slot];

    if (s->pid == 0 || s->wake == -1) {
        return;
    }

    /* EAGAIN means that it is awake already */

    one = 1;

    if (write(s->wake, &one, sizeof(uint64_t)) == -1) {
        return;
    }
}


void
ngx_http_pd_slot_wake_all(ngx_http_pd_zone_t *zone)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {
        ngx_http_pd_slot_wake(zone, i);
    }
}


void
ngx_http_pd_slot_set_attached(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, ngx_uint_t attached)
{
    uint64_t    *word, bit;
    ngx_uint_t   i;

    i = ngx_http_pd_worker_index(zone, worker);

    word = &zone->sh->slots[zone->slot].attached[i / 64];
    bit = (uint64_t) 1 << (i % 64);

    *word = attached ? (*word | bit) : (*word & ~bit);
}


ngx_uint_t
ngx_http_pd_slot_attached_any(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_PD_ZONE_SLOTS; i++) {
        if (zone->sh->slots[i].pid
            && ngx_http_pd_slot_attached(zone, i, worker))
        {
            return 1;
        }
    }

    return 0;
}


ngx_uint_t
ngx_http_pd_slot_attached(ngx_http_pd_zone_t *zone, ngx_uint_t slot,
    ngx_http_pd_worker_t *worker)
{
    ngx_uint_t  i;

    i = ngx_http_pd_worker_index(zone, worker);

    return (zone->sh->slots[slot].attached[i / 64] >> (i % 64)) & 1;
}
