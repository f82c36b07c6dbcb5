
/*
 * The other frontends: see the header.
 */


#include "ngx_http_pd_frontends.h"


#define NGX_HTTP_PD_FRONTENDS_FRESH    5000000     /* us */
#define NGX_HTTP_PD_FRONTENDS_ID       64          /* bytes */


static ngx_http_pd_frontend_t *ngx_http_pd_frontends_find(
    ngx_http_pd_zone_t *zone, uint64_t cluster, uint64_t hash);
static ngx_uint_t ngx_http_pd_frontends_median(ngx_uint_t *ratio,
    ngx_uint_t n);


void
ngx_http_pd_frontends_learn(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
    Pd__V1__Frontends *frontends)
{
    size_t                   i;
    ngx_str_t                id;
    ngx_http_pd_frontend_t  *frontend;
    Pd__V1__FrontendHealth  *health;

    for (i = 0; i < frontends->n_others; i++) {
        health = frontends->others[i];

        id.data = (u_char *) health->frontend_id;
        id.len = ngx_strlen(health->frontend_id);

        if (id.len == 0 || id.len > NGX_HTTP_PD_FRONTENDS_ID
            || ngx_strcmp(id.data, zone->sh->frontend_id) == 0)
        {
            continue;
        }

        frontend = ngx_http_pd_frontends_find(zone,
                                              zone->sh->clusters[cluster].id,
                                              ngx_http_pd_zone_hash(zone, &id));

        frontend->heard = ngx_http_pd_now_us();
        frontend->requests = health->requests;
        frontend->finished = ngx_min(health->finished, health->requests);
        frontend->away = (health->away != 0);
    }
}


/* its place, or the one of which was heard longest ago */

static ngx_http_pd_frontend_t *
ngx_http_pd_frontends_find(ngx_http_pd_zone_t *zone, uint64_t cluster,
    uint64_t hash)
{
    ngx_uint_t               i;
    ngx_http_pd_frontend_t  *frontend, *oldest;

    oldest = zone->sh->frontends;

    for (i = 0; i < NGX_HTTP_PD_ZONE_FRONTENDS; i++) {
        frontend = &zone->sh->frontends[i];

        if (frontend->hash == hash && frontend->cluster == cluster) {
            return frontend;
        }

        if (frontend->heard < oldest->heard) {
            oldest = frontend;
        }
    }

    oldest->hash = hash;
    oldest->cluster = cluster;

    return oldest;
}


void
ngx_http_pd_frontends_view(ngx_http_pd_zone_t *zone, ngx_uint_t index,
    uint64_t requests, ngx_http_pd_frontends_view_t *view)
{
    uint64_t                 now, cluster;
    ngx_uint_t               i, n;
    ngx_uint_t               ratio[NGX_HTTP_PD_ZONE_FRONTENDS];
    ngx_http_pd_frontend_t  *frontend;

    now = ngx_http_pd_now_us();
    cluster = zone->sh->clusters[index].id;
    n = 0;

    ngx_memzero(view, sizeof(ngx_http_pd_frontends_view_t));

    for (i = 0; i < NGX_HTTP_PD_ZONE_FRONTENDS; i++) {
        frontend = &zone->sh->frontends[i];

        if (frontend->hash == 0 || frontend->cluster != cluster
            || now - frontend->heard > NGX_HTTP_PD_FRONTENDS_FRESH)
        {
            continue;
        }

        view->known++;
        view->away += frontend->away;

        if (frontend->requests && frontend->requests >= requests) {
            ratio[n++] = ngx_http_pd_frontends_ratio(frontend->finished,
                                                     frontend->requests);
        }
    }

    view->median = ngx_http_pd_frontends_median(ratio, n);
}


/* of an even number, what lies between the two in the middle */

static ngx_uint_t
ngx_http_pd_frontends_median(ngx_uint_t *ratio, ngx_uint_t n)
{
    ngx_uint_t  i, k, value;

    if (n == 0) {
        return NGX_HTTP_PD_RATIO_UNKNOWN;
    }

    for (i = 1; i < n; i++) {
        value = ratio[i];

        for (k = i; k && ratio[k - 1] > value; k--) {
            ratio[k] = ratio[k - 1];
        }

        ratio[k] = value;
    }

    return (ratio[(n - 1) / 2] + ratio[n / 2]) / 2;
}
