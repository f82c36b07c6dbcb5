
/*
 * How many bytes of prompt make a token: learned for each model, and for each
 * tenant with it, since prose, code, Chinese and base64 differ by several
 * times.
 *
 * A table of 256 places in the shared zone.  Each pair has one place, by its
 * hash; where two want the same one, the later takes it and learns anew.
 * Nothing is known of a tenant until its first prompt was counted: then the
 * model's own figure serves, and before that 4.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_RATIO_H_INCLUDED_
#define _NGX_HTTP_PD_RATIO_H_INCLUDED_


#include "ngx_http_pd_zone.h"


/* tokens to expect of so many bytes; "tenant" 0: of nobody */
size_t ngx_http_pd_ratio_tokens(ngx_http_pd_zone_t *zone, uint64_t model,
    uint64_t tenant, size_t bytes);

/* a worker has counted */
void ngx_http_pd_ratio_learn(ngx_http_pd_zone_t *zone, uint64_t model,
    uint64_t tenant, size_t bytes, size_t tokens);


#endif /* _NGX_HTTP_PD_RATIO_H_INCLUDED_ */
