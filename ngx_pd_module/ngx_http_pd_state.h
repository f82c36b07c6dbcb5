
/*
 * pd_zone ... state=PATH: what outlives the shared memory, in a file: the
 * leases of registered workers, so that a new master (a restart, a binary
 * upgrade) knows them before they renew, and the debts of tenants, so that it
 * does not forgive them.
 */


#ifndef _NGX_HTTP_PD_STATE_H_INCLUDED_
#define _NGX_HTTP_PD_STATE_H_INCLUDED_


#include "ngx_http_pd_zone.h"


/* in the master: makes the file, and fills a fresh zone from it */
void ngx_http_pd_state_load(ngx_http_pd_main_conf_t *pmcf, ngx_cycle_t *cycle);

/* in a process: writes it if something of it has changed */
void ngx_http_pd_state_save(ngx_http_pd_zone_t *zone, ngx_log_t *log);


#endif /* _NGX_HTTP_PD_STATE_H_INCLUDED_ */
