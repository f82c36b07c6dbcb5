
/*
 * The pd_cluster block.
 *
 *     pd_cluster chat {
 *         worker 10.0.0.11:9000 role=prefill zone=rack1;
 *         worker 10.0.0.21:9000 role=decode  zone=rack1;
 *         register on token=secret lease=30s;
 *         queue 1024 timeout=30s;
 *         policy least_time;
 *         sticky $http_x_session_id;
 *         direct_threshold auto;
 *         borrow_threshold auto timeout=1s;
 *     }
 *
 * Core's "upstream" knows neither roles nor empty pools.  The block is read by
 * a module of a type of its own, so that nginx's parser does all the rest:
 * include, unknown directives, numbers of arguments, line numbers.
 */


#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_cluster_directives.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_policy.h"
#include "ngx_http_pd_ready.h"


#define NGX_HTTP_PD_CLUSTER_MODULE    0x55434450    /* "PDCU" */
#define NGX_HTTP_PD_CLUSTER_CONF      0x02000000

#define NGX_HTTP_PD_QUEUE             1024
#define NGX_HTTP_PD_QUEUE_BYTES       (64 * 1024 * 1024)
#define NGX_HTTP_PD_QUEUE_TIMEOUT     30000
#define NGX_HTTP_PD_LEASE             30000
#define NGX_HTTP_PD_FAILOVER_RATE     64
#define NGX_HTTP_PD_FAILOVER_BURST    256
#define NGX_HTTP_PD_STALL             30000
#define NGX_HTTP_PD_FAULTS            3
#define NGX_HTTP_PD_EXCESS            5      /* % */
#define NGX_HTTP_PD_ANSWERS           50
#define NGX_HTTP_PD_BACKOFF           1000
#define NGX_HTTP_PD_BORROW_TIMEOUT    1000


static char *ngx_http_pd_cluster_resolve(ngx_conf_t *cf,
    ngx_http_pd_main_conf_t *pmcf, ngx_http_pd_cluster_t *cluster);


static ngx_command_t  ngx_http_pd_cluster_commands[] = {

    { ngx_string("worker"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_1MORE,
      ngx_http_pd_worker_directive,
      0,
      0,
      NULL },

    { ngx_string("register"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE123,
      ngx_http_pd_cluster_register,
      0,
      0,
      NULL },

    { ngx_string("queue"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE123,
      ngx_http_pd_cluster_queue,
      0,
      0,
      NULL },

    { ngx_string("direct_threshold"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE1,
      ngx_http_pd_cluster_direct,
      0,
      0,
      NULL },

    { ngx_string("borrow_threshold"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE12,
      ngx_http_pd_cluster_borrow,
      0,
      0,
      NULL },

    { ngx_string("policy"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE12,
      ngx_http_pd_policy_directive,
      0,
      0,
      NULL },

    { ngx_string("sticky"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE1,
      ngx_http_pd_policy_sticky,
      0,
      0,
      NULL },

    { ngx_string("failover_rate"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE12,
      ngx_http_pd_cluster_failover,
      0,
      0,
      NULL },

    { ngx_string("revision"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE2,
      ngx_http_pd_revision_directive,
      0,
      0,
      NULL },

    { ngx_string("ejection"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_1MORE,
      ngx_http_pd_cluster_ejection,
      0,
      0,
      NULL },

    { ngx_string("readiness"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_1MORE,
      ngx_http_pd_ready_directive,
      0,
      0,
      NULL },

      ngx_null_command
};


ngx_module_t  ngx_http_pd_cluster_module = {
    NGX_MODULE_V1,
    NULL,                                  /* module context */
    ngx_http_pd_cluster_commands,          /* module directives */
    NGX_HTTP_PD_CLUSTER_MODULE,            /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


char *
ngx_http_pd_cluster_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char                     *rv;
    void                     *confs[1], *ctx[1];
    ngx_str_t                *value;
    ngx_conf_t                save;
    ngx_http_pd_cluster_t    *cluster;

    value = cf->args->elts;

    if (value[1].len == 0 || value[1].len > NGX_HTTP_PD_NAME_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid name \"%V\" in \"pd_cluster\": "
                           "use 1 to %d characters",
                           &value[1], NGX_HTTP_PD_NAME_MAX);
        return NGX_CONF_ERROR;
    }

    cluster = ngx_http_pd_cluster_mention(cf, &value[1]);
    if (cluster == NULL) {
        return NGX_CONF_ERROR;
    }

    if (cluster->defined) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate \"pd_cluster %V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    cluster->defined = 1;
    cluster->http = cf->ctx;

    /* gives our type's only module its ctx_index, 0 */

    if (ngx_count_modules(cf->cycle, NGX_HTTP_PD_CLUSTER_MODULE) != 1) {
        return NGX_CONF_ERROR;
    }

    confs[0] = cluster;
    ctx[0] = confs;

    save = *cf;
    cf->ctx = ctx;
    cf->module_type = NGX_HTTP_PD_CLUSTER_MODULE;
    cf->cmd_type = NGX_HTTP_PD_CLUSTER_CONF;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (cluster->workers.nelts == 0 && cluster->registration != 1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"pd_cluster %V\" can never have a worker: "
                           "add a \"worker\" line or \"register on\"",
                           &cluster->name);
        return NGX_CONF_ERROR;
    }

    ngx_conf_init_value(cluster->registration, 0);
    ngx_conf_init_uint_value(cluster->queue, NGX_HTTP_PD_QUEUE);
    ngx_conf_init_size_value(cluster->queue_bytes, NGX_HTTP_PD_QUEUE_BYTES);
    ngx_conf_init_msec_value(cluster->queue_timeout,
                             NGX_HTTP_PD_QUEUE_TIMEOUT);
    ngx_conf_init_uint_value(cluster->direct_threshold, 0);
    ngx_conf_init_uint_value(cluster->borrow_threshold,
                             NGX_HTTP_PD_BORROW_AUTO);
    ngx_conf_init_msec_value(cluster->borrow_timeout,
                             NGX_HTTP_PD_BORROW_TIMEOUT);
    ngx_conf_init_uint_value(cluster->policy, NGX_HTTP_PD_LEAST_TIME);
    ngx_conf_init_uint_value(cluster->failover_rate,
                             NGX_HTTP_PD_FAILOVER_RATE);
    ngx_conf_init_msec_value(cluster->stall, NGX_HTTP_PD_STALL);
    ngx_conf_init_msec_value(cluster->backoff, NGX_HTTP_PD_BACKOFF);
    ngx_conf_init_uint_value(cluster->faults, NGX_HTTP_PD_FAULTS);
    ngx_conf_init_uint_value(cluster->excess, NGX_HTTP_PD_EXCESS);
    ngx_conf_init_uint_value(cluster->answers, NGX_HTTP_PD_ANSWERS);

    ngx_http_pd_ready_defaults(cluster);

    return NGX_CONF_OK;
}


ngx_http_pd_cluster_t *
ngx_http_pd_cluster_find(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                 i;
    ngx_http_pd_cluster_t    **clusters;
    ngx_http_pd_main_conf_t   *pmcf;

    pmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_pd_module);
    clusters = pmcf->clusters.elts;

    for (i = 0; i < pmcf->clusters.nelts; i++) {
        if (clusters[i]->name.len == name->len
            && ngx_strncmp(clusters[i]->name.data, name->data, name->len) == 0)
        {
            return clusters[i];
        }
    }

    return NULL;
}


ngx_http_pd_cluster_t *
ngx_http_pd_cluster_mention(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_http_pd_cluster_t    *cluster, **slot;
    ngx_http_pd_main_conf_t  *pmcf;

    cluster = ngx_http_pd_cluster_find(cf, name);
    if (cluster != NULL) {
        return cluster;
    }

    pmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_pd_module);

    cluster = ngx_pcalloc(cf->pool, sizeof(ngx_http_pd_cluster_t));
    if (cluster == NULL) {
        return NULL;
    }

    if (ngx_array_init(&cluster->workers, cf->pool, 4,
                       sizeof(ngx_http_pd_worker_conf_t))
        != NGX_OK)
    {
        return NULL;
    }

    slot = ngx_array_push(&pmcf->clusters);
    if (slot == NULL) {
        return NULL;
    }

    *slot = cluster;

    cluster->name = *name;
    cluster->main = pmcf;
    cluster->file = cf->conf_file->file.name.data;
    cluster->line = cf->conf_file->line;
    cluster->registration = NGX_CONF_UNSET;
    cluster->lease = NGX_HTTP_PD_LEASE;
    cluster->queue = NGX_CONF_UNSET_UINT;
    cluster->queue_bytes = NGX_CONF_UNSET_SIZE;
    cluster->queue_timeout = NGX_CONF_UNSET_MSEC;
    cluster->direct_threshold = NGX_CONF_UNSET_UINT;
    cluster->borrow_threshold = NGX_CONF_UNSET_UINT;
    cluster->borrow_timeout = NGX_CONF_UNSET_MSEC;
    cluster->policy = NGX_CONF_UNSET_UINT;
    cluster->failover_rate = NGX_CONF_UNSET_UINT;
    cluster->failover_burst = NGX_HTTP_PD_FAILOVER_BURST;
    cluster->stall = NGX_CONF_UNSET_MSEC;
    cluster->faults = NGX_CONF_UNSET_UINT;
    cluster->excess = NGX_CONF_UNSET_UINT;
    cluster->answers = NGX_CONF_UNSET_UINT;
    cluster->backoff = NGX_CONF_UNSET_MSEC;

    ngx_http_pd_ready_unset(cluster);

    return cluster;
}


char *
ngx_http_pd_cluster_check(ngx_conf_t *cf, ngx_http_pd_main_conf_t *pmcf)
{
    ngx_uint_t                 i;
    ngx_http_pd_cluster_t    **clusters;
    ngx_http_core_loc_conf_t  *clcf;

    clusters = pmcf->clusters.elts;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* nginx makes one that knows nobody where there is no directive */

    if (clcf->resolver && clcf->resolver->connections.nelts) {
        pmcf->resolver = clcf->resolver;
    }

    if (pmcf->clusters.nelts > NGX_HTTP_PD_CLUSTERS_MAX) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "too many \"pd_cluster\" blocks: at most %d",
                      NGX_HTTP_PD_CLUSTERS_MAX);
        return NGX_CONF_ERROR;
    }

    for (i = 0; i < pmcf->clusters.nelts; i++) {

        if (!clusters[i]->defined) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "unknown cluster \"%V\" in %s:%ui: "
                          "define it with \"pd_cluster %V { ... }\"",
                          &clusters[i]->name, clusters[i]->file,
                          clusters[i]->line, &clusters[i]->name);
            return NGX_CONF_ERROR;
        }

        if (ngx_http_pd_cluster_resolve(cf, pmcf, clusters[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }

        if (clusters[i]->register_file && clusters[i]->registration != 1) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"pd_register\" in %s:%ui takes no registrations: "
                          "write \"register on;\" in \"pd_cluster %V\"",
                          clusters[i]->register_file,
                          clusters[i]->register_line, &clusters[i]->name);
            return NGX_CONF_ERROR;
        }

        if (pmcf->zone == NULL) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"pd_cluster %V\" in %s:%ui has no shared memory: "
                          "write \"pd_zone NAME:SIZE;\" in the http block",
                          &clusters[i]->name, clusters[i]->file,
                          clusters[i]->line);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* numbers now; names as well, unless there is a resolver to ask again */

static char *
ngx_http_pd_cluster_resolve(ngx_conf_t *cf, ngx_http_pd_main_conf_t *pmcf,
    ngx_http_pd_cluster_t *cluster)
{
    ngx_url_t                  *u;
    ngx_uint_t                  i;
    ngx_http_pd_worker_conf_t  *worker;

    worker = cluster->workers.elts;

    for (i = 0; i < cluster->workers.nelts; i++) {
        u = &worker[i].url;

        if (worker[i].addrs
            || (pmcf->resolver && u->family != AF_INET6
                && ngx_inet_addr(u->host.data, u->host.len) == INADDR_NONE))
        {
            continue;
        }

        if (ngx_inet_resolve_host(cf->pool, u) != NGX_OK) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "%s in \"worker %V\" of \"pd_cluster %V\": "
                          "write HOST:PORT",
                          u->err ? u->err : "invalid address",
                          &worker[i].address, &cluster->name);
            return NGX_CONF_ERROR;
        }

        worker[i].addrs = u->addrs;
        worker[i].naddrs = u->naddrs;
    }

    return NGX_CONF_OK;
}
