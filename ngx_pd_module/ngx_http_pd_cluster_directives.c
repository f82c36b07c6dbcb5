
/*
 * The directives of a cluster that set its own numbers: whom it takes in, how
 * many may wait, when a prompt goes straight to decode or begins with what was
 * borrowed, how fast work is sent anew, when a worker is out.  Each is bounded here, once; defaults are filled
 * in at the end of the block, in ngx_http_pd_cluster.c.
 */


#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_cluster_directives.h"
#include "ngx_http_pd_tally.h"


#define NGX_HTTP_PD_BORROW_LONGEST    60000     /* ms: workers' own bound */


static char *ngx_http_pd_cluster_threshold(ngx_conf_t *cf,
    ngx_uint_t automatic, ngx_uint_t *tokens);
static ngx_int_t ngx_http_pd_cluster_ejection_param(
    ngx_http_pd_cluster_t *cluster, ngx_str_t *value);


char *
ngx_http_pd_cluster_register(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;
    ngx_msec_t   lease;

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
            lease = ngx_http_pd_cluster_time(&value[i], 6, 1000);

            if (lease) {
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


char *
ngx_http_pd_cluster_queue(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ssize_t      bytes;
    ngx_int_t    n;
    ngx_str_t   *value, s;
    ngx_uint_t   i;
    ngx_msec_t   timeout;

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
            timeout = ngx_http_pd_cluster_time(&value[i], 8, 1);

            if (timeout) {
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


char *
ngx_http_pd_cluster_direct(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    return ngx_http_pd_cluster_threshold(cf, NGX_HTTP_PD_DIRECT_AUTO,
                                         &cluster->direct_threshold);
}


char *
ngx_http_pd_cluster_borrow(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    char       *rv;
    ngx_str_t  *value;

    rv = ngx_http_pd_cluster_threshold(cf, NGX_HTTP_PD_BORROW_AUTO,
                                       &cluster->borrow_threshold);

    if (rv != NGX_CONF_OK || cf->args->nelts == 2) {
        return rv;
    }

    value = cf->args->elts;

    if (ngx_strncmp(value[2].data, "timeout=", 8) == 0) {
        cluster->borrow_timeout = ngx_http_pd_cluster_time(&value[2], 8, 1);

        if (cluster->borrow_timeout > 0
            && cluster->borrow_timeout <= NGX_HTTP_PD_BORROW_LONGEST)
        {
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\" in \"borrow_threshold\": "
                       "use timeout=1ms to timeout=60s", &value[2]);

    return NGX_CONF_ERROR;
}


/* off, auto or a number of tokens */

static char *
ngx_http_pd_cluster_threshold(ngx_conf_t *cf, ngx_uint_t automatic,
    ngx_uint_t *tokens)
{
    ngx_int_t   n;
    ngx_str_t  *value;

    if (*tokens != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        *tokens = 0;
        return NGX_CONF_OK;
    }

    if (ngx_strcmp(value[1].data, "auto") == 0) {
        *tokens = automatic;
        return NGX_CONF_OK;
    }

    n = ngx_atoi(value[1].data, value[1].len);

    if (n < 1 || n > 1000000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\": use \"off\", "
                           "\"auto\" or 1 to 1000000 tokens", &value[1],
                           &value[0]);
        return NGX_CONF_ERROR;
    }

    *tokens = n;

    return NGX_CONF_OK;
}


char *
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


char *
ngx_http_pd_cluster_ejection(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_cluster_t  *cluster = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_http_pd_cluster_ejection_param(cluster, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"ejection\": use "
                               "stall=100ms to stall=1h, backoff= alike, "
                               "faults=1 to faults=1000, excess=1%% to "
                               "excess=100%%, answers=10 to answers=%d, "
                               "each once", &value[i],
                               NGX_HTTP_PD_TALLY_FULL / 2);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_cluster_ejection_param(ngx_http_pd_cluster_t *cluster,
    ngx_str_t *value)
{
    ngx_str_t  percent;

    if (ngx_strncmp(value->data, "faults=", 7) == 0) {
        return ngx_http_pd_cluster_number(value, 7, 1, 1000, &cluster->faults);
    }

    if (ngx_strncmp(value->data, "answers=", 8) == 0) {
        return ngx_http_pd_cluster_number(value, 8, 10,
                                          NGX_HTTP_PD_TALLY_FULL / 2,
                                          &cluster->answers);
    }

    if (ngx_strncmp(value->data, "excess=", 7) == 0
        && value->data[value->len - 1] == '%')
    {
        percent.data = value->data;
        percent.len = value->len - 1;

        return ngx_http_pd_cluster_number(&percent, 7, 1, 100,
                                          &cluster->excess);
    }

    if (ngx_strncmp(value->data, "stall=", 6) == 0) {
        return ngx_http_pd_cluster_span(value, 6, 100, &cluster->stall);
    }

    if (ngx_strncmp(value->data, "backoff=", 8) == 0) {
        return ngx_http_pd_cluster_span(value, 8, 100, &cluster->backoff);
    }

    return NGX_ERROR;
}


ngx_int_t
ngx_http_pd_cluster_number(ngx_str_t *value, size_t name, ngx_int_t min,
    ngx_int_t max, ngx_uint_t *number)
{
    ngx_int_t  n;

    n = ngx_atoi(value->data + name, value->len - name);

    if (n < min || n > max || *number != NGX_CONF_UNSET_UINT) {
        return NGX_ERROR;
    }

    *number = n;

    return NGX_OK;
}


ngx_int_t
ngx_http_pd_cluster_span(ngx_str_t *value, size_t name, ngx_int_t min,
    ngx_msec_t *time)
{
    ngx_msec_t  n;

    n = ngx_http_pd_cluster_time(value, name, min);

    if (n == 0 || *time != NGX_CONF_UNSET_MSEC) {
        return NGX_ERROR;
    }

    *time = n;

    return NGX_OK;
}


ngx_msec_t
ngx_http_pd_cluster_time(ngx_str_t *value, size_t name, ngx_int_t min)
{
    ngx_int_t  time;
    ngx_str_t  s;

    s.data = value->data + name;
    s.len = value->len - name;

    time = ngx_parse_time(&s, 0);

    return (time < min || time > 3600 * 1000) ? 0 : time;
}
