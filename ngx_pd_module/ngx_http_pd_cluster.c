
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
 *     }
 *
 * Core's "upstream" knows neither roles nor empty pools.  The block is read by
 * a module of a type of its own, so that nginx's parser does all the rest:
 * include, unknown directives, numbers of arguments, line numbers.
 */


#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_revision.h"
#include "ngx_http_pd_policy.h"


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
#define NGX_HTTP_PD_BACKOFF           1000


static char *ngx_http_pd_cluster_resolve(ngx_conf_t *cf,
    ngx_http_pd_main_conf_t *pmcf, ngx_http_pd_cluster_t *cluster);
static char *ngx_http_pd_cluster_worker(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_pd_cluster_worker_address(ngx_conf_t *cf,
    ngx_http_pd_cluster_t *cluster, ngx_str_t *value, ngx_url_t *u);
static char *ngx_http_pd_cluster_worker_param(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value);
static char *ngx_http_pd_cluster_worker_role(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value);
static char *ngx_http_pd_cluster_worker_number(ngx_conf_t *cf,
    ngx_str_t *value, size_t name, ngx_int_t max, ngx_uint_t *number);
static char *ngx_http_pd_cluster_register(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_pd_cluster_queue(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_pd_cluster_direct(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_pd_cluster_failover(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_pd_cluster_ejection(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static ngx_msec_t ngx_http_pd_cluster_time(ngx_str_t *value, size_t name);


static ngx_command_t  ngx_http_pd_cluster_commands[] = {

    { ngx_string("worker"),
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_1MORE,
      ngx_http_pd_cluster_worker,
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
      NGX_HTTP_PD_CLUSTER_CONF|NGX_CONF_TAKE123,
      ngx_http_pd_cluster_ejection,
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


static ngx_conf_enum_t  ngx_http_pd_cluster_roles[] = {
    { ngx_string("prefill"), PD__V1__ROLE__ROLE_PREFILL },
    { ngx_string("decode"), PD__V1__ROLE__ROLE_DECODE },
    { ngx_string("mixed"), PD__V1__ROLE__ROLE_MIXED },
    { ngx_null_string, 0 }
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
    ngx_conf_init_uint_value(cluster->policy, NGX_HTTP_PD_LEAST_TIME);
    ngx_conf_init_uint_value(cluster->failover_rate,
                             NGX_HTTP_PD_FAILOVER_RATE);
    ngx_conf_init_msec_value(cluster->stall, NGX_HTTP_PD_STALL);
    ngx_conf_init_msec_value(cluster->backoff, NGX_HTTP_PD_BACKOFF);
    ngx_conf_init_uint_value(cluster->faults, NGX_HTTP_PD_FAULTS);

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
    cluster->policy = NGX_CONF_UNSET_UINT;
    cluster->failover_rate = NGX_CONF_UNSET_UINT;
    cluster->failover_burst = NGX_HTTP_PD_FAILOVER_BURST;
    cluster->stall = NGX_CONF_UNSET_MSEC;
    cluster->faults = NGX_CONF_UNSET_UINT;
    cluster->backoff = NGX_CONF_UNSET_MSEC;

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


/* numbers now; names as well, unless there is somebody to ask again and again */

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


static char *
ngx_http_pd_cluster_worker(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_str_t                  *value;
    ngx_url_t                   u;
    ngx_uint_t                  i;
    ngx_http_pd_worker_conf_t  *worker;

    value = cf->args->elts;

    if (cluster->main->workers++ == NGX_HTTP_PD_WORKERS_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too many \"worker\" lines in all clusters: "
                           "at most %d", NGX_HTTP_PD_WORKERS_MAX);
        return NGX_CONF_ERROR;
    }

    if (ngx_http_pd_cluster_worker_address(cf, cluster, &value[1], &u)
        != NGX_CONF_OK)
    {
        return NGX_CONF_ERROR;
    }

    worker = ngx_array_push(&cluster->workers);
    if (worker == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(worker, sizeof(ngx_http_pd_worker_conf_t));

    worker->address = value[1];
    worker->addrs = u.addrs;
    worker->naddrs = u.naddrs;
    worker->url = u;
    worker->weight = 1;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_pd_cluster_worker_param(cf, worker, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_cluster_worker_address(ngx_conf_t *cf,
    ngx_http_pd_cluster_t *cluster, ngx_str_t *value, ngx_url_t *u)
{
    ngx_uint_t                  i;
    ngx_http_pd_worker_conf_t  *others;

    if (value->len > NGX_HTTP_PD_ADDRESS_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too long address \"%V\" in \"worker\": "
                           "at most %d characters fit",
                           value, NGX_HTTP_PD_ADDRESS_MAX);
        return NGX_CONF_ERROR;
    }

    others = cluster->workers.elts;

    for (i = 0; i < cluster->workers.nelts; i++) {
        if (others[i].address.len == value->len
            && ngx_strncmp(others[i].address.data, value->data, value->len)
               == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate worker \"%V\" in \"pd_cluster %V\"",
                               value, &cluster->name);
            return NGX_CONF_ERROR;
        }
    }

    ngx_memzero(u, sizeof(ngx_url_t));
    u->url = *value;
    u->no_resolve = 1;

    if (ngx_parse_url(cf->pool, u) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%s in \"worker %V\": write HOST:PORT",
                           u->err ? u->err : "invalid address", value);
        return NGX_CONF_ERROR;
    }

    if (u->no_port && u->family != AF_UNIX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no port in \"worker %V\": write %V:9000",
                           value, value);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_cluster_worker_param(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value)
{
    if (ngx_strncmp(value->data, "role=", 5) == 0) {
        return ngx_http_pd_cluster_worker_role(cf, worker, value);
    }

    if (ngx_strncmp(value->data, "weight=", 7) == 0) {
        return ngx_http_pd_cluster_worker_number(cf, value, 7, 1000,
                                                 &worker->weight);
    }

    if (ngx_strncmp(value->data, "max_streams=", 12) == 0) {
        return ngx_http_pd_cluster_worker_number(cf, value, 12, 65535,
                                                 &worker->max_streams);
    }

    if (ngx_strncmp(value->data, "zone=", 5) == 0
        && value->len > 5 && value->len <= 5 + NGX_HTTP_PD_NAME_MAX)
    {
        worker->zone.data = value->data + 5;
        worker->zone.len = value->len - 5;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(value->data, "down") == 0) {
        worker->down = 1;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(value->data, "backup") == 0) {
        worker->backup = 1;
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" in \"worker\": use role=, "
                       "zone=, weight=, max_streams=, down or backup", value);
    return NGX_CONF_ERROR;
}


static char *
ngx_http_pd_cluster_worker_role(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value)
{
    ngx_conf_enum_t  *role;

    for (role = ngx_http_pd_cluster_roles; role->name.len; role++) {
        if (ngx_strcmp(value->data + 5, role->name.data) == 0) {
            worker->role = role->value;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid role \"%s\" in \"worker\": "
                       "use prefill, decode or mixed", value->data + 5);
    return NGX_CONF_ERROR;
}


static char *
ngx_http_pd_cluster_worker_number(ngx_conf_t *cf, ngx_str_t *value,
    size_t name, ngx_int_t max, ngx_uint_t *number)
{
    ngx_int_t  n;

    n = ngx_atoi(value->data + name, value->len - name);

    if (n >= 1 && n <= max) {
        *number = n;
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid \"%V\" in \"worker\": use %*s1 to %*s%i",
                       value, name, value->data, name, value->data, max);
    return NGX_CONF_ERROR;
}


static char *
ngx_http_pd_cluster_register(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_int_t    lease;
    ngx_str_t   *value, s;
    ngx_uint_t   i;

    if (cluster->registration != NGX_CONF_UNSET) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "on") == 0) {
        cluster->registration = 1;

    } else if (ngx_strcmp(value[1].data, "off") == 0) {
        cluster->registration = 0;

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"register\": "
                           "use \"on\" or \"off\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "token=", 6) == 0) {
            cluster->token.data = value[i].data + 6;
            cluster->token.len = value[i].len - 6;

            if (cluster->token.len >= 1 && cluster->token.len <= 256) {
                continue;
            }
        }

        if (ngx_strncmp(value[i].data, "lease=", 6) == 0) {
            s.data = value[i].data + 6;
            s.len = value[i].len - 6;

            lease = ngx_parse_time(&s, 0);

            if (lease != NGX_ERROR && lease >= 1000 && lease <= 3600 * 1000) {
                cluster->lease = lease;
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"register\": "
                           "use token= and 1 to 256 characters, or "
                           "lease=1s to lease=1h", &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_cluster_queue(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ssize_t      bytes;
    ngx_int_t    n, timeout;
    ngx_str_t   *value, s;
    ngx_uint_t   i;

    if (cluster->queue != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);

    if (n < 1 || n > 1000000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid length \"%V\" in \"queue\": "
                           "use 1 to 1000000 requests", &value[1]);
        return NGX_CONF_ERROR;
    }

    cluster->queue = n;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "timeout=", 8) == 0) {
            s.data = value[i].data + 8;
            s.len = value[i].len - 8;

            timeout = ngx_parse_time(&s, 0);

            if (timeout >= 1 && timeout <= 3600 * 1000) {
                cluster->queue_timeout = timeout;
                continue;
            }
        }

        if (ngx_strncmp(value[i].data, "bytes=", 6) == 0) {
            s.data = value[i].data + 6;
            s.len = value[i].len - 6;

            bytes = ngx_parse_size(&s);

            if (bytes != NGX_ERROR && bytes > 0) {
                cluster->queue_bytes = bytes;
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"queue\": "
                           "use timeout=1ms to timeout=1h, or bytes=SIZE",
                           &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_cluster_direct(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    if (cluster->direct_threshold != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        cluster->direct_threshold = 0;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(value[1].data, "auto") == 0) {
        cluster->direct_threshold = NGX_HTTP_PD_DIRECT_AUTO;
        return NGX_CONF_OK;
    }

    n = ngx_atoi(value[1].data, value[1].len);

    if (n < 1 || n > 1000000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"direct_threshold\": "
                           "use \"off\", \"auto\" or 1 to 1000000 tokens",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    cluster->direct_threshold = n;

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_cluster_failover(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    if (cluster->failover_rate != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);

    if (n < 1 || n > 100000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid rate \"%V\" in \"failover_rate\": "
                           "use 1 to 100000 a second", &value[1]);
        return NGX_CONF_ERROR;
    }

    cluster->failover_rate = n;

    if (cf->args->nelts == 3) {

        n = NGX_ERROR;

        if (ngx_strncmp(value[2].data, "burst=", 6) == 0) {
            n = ngx_atoi(value[2].data + 6, value[2].len - 6);
        }

        if (n < 1 || n > 100000) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in "
                               "\"failover_rate\": use burst=1 to "
                               "burst=100000", &value[2]);
            return NGX_CONF_ERROR;
        }

        cluster->failover_burst = n;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_cluster_ejection(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_int_t    n;
    ngx_str_t   *value;
    ngx_uint_t   i;
    ngx_msec_t   time;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "faults=", 7) == 0) {
            n = ngx_atoi(value[i].data + 7, value[i].len - 7);

            if (n >= 1 && n <= 1000 && cluster->faults == NGX_CONF_UNSET_UINT)
            {
                cluster->faults = n;
                continue;
            }

        } else if (ngx_strncmp(value[i].data, "stall=", 6) == 0) {
            time = ngx_http_pd_cluster_time(&value[i], 6);

            if (time && cluster->stall == NGX_CONF_UNSET_MSEC) {
                cluster->stall = time;
                continue;
            }

        } else if (ngx_strncmp(value[i].data, "backoff=", 8) == 0) {
            time = ngx_http_pd_cluster_time(&value[i], 8);

            if (time && cluster->backoff == NGX_CONF_UNSET_MSEC) {
                cluster->backoff = time;
                continue;
            }
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\" in \"ejection\": use "
                           "stall=100ms to stall=1h, backoff= alike, "
                           "faults=1 to faults=1000, each once", &value[i]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* 0: not between 0.1 s and an hour */

static ngx_msec_t
ngx_http_pd_cluster_time(ngx_str_t *value, size_t name)
{
    ngx_int_t  time;
    ngx_str_t  s;

    s.data = value->data + name;
    s.len = value->len - name;

    time = ngx_parse_time(&s, 0);

    return (time == NGX_ERROR || time < 100 || time > 3600 * 1000) ? 0 : time;
}
