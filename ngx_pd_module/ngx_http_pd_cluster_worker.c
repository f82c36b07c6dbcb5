
/*
 * The "worker" line of a cluster.
 *
 *     worker ADDRESS [role=] [zone=] [weight=] [max_streams=] [down] [backup];
 *
 * The address is the worker's name.  A host name is left for the resolver if
 * there is one, see ngx_http_pd_resolve.c.  What is said here is asserted
 * only: the worker's Hello is the truth about role and model.
 */


#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_cluster_directives.h"


static char *ngx_http_pd_worker_address(ngx_conf_t *cf,
    ngx_http_pd_cluster_t *cluster, ngx_str_t *value, ngx_url_t *u);
static char *ngx_http_pd_worker_param(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value);
static char *ngx_http_pd_worker_role(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value);
static char *ngx_http_pd_worker_number(ngx_conf_t *cf,
    ngx_str_t *value, size_t name, ngx_int_t max, ngx_uint_t *number);


static ngx_conf_enum_t  ngx_http_pd_worker_roles[] = {
    { ngx_string("prefill"), PD__V1__ROLE__ROLE_PREFILL },
    { ngx_string("decode"), PD__V1__ROLE__ROLE_DECODE },
    { ngx_string("mixed"), PD__V1__ROLE__ROLE_MIXED },
    { ngx_null_string, 0 }
};


char *
ngx_http_pd_worker_directive(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
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

    if (ngx_http_pd_worker_address(cf, cluster, &value[1], &u)
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
        if (ngx_http_pd_worker_param(cf, worker, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_pd_worker_address(ngx_conf_t *cf,
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
ngx_http_pd_worker_param(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value)
{
    if (ngx_strncmp(value->data, "role=", 5) == 0) {
        return ngx_http_pd_worker_role(cf, worker, value);
    }

    if (ngx_strncmp(value->data, "weight=", 7) == 0) {
        return ngx_http_pd_worker_number(cf, value, 7, 1000,
                                                 &worker->weight);
    }

    if (ngx_strncmp(value->data, "max_streams=", 12) == 0) {
        return ngx_http_pd_worker_number(cf, value, 12, 65535,
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
ngx_http_pd_worker_role(ngx_conf_t *cf,
    ngx_http_pd_worker_conf_t *worker, ngx_str_t *value)
{
    ngx_conf_enum_t  *role;

    for (role = ngx_http_pd_worker_roles; role->name.len; role++) {
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
ngx_http_pd_worker_number(ngx_conf_t *cf, ngx_str_t *value,
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
