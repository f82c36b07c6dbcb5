
/*
 * pd_health live;     200 as long as this process answers
 * pd_health ready;    200 if this frontend is fit to serve every cluster, see
 *                     ngx_http_pd_ready.h, else 503
 *
 * Both answer {"status": "...", "clusters": {"NAME": "..."}}, with each
 * cluster's ngx_http_pd_ready_e as a word: live names the clusters too, but
 * does not judge by them, so that a frontend whose workers restart is not
 * restarted as well.
 */


#include "ngx_http_pd_health.h"
#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_ready.h"


static ngx_int_t ngx_http_pd_health_handler(ngx_http_request_t *r);
static ngx_http_pd_ready_e ngx_http_pd_health_body(ngx_http_request_t *r,
    ngx_str_t *clusters);


/* by ngx_http_pd_ready_e */

static ngx_str_t  ngx_http_pd_health_words[] = {
    ngx_string("waiting"),
    ngx_string("away"),
    ngx_string("degraded"),
    ngx_string("ready")
};


char *
ngx_http_pd_health(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_pd_health_handler;

    return ngx_conf_set_enum_slot(cf, cmd, conf);
}


static ngx_int_t
ngx_http_pd_health_handler(ngx_http_request_t *r)
{
    size_t                   len;
    ngx_int_t                rc;
    ngx_buf_t               *b;
    ngx_str_t                clusters;
    const char              *status;
    ngx_chain_t              out;
    ngx_http_pd_ready_e      worst;
    ngx_http_pd_loc_conf_t  *plcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    worst = ngx_http_pd_health_body(r, &clusters);

    if (clusters.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (plcf->health == NGX_HTTP_PD_HEALTH_LIVE) {
        status = "live";
        r->headers_out.status = NGX_HTTP_OK;

    } else if (worst >= NGX_HTTP_PD_READY_DEGRADED) {
        status = "ready";
        r->headers_out.status = NGX_HTTP_OK;

    } else {
        status = (char *) ngx_http_pd_health_words[worst].data;
        r->headers_out.status = NGX_HTTP_SERVICE_UNAVAILABLE;
        r->keepalive = 0;
    }

    len = sizeof("{\"status\":\"waiting\",\"clusters\":{}}\n") + clusters.len;

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_snprintf(b->last, len,
                           "{\"status\":\"%s\",\"clusters\":{%V}}\n",
                           status, &clusters);
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    r->headers_out.content_length_n = b->last - b->pos;
    ngx_str_set(&r->headers_out.content_type, "application/json");
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


/* "NAME":"ready",...; data is NULL if memory failed.  The worst of them. */

static ngx_http_pd_ready_e
ngx_http_pd_health_body(ngx_http_request_t *r, ngx_str_t *clusters)
{
    size_t                     len;
    u_char                    *p;
    ngx_str_t                 *word;
    ngx_uint_t                 i;
    ngx_http_pd_ready_e        ready, worst;
    ngx_http_pd_cluster_t    **cluster;
    ngx_http_pd_main_conf_t   *pmcf;

    pmcf = ngx_http_get_module_main_conf(r, ngx_http_pd_module);
    cluster = pmcf->clusters.elts;

    len = 1;

    for (i = 0; i < pmcf->clusters.nelts; i++) {
        len += sizeof("\"\":\"degraded\",") - 1 + 6 * cluster[i]->name.len;
    }

    p = ngx_pnalloc(r->pool, len);

    clusters->data = p;
    clusters->len = 0;

    worst = NGX_HTTP_PD_READY;

    if (p == NULL) {
        return worst;
    }

    for (i = 0; i < pmcf->clusters.nelts; i++) {

        ready = ngx_http_pd_ready(cluster[i]);
        worst = ngx_min(worst, ready);
        word = &ngx_http_pd_health_words[ready];

        if (i) {
            *p++ = ',';
        }

        *p++ = '"';
        p = (u_char *) ngx_escape_json(p, cluster[i]->name.data,
                                       cluster[i]->name.len);
        p = ngx_cpymem(p, "\":\"", 3);
        p = ngx_cpymem(p, word->data, word->len);
        *p++ = '"';
    }

    clusters->len = p - clusters->data;

    return worst;
}
