
/*
 * A canary: a short answer that nobody has asked for, through one worker that
 * nobody else is sent to.  It is a job like any other, without a client.
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


#endif /* _NGX_HTTP_PD_CANARY_H_INCLUDED_ */
