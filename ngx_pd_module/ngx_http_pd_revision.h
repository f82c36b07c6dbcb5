
/*
 * Groups of workers by their --revision: pairs, and answers that go on
 * elsewhere, stay inside of one.  With "revision" lines in pd_cluster, each new
 * request is given a group by their weights, as long as it can serve; so a
 * release is tried with a part of the requests.
 *
 * All functions are called under the zone's lock.
 */


#ifndef _NGX_HTTP_PD_REVISION_H_INCLUDED_
#define _NGX_HTTP_PD_REVISION_H_INCLUDED_


#include "ngx_http_pd_zone.h"


/* "revision LABEL weight=N" in pd_cluster */
char *ngx_http_pd_revision_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the configuration's groups take their place in the zone */
void ngx_http_pd_revision_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_cluster_t *cluster);

/* a label as it is kept; none is 0 */
uint64_t ngx_http_pd_revision_hash(ngx_http_pd_zone_t *zone,
    ngx_str_t *label);

/* a new request: which group, if any */
void ngx_http_pd_revision_draw(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);

/* an answer has begun: it stays in the group of its workers */
void ngx_http_pd_revision_pin(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record);


#define ngx_http_pd_revision_admits(record, worker)                          \
    (!(record)->grouped || (record)->revision == (worker)->revision)


#endif /* _NGX_HTTP_PD_REVISION_H_INCLUDED_ */
