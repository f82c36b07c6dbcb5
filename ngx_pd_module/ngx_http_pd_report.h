
/*
 * Load reports: what a worker says of its work, put into the shared zone.
 *
 * What a report means for what was promised to the worker is the affair of
 * ngx_http_pd_load.h.
 */


#ifndef _NGX_HTTP_PD_REPORT_H_INCLUDED_
#define _NGX_HTTP_PD_REPORT_H_INCLUDED_


#include "ngx_http_pd_attach.h"


/* a report that came with a step, under the zone's lock */
void ngx_http_pd_report_step(ngx_http_pd_attach_t *attach,
    ngx_http_pd_step_t *step);

/* one that came alone */
void ngx_http_pd_report_alone(ngx_http_pd_attach_t *attach,
    Pd__V1__LoadReport *load);

/* what it has heard of the other frontends */
void ngx_http_pd_report_frontends(ngx_http_pd_attach_t *attach,
    Pd__V1__Frontends *frontends);

/* the worker takes nothing new */
void ngx_http_pd_report_drain(ngx_http_pd_attach_t *attach);


#endif /* _NGX_HTTP_PD_REPORT_H_INCLUDED_ */
