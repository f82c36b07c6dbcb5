
/*
 * The state file's lines: see the header.
 */


#include "ngx_http_pd_state_lines.h"
#include "ngx_http_pd_account.h"
#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_verdict.h"
#include "ngx_http_pd_vitals.h"


static ngx_int_t ngx_http_pd_state_line(ngx_http_pd_main_conf_t *pmcf,
    u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_state_lease(ngx_http_pd_main_conf_t *pmcf,
    u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_state_ejected(ngx_http_pd_main_conf_t *pmcf,
    u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_state_place(ngx_http_pd_main_conf_t *pmcf,
    u_char *p, u_char *last, ngx_str_t *address, time_t *left,
    ngx_http_pd_cluster_t **cluster);
static ngx_int_t ngx_http_pd_state_ended(ngx_http_pd_main_conf_t *pmcf,
    u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_state_out(ngx_http_pd_main_conf_t *pmcf,
    u_char *p, u_char *last);
static ngx_http_pd_cluster_t *ngx_http_pd_state_cluster(
    ngx_http_pd_main_conf_t *pmcf, u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_state_account(ngx_http_pd_zone_t *zone,
    u_char *p, u_char *last);
static ngx_int_t ngx_http_pd_state_number(u_char **p, u_char *last,
    ngx_uint_t base, uint64_t *number);
static u_char *ngx_http_pd_state_write_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, const char *what, uint64_t end, u_char *p);
static u_char *ngx_http_pd_state_write_cluster(
    ngx_http_pd_zone_cluster_t *cluster, u_char *p);
static u_char *ngx_http_pd_state_write_accounts(ngx_http_pd_zone_t *zone,
    u_char *p);


ngx_uint_t
ngx_http_pd_state_known(u_char *p, u_char *last)
{
    size_t  head;

    head = sizeof(NGX_HTTP_PD_STATE_HEAD) - 1;

    return (size_t) (last - p) >= head
           && ngx_memcmp(p, NGX_HTTP_PD_STATE_HEAD, head) == 0;
}


ngx_int_t
ngx_http_pd_state_apply(ngx_http_pd_main_conf_t *pmcf, u_char *p, u_char *last)
{
    u_char              *end;
    size_t               tail;
    ngx_int_t            rc;
    ngx_http_pd_zone_t  *zone;

    tail = sizeof(NGX_HTTP_PD_STATE_TAIL) - 1;

    p += sizeof(NGX_HTTP_PD_STATE_HEAD) - 1;

    if ((size_t) (last - p) < tail
        || ngx_memcmp(last - tail, NGX_HTTP_PD_STATE_TAIL, tail) != 0)
    {
        return NGX_ERROR;
    }

    zone = pmcf->zone->data;

    last -= tail;
    rc = NGX_OK;

    ngx_http_pd_zone_lock(zone);

    while (p < last) {
        end = ngx_strlchr(p, last, '\n');

        if (end == NULL || ngx_http_pd_state_line(pmcf, p, end) != NGX_OK) {
            rc = NGX_ERROR;
            break;
        }

        p = end + 1;
    }

    ngx_http_pd_zone_unlock(zone);

    return rc;
}


static ngx_int_t
ngx_http_pd_state_line(ngx_http_pd_main_conf_t *pmcf, u_char *p, u_char *last)
{
    uint64_t             master;
    ngx_http_pd_zone_t  *zone;

    zone = pmcf->zone->data;

    if (last - p > 6 && ngx_memcmp(p, "lease ", 6) == 0) {
        return ngx_http_pd_state_lease(pmcf, p + 6, last);
    }

    if (last - p > 8 && ngx_memcmp(p, "ejected ", 8) == 0) {
        return ngx_http_pd_state_ejected(pmcf, p + 8, last);
    }

    if (last - p > 6 && ngx_memcmp(p, "ended ", 6) == 0) {
        return ngx_http_pd_state_ended(pmcf, p + 6, last);
    }

    if (last - p > 4 && ngx_memcmp(p, "out ", 4) == 0) {
        return ngx_http_pd_state_out(pmcf, p + 4, last);
    }

    if (last - p > 8 && ngx_memcmp(p, "account ", 8) == 0) {
        return ngx_http_pd_state_account(zone, p + 8, last);
    }

    if (last - p > 7 && ngx_memcmp(p, "master ", 7) == 0) {
        p += 7;
        return ngx_http_pd_state_number(&p, last, 10, &master);
    }

    if (last - p > 5 && ngx_memcmp(p, "seed ", 5) == 0) {
        p += 5;
        return ngx_http_pd_state_number(&p, last, 16, &zone->sh->seed);
    }

    return NGX_ERROR;
}


static ngx_int_t
ngx_http_pd_state_lease(ngx_http_pd_main_conf_t *pmcf, u_char *p, u_char *last)
{
    time_t                  left;
    ngx_str_t               address;
    ngx_http_pd_worker_t   *worker;
    ngx_http_pd_cluster_t  *cluster;

    if (ngx_http_pd_state_place(pmcf, p, last, &address, &left, &cluster)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (cluster == NULL || !cluster->registration) {
        return NGX_OK;
    }

    worker = ngx_http_pd_zone_worker_add(pmcf->zone->data, cluster->shared,
                                         &address);
    if (worker) {
        left = ngx_min(left, (time_t) cluster->lease / 1000);
        worker->lease = ngx_http_pd_now_us() + (uint64_t) left * 1000000;
    }

    return NGX_OK;
}


/* behind its lease, if it has one, so that it has its entry */

static ngx_int_t
ngx_http_pd_state_ejected(ngx_http_pd_main_conf_t *pmcf, u_char *p,
    u_char *last)
{
    time_t                  left;
    ngx_str_t               address;
    ngx_uint_t              i;
    ngx_http_pd_zone_t     *zone;
    ngx_http_pd_worker_t   *worker;
    ngx_http_pd_cluster_t  *cluster;

    if (ngx_http_pd_state_place(pmcf, p, last, &address, &left, &cluster)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (cluster == NULL) {
        return NGX_OK;
    }

    zone = pmcf->zone->data;

    for (i = 0; i < zone->sh->nworkers; i++) {
        worker = &zone->sh->workers[i];

        if (worker->id && worker->cluster == cluster->shared
            && worker->address_len == address.len
            && ngx_memcmp(worker->address, address.data, address.len) == 0)
        {
            ngx_http_pd_vitals_restore(worker, left);
        }
    }

    return NGX_OK;
}


/* "ADDRESS SECOND CLUSTER"; no cluster: none that is, or the time is over */

static ngx_int_t
ngx_http_pd_state_place(ngx_http_pd_main_conf_t *pmcf, u_char *p, u_char *last,
    ngx_str_t *address, time_t *left, ngx_http_pd_cluster_t **cluster)
{
    u_char  *space;
    time_t   end;

    *cluster = NULL;

    space = ngx_strlchr(p, last, ' ');

    if (space == NULL || space == p
        || space - p > NGX_HTTP_PD_ADDRESS_MAX)
    {
        return NGX_ERROR;
    }

    address->data = p;
    address->len = space - p;
    p = space + 1;

    space = ngx_strlchr(p, last, ' ');

    if (space == NULL) {
        return NGX_ERROR;
    }

    end = ngx_atotm(p, space - p);

    if (end == (time_t) NGX_ERROR) {
        return NGX_ERROR;
    }

    *left = end - ngx_time();

    if (*left <= 0) {
        return NGX_OK;
    }

    *cluster = ngx_http_pd_state_cluster(pmcf, space + 1, last);

    return NGX_OK;
}


/* NULL: there is none of that name any more */

static ngx_http_pd_cluster_t *
ngx_http_pd_state_cluster(ngx_http_pd_main_conf_t *pmcf, u_char *p,
    u_char *last)
{
    size_t                   len;
    ngx_uint_t               i;
    ngx_http_pd_cluster_t  **clusters;

    len = last - p;
    clusters = pmcf->clusters.elts;

    for (i = 0; i < pmcf->clusters.nelts; i++) {

        if (clusters[i]->shared_id && clusters[i]->name.len == len
            && ngx_memcmp(clusters[i]->name.data, p, len) == 0)
        {
            return clusters[i];
        }
    }

    return NULL;
}


/* "FINISHED FAILED SECOND CLUSTER" */

static ngx_int_t
ngx_http_pd_state_ended(ngx_http_pd_main_conf_t *pmcf, u_char *p,
    u_char *last)
{
    uint64_t                finished, failed, when, now;
    ngx_http_pd_zone_t     *zone;
    ngx_http_pd_cluster_t  *cluster;

    if (ngx_http_pd_state_number(&p, last, 10, &finished) != NGX_OK
        || ngx_http_pd_state_number(&p, last, 10, &failed) != NGX_OK
        || ngx_http_pd_state_number(&p, last, 10, &when) != NGX_OK)
    {
        return NGX_ERROR;
    }

    cluster = ngx_http_pd_state_cluster(pmcf, p, last);
    now = (uint64_t) ngx_time();

    if (cluster && when <= now && now - when < 86400) {
        zone = pmcf->zone->data;
        ngx_http_pd_verdict_restore(&zone->sh->clusters[cluster->shared],
                                    now - when, finished, failed);
    }

    return NGX_OK;
}


/* "ROUNDS SECOND CLUSTER" */

static ngx_int_t
ngx_http_pd_state_out(ngx_http_pd_main_conf_t *pmcf, u_char *p, u_char *last)
{
    uint64_t                rounds, until, now;
    ngx_http_pd_cluster_t  *cluster;

    if (ngx_http_pd_state_number(&p, last, 10, &rounds) != NGX_OK
        || ngx_http_pd_state_number(&p, last, 10, &until) != NGX_OK)
    {
        return NGX_ERROR;
    }

    cluster = ngx_http_pd_state_cluster(pmcf, p, last);
    now = (uint64_t) ngx_time();

    if (cluster) {
        until = (until > now) ? ngx_min(until - now, 86400) : 0;
        ngx_http_pd_ready_restore(pmcf->zone->data, cluster, until, rounds);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_state_account(ngx_http_pd_zone_t *zone, u_char *p, u_char *last)
{
    uint64_t    key, when, now, limits[2], owed[2];
    ngx_uint_t  i;

    if (ngx_http_pd_state_number(&p, last, 16, &key) != NGX_OK || key == 0) {
        return NGX_ERROR;
    }

    for (i = 0; i < 2; i++) {

        if (ngx_http_pd_state_number(&p, last, 10, &limits[i]) != NGX_OK
            || ngx_http_pd_state_number(&p, last, 10, &owed[i]) != NGX_OK
            || limits[i] > NGX_HTTP_PD_LIMIT_MAX
            || owed[i] > NGX_HTTP_PD_LIMIT_MAX)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_pd_state_number(&p, last, 10, &when) != NGX_OK || p < last) {
        return NGX_ERROR;
    }

    now = (uint64_t) ngx_time();

    /* a day pays any debt */

    when = (when < now) ? ngx_min(now - when, 86400) : 0;

    ngx_http_pd_account_restore(zone, key, limits, owed, when * 1000000);

    return NGX_OK;
}


uint64_t
ngx_http_pd_state_master(u_char *p, u_char *last)
{
    u_char    *end;
    uint64_t   master;

    static const char  head[] = NGX_HTTP_PD_STATE_HEAD "master ";

    if ((size_t) (last - p) < sizeof(head) - 1
        || ngx_memcmp(p, head, sizeof(head) - 1) != 0)
    {
        return 0;
    }

    p += sizeof(head) - 1;
    end = ngx_strlchr(p, last, '\n');

    if (end == NULL
        || ngx_http_pd_state_number(&p, end, 10, &master) != NGX_OK)
    {
        return 0;
    }

    return master;
}


/* up to a space or the end */

static ngx_int_t
ngx_http_pd_state_number(u_char **p, u_char *last, ngx_uint_t base,
    uint64_t *number)
{
    u_char    *start, ch;
    uint64_t   n, digit;

    n = 0;

    for (start = *p; *p < last && **p != ' '; (*p)++) {
        ch = **p;

        if (ch >= '0' && ch <= '9') {
            digit = ch - '0';

        } else if (base == 16 && ch >= 'a' && ch <= 'f') {
            digit = ch - 'a' + 10;

        } else {
            return NGX_ERROR;
        }

        n = n * base + digit;
    }

    if (*p == start || *p - start > 16) {
        return NGX_ERROR;
    }

    if (*p < last) {
        (*p)++;
    }

    *number = n;

    return NGX_OK;
}


u_char *
ngx_http_pd_state_write(ngx_http_pd_zone_t *zone, u_char *p)
{
    uint64_t               now;
    ngx_uint_t             i;
    ngx_http_pd_worker_t  *worker;

    now = ngx_http_pd_now_us();

    p = ngx_cpymem(p, NGX_HTTP_PD_STATE_HEAD,
                   sizeof(NGX_HTTP_PD_STATE_HEAD) - 1);
    p = ngx_sprintf(p, "master %uL\n", zone->sh->claim);

    for (i = 0; i < zone->sh->nworkers; i++) {
        worker = &zone->sh->workers[i];

        if (worker->id == 0) {
            continue;
        }

        if (worker->lease) {
            p = ngx_http_pd_state_write_place(zone, worker, "lease",
                                              worker->lease, p);
        }

        if (worker->vital == NGX_HTTP_PD_EJECTED) {
            p = ngx_http_pd_state_write_place(zone, worker, "ejected",
                                    ngx_max(worker->until, now + 1000000), p);
        }
    }

    for (i = 0; i < zone->sh->nclusters; i++) {
        if (zone->sh->clusters[i].id) {
            p = ngx_http_pd_state_write_cluster(&zone->sh->clusters[i], p);
        }
    }

    p = ngx_http_pd_state_write_accounts(zone, p);

    return ngx_cpymem(p, NGX_HTTP_PD_STATE_TAIL,
                      sizeof(NGX_HTTP_PD_STATE_TAIL) - 1);
}


static u_char *
ngx_http_pd_state_write_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_worker_t *worker, const char *what, uint64_t end, u_char *p)
{
    int64_t                      left;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[worker->cluster];
    left = (int64_t) (end - ngx_http_pd_now_us()) / 1000000;

    return ngx_sprintf(p, "%s %*s %T %*s\n", what,
                       (size_t) worker->address_len, worker->address,
                       (time_t) (ngx_time() + left),
                       (size_t) cluster->name_len, cluster->name);
}


static u_char *
ngx_http_pd_state_write_cluster(ngx_http_pd_zone_cluster_t *cluster, u_char *p)
{
    int64_t              left;
    uint64_t             age;
    ngx_uint_t           i;
    ngx_http_pd_part_t  *part;

    for (i = 0; i < NGX_HTTP_PD_PARTS; i++) {
        part = &cluster->parts[i];

        if (ngx_http_pd_verdict_part(cluster, i, &age)
            && (part->finished || part->failed))
        {
            p = ngx_sprintf(p, "ended %uD %uD %T %*s\n",
                            part->finished, part->failed,
                            (time_t) (ngx_time() - age),
                            (size_t) cluster->name_len, cluster->name);
        }
    }

    if (cluster->ready.away) {
        left = (int64_t) (cluster->ready.until - ngx_http_pd_now_us())
               / 1000000;

        p = ngx_sprintf(p, "out %uD %T %*s\n", cluster->ready.rounds,
                        (time_t) (ngx_time() + ngx_max(left, 0)),
                        (size_t) cluster->name_len, cluster->name);
    }

    return p;
}


static u_char *
ngx_http_pd_state_write_accounts(ngx_http_pd_zone_t *zone, u_char *p)
{
    uint64_t                now, owed[2];
    ngx_uint_t              i, n;
    ngx_http_pd_account_t  *account;

    p = ngx_sprintf(p, "seed %016xL\n", zone->sh->seed);

    now = ngx_http_pd_now_us();
    n = 0;

    for (i = 0; i < zone->sh->naccounts; i++) {
        account = &zone->sh->accounts[i];

        if (account->key == 0
            || !ngx_http_pd_account_owes(account, now, owed))
        {
            continue;
        }

        if (n++ == NGX_HTTP_PD_STATE_ACCOUNTS) {
            break;
        }

        p = ngx_sprintf(p, "account %016xL %uD %uL %uD %uL %T\n",
                        account->key, account->limits[0],
                        ngx_min(owed[0], NGX_HTTP_PD_LIMIT_MAX),
                        account->limits[1],
                        ngx_min(owed[1], NGX_HTTP_PD_LIMIT_MAX), ngx_time());
    }

    return p;
}
