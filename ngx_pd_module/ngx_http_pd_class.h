
/*
 * Classes of requests, the more urgent one first: see ngx_http_pd_queue.h for
 * what they mean.
 */


#ifndef _NGX_HTTP_PD_CLASS_H_INCLUDED_
#define _NGX_HTTP_PD_CLASS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef enum {
    NGX_HTTP_PD_CLASS_INTERACTIVE = 0,
    NGX_HTTP_PD_CLASS_STANDARD,
    NGX_HTTP_PD_CLASSES
} ngx_http_pd_class_e;


/* the class of that name, or NGX_CONF_UNSET_UINT */
ngx_uint_t ngx_http_pd_class_find(u_char *name, size_t len);

/* its name */
ngx_str_t *ngx_http_pd_class_name(ngx_uint_t class);


#endif /* _NGX_HTTP_PD_CLASS_H_INCLUDED_ */
