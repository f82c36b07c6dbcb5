
/*
 * A canary: a short answer that nobody has asked for.  It is a job like any
 * other, without a client, and tells whether one worker, to which nobody else
 * is sent, is fit again, or whether this frontend is.
 */


#ifndef _NGX_HTTP_PD_CANARY_H_INCLUDED_
#define _NGX_HTTP_PD_CANARY_H_INCLUDED_


#include "ngx_http_pd_process.h"


/*
 * Sends one to the worker, with a partner if its role needs one; how it went is
 * told to ngx_http_pd_vitals_canary().  NGX_ERROR: none could be sent.
 */
ngx_int_t ngx_http_pd_canary_send(ngx_http_pd_process_t *process,
    ngx_uint_t worker);

/*
 * Sends one through the cluster, by the usual choice, for each of its models in
 * turn; how it went is told to ngx_http_pd_ready_canary().
 */
ngx_int_t ngx_http_pd_canary_pair(ngx_http_pd_process_t *process,
    ngx_http_pd_cluster_t *cluster, ngx_uint_t turn);


#endif /* _NGX_HTTP_PD_CANARY_H_INCLUDED_ */
