
/*
 * The module's configuration, shared by its files.
 */


#ifndef _NGX_HTTP_PD_MODULE_H_INCLUDED_
#define _NGX_HTTP_PD_MODULE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "ngx_http_pd_job.h"
#include "ngx_http_pd_key.h"


typedef struct {
    ngx_array_t             clusters;   /* of ngx_http_pd_cluster_t * */
    ngx_uint_t              workers;    /* lines, in all of them */
    ngx_shm_zone_t         *zone;       /* NULL without pd_zone */
    ngx_resolver_t         *resolver;   /* of workers' names, or NULL */
} ngx_http_pd_main_conf_t;


typedef struct {
    ngx_http_pd_cluster_t  *pass;       /* pd_pass */
    ngx_http_pd_cluster_t  *lease;      /* pd_register */
    ngx_uint_t              health;     /* pd_health */
    ngx_msec_t              timeout;    /* pd_timeout */
    size_t                  stream_buffer;  /* pd_stream_buffer */
    ngx_http_complex_value_t  *tenant;  /* pd_tenant */
    ngx_http_pd_keys_t     *keys;       /* pd_key_file */
    size_t                  failover_buffer;    /* pd_failover_buffer */
    ngx_http_pd_limits_t    limits;     /* pd_limit */
    ngx_flag_t              limit_dry_run;
    ngx_http_complex_value_t  *class;   /* pd_class */
    ngx_msec_t              queue_timeout;  /* pd_queue_timeout, 0: unsaid */
} ngx_http_pd_loc_conf_t;


/* the content handler of a location with pd_pass */
ngx_int_t ngx_http_pd_handler(ngx_http_request_t *r);


extern ngx_module_t  ngx_http_pd_module;


#endif /* _NGX_HTTP_PD_MODULE_H_INCLUDED_ */
