
/*
 * The module itself: its directives, its configuration, and what happens to it
 * when a configuration is loaded and when a process starts and ends.
 */


#include "ngx_http_pd_api.h"
#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_health.h"
#include "ngx_http_pd_limit.h"
#include "ngx_http_pd_metrics.h"
#include "ngx_http_pd_process.h"
#include "ngx_http_pd_register.h"
#include "ngx_http_pd_state.h"
#include "ngx_http_pd_tenant.h"
#include "ngx_http_pd_zone.h"


static void *ngx_http_pd_create_main_conf(ngx_conf_t *cf);
static char *ngx_http_pd_init_main_conf(ngx_conf_t *cf, void *conf);
static void *ngx_http_pd_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_pd_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static ngx_int_t ngx_http_pd_init_module(ngx_cycle_t *cycle);
static char *ngx_http_pd_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


static ngx_conf_enum_t  ngx_http_pd_health_kinds[] = {
    { ngx_string("live"), NGX_HTTP_PD_HEALTH_LIVE },
    { ngx_string("ready"), NGX_HTTP_PD_HEALTH_READY },
    { ngx_null_string, 0 }
};


static ngx_command_t  ngx_http_pd_commands[] = {

    { ngx_string("pd_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE12,
      ngx_http_pd_zone_directive,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("pd_cluster"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_http_pd_cluster_block,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("pd_pass"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_CONF_TAKE1,
      ngx_http_pd_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("pd_register"),
      NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_pd_register,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("pd_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, timeout),
      NULL },

    { ngx_string("pd_stream_buffer"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, stream_buffer),
      NULL },

    { ngx_string("pd_tenant"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, tenant),
      NULL },

    { ngx_string("pd_key_file"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_pd_tenant_key_file,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("pd_failover_buffer"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, failover_buffer),
      NULL },

    { ngx_string("pd_limit"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_pd_limit,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("pd_limit_dry_run"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, limit_dry_run),
      NULL },

    { ngx_string("pd_class"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, class),
      NULL },

    { ngx_string("pd_queue_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, queue_timeout),
      NULL },

    { ngx_string("pd_health"),
      NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_pd_health,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_pd_loc_conf_t, health),
      &ngx_http_pd_health_kinds },

    { ngx_string("pd_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_pd_metrics,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_pd_module_ctx = {
    ngx_http_pd_add_variables,             /* preconfiguration */
    ngx_http_pd_filter_init,               /* postconfiguration */

    ngx_http_pd_create_main_conf,          /* create main configuration */
    ngx_http_pd_init_main_conf,            /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_pd_create_loc_conf,           /* create location configuration */
    ngx_http_pd_merge_loc_conf             /* merge location configuration */
};


ngx_module_t  ngx_http_pd_module = {
    NGX_MODULE_V1,
    &ngx_http_pd_module_ctx,               /* module context */
    ngx_http_pd_commands,                  /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_pd_init_module,               /* init module */
    ngx_http_pd_process_init,              /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_pd_process_exit,              /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static void *
ngx_http_pd_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_pd_main_conf_t  *pmcf;

    pmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_pd_main_conf_t));
    if (pmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&pmcf->clusters, cf->pool, 4,
                       sizeof(ngx_http_pd_cluster_t *))
        != NGX_OK)
    {
        return NULL;
    }

    return pmcf;
}


static char *
ngx_http_pd_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_pd_main_conf_t  *pmcf = conf;

    return ngx_http_pd_cluster_check(cf, pmcf);
}


static void *
ngx_http_pd_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_pd_loc_conf_t));
    if (plcf == NULL) {
        return NULL;
    }

    plcf->health = NGX_CONF_UNSET_UINT;
    plcf->timeout = NGX_CONF_UNSET_MSEC;
    plcf->stream_buffer = NGX_CONF_UNSET_SIZE;
    plcf->tenant = NGX_CONF_UNSET_PTR;
    plcf->keys = NGX_CONF_UNSET_PTR;
    plcf->failover_buffer = NGX_CONF_UNSET_SIZE;
    ngx_http_pd_limits_init(&plcf->limits);
    plcf->limit_dry_run = NGX_CONF_UNSET;
    plcf->class = NGX_CONF_UNSET_PTR;
    plcf->queue_timeout = NGX_CONF_UNSET_MSEC;

    return plcf;
}


static char *
ngx_http_pd_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_pd_loc_conf_t  *prev = parent;
    ngx_http_pd_loc_conf_t  *conf = child;

    ngx_http_core_loc_conf_t     *clcf;

    static ngx_http_pd_limits_t   none;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* "if" and "limit_except" go on with the handler of what they are in */

    if (clcf->noname && conf->pass == NULL) {
        conf->pass = prev->pass;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && conf->pass) {
        clcf->handler = ngx_http_pd_handler;
    }

    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 600000);
    ngx_conf_merge_size_value(conf->stream_buffer, prev->stream_buffer,
                              256 * 1024);
    ngx_conf_merge_ptr_value(conf->tenant, prev->tenant, NULL);
    ngx_conf_merge_ptr_value(conf->keys, prev->keys, NULL);
    ngx_conf_merge_size_value(conf->failover_buffer, prev->failover_buffer,
                              1024 * 1024);
    ngx_http_pd_limits_merge(&conf->limits, &prev->limits);
    ngx_http_pd_limits_merge(&conf->limits, &none);
    ngx_conf_merge_value(conf->limit_dry_run, prev->limit_dry_run, 0);
    ngx_conf_merge_ptr_value(conf->class, prev->class, NULL);
    ngx_conf_merge_msec_value(conf->queue_timeout, prev->queue_timeout, 0);

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_init_module(ngx_cycle_t *cycle)
{
    ngx_http_pd_zone_t       *zone;
    ngx_http_pd_main_conf_t  *pmcf;

    pmcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_pd_module);

    if (pmcf == NULL || pmcf->zone == NULL) {
        return NGX_OK;
    }

    ngx_http_pd_zone_configure(pmcf, cycle->log);

    zone = pmcf->zone->data;

    if (zone->state.len && !ngx_test_config) {
        ngx_http_pd_state_load(pmcf, cycle);
    }

    return NGX_OK;
}


static char *
ngx_http_pd_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_loc_conf_t  *plcf = conf;

    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    if (plcf->pass) {
        return "is duplicate";
    }

    value = cf->args->elts;

    plcf->pass = ngx_http_pd_cluster_mention(cf, &value[1]);
    if (plcf->pass == NULL) {
        return NGX_CONF_ERROR;
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_pd_handler;

    return NGX_CONF_OK;
}
