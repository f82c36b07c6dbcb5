
/*
 * The pd_cluster block: which workers a cluster has and how it treats
 * requests.  Configuration only; what is known about a worker at run time
 * lives in the shared zone.
 */


#ifndef _NGX_HTTP_PD_CLUSTER_H_INCLUDED_
#define _NGX_HTTP_PD_CLUSTER_H_INCLUDED_


#include "ngx_http_pd_module.h"


#define NGX_HTTP_PD_NAME_MAX       64      /* of a cluster, a zone label */
#define NGX_HTTP_PD_ADDRESS_MAX    255     /* of a worker, as written */
#define NGX_HTTP_PD_CLUSTERS_MAX   32      /* in one configuration */
#define NGX_HTTP_PD_WORKERS_MAX    128
#define NGX_HTTP_PD_REVISIONS      8       /* lines in a cluster */

/* one "worker" line */

typedef struct {
    ngx_str_t                  address;    /* as written: the worker's name */
    ngx_addr_t                *addrs;      /* NULL: resolved at run time */
    ngx_uint_t                 naddrs;
    ngx_url_t                  url;        /* host and port */
    Pd__V1__Role               role;       /* UNKNOWN: the worker says */
    ngx_str_t                  zone;
    ngx_uint_t                 weight;
    ngx_uint_t                 max_streams;    /* 0: as the worker says */
    unsigned                   down:1;
    unsigned                   backup:1;
} ngx_http_pd_worker_conf_t;


/* a "revision" line */

typedef struct {
    ngx_str_t                  label;
    ngx_uint_t                 weight;
} ngx_http_pd_revision_conf_t;


struct ngx_http_pd_cluster_s {
    ngx_str_t                  name;
    ngx_uint_t                 shared;     /* place in the shared zone */
    uint64_t                   shared_id;
    ngx_http_pd_main_conf_t   *main;

    u_char                    *file;       /* of the first mention */
    ngx_uint_t                 line;
    u_char                    *register_file;      /* of pd_register */
    ngx_uint_t                 register_line;
    ngx_uint_t                 defined;    /* unsigned  defined:1; */

    ngx_array_t                workers;    /* ngx_http_pd_worker_conf_t */
    ngx_flag_t                 registration;
    ngx_str_t                  token;
    ngx_msec_t                 lease;
    ngx_uint_t                 queue;      /* requests of a class */
    size_t                     queue_bytes;    /* of their prompts */
    ngx_msec_t                 queue_timeout;
    ngx_uint_t                 direct_threshold;   /* tokens, 0: off */
    ngx_uint_t                 borrow_threshold;   /* likewise */
    ngx_msec_t                 borrow_timeout;
    ngx_uint_t                 failover_rate;      /* a second */
    ngx_uint_t                 failover_burst;
    ngx_msec_t                 stall;      /* of work without a step */
    ngx_uint_t                 faults;     /* in a row, until ejected */
    ngx_uint_t                 excess;     /* % more failures than others */
    ngx_uint_t                 answers;    /* before these are compared */
    ngx_msec_t                 backoff;    /* of the first ejection */
    ngx_uint_t                 ready_ratio;    /* %, 0: not judged by it */
    ngx_msec_t                 ready_window;
    ngx_uint_t                 ready_requests; /* before it is judged */
    ngx_msec_t                 ready_out;      /* at least, at first */
    ngx_uint_t                 ready_canaries; /* that prove it well */
    ngx_uint_t                 nrevisions;
    ngx_http_pd_revision_conf_t  revisions[NGX_HTTP_PD_REVISIONS];
    ngx_uint_t                 policy;
    ngx_http_complex_value_t  *hash;       /* of "policy hash", or NULL */
    ngx_http_complex_value_t  *sticky;     /* or NULL */
    void                      *http;       /* context around the block */
};


#define NGX_HTTP_PD_DIRECT_AUTO    0xffffffff      /* direct_threshold auto */
#define NGX_HTTP_PD_BORROW_AUTO    0xffffffff      /* borrow_threshold auto */


/* pd_cluster NAME { ... } */
char *ngx_http_pd_cluster_block(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the cluster of that name, to be defined later if it is not yet */
ngx_http_pd_cluster_t *ngx_http_pd_cluster_mention(ngx_conf_t *cf,
    ngx_str_t *name);

/* every mentioned cluster is defined and can work */
char *ngx_http_pd_cluster_check(ngx_conf_t *cf,
    ngx_http_pd_main_conf_t *pmcf);


extern ngx_module_t  ngx_http_pd_cluster_module;


#endif /* _NGX_HTTP_PD_CLUSTER_H_INCLUDED_ */
