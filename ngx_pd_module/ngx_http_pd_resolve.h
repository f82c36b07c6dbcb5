
/*
 * A worker's name, resolved again whenever its addresses are out of date (the
 * "resolver" of the http block).
 */


#ifndef _NGX_HTTP_PD_RESOLVE_H_INCLUDED_
#define _NGX_HTTP_PD_RESOLVE_H_INCLUDED_


#include "ngx_http_pd_attach.h"


/*
 * NGX_OK: the addresses hold; NGX_AGAIN: they are asked for, and "resolved" of
 * the attach is called, maybe before this returns; NGX_ERROR: no memory.
 */
ngx_int_t ngx_http_pd_resolve(ngx_http_pd_attach_t *attach);

/* nobody waits for the answer any more; frees the addresses */
void ngx_http_pd_resolve_end(ngx_http_pd_attach_t *attach);

/* the address that is connected to is among the name's */
ngx_uint_t ngx_http_pd_resolve_holds(ngx_http_pd_attach_t *attach);


#endif /* _NGX_HTTP_PD_RESOLVE_H_INCLUDED_ */
