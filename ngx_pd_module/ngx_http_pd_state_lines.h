
/*
 * What a state file says:
 *
 *     ngx_pd 1
 *     master 1764441230123456
 *     lease 10.0.0.11:9000 1764441234 chat
 *     ejected 10.0.0.12:9000 1764441250 chat
 *     ended 148 2 1764441225 chat
 *     out 3 1764441260 chat
 *     seed 5f0c3a9b71d2e468
 *     account 81c2d4e07f3a9b65 600 17 200000 5321 1764441230
 *     end
 *
 * First, when the configuration was loaded whose processes have written it.
 * One line for each lease: the worker's address, the second of its end, the
 * cluster.  One alike for each worker that is ejected.  One for each part of a
 * cluster's window in which requests have ended (ngx_http_pd_verdict.h): how
 * many finished, how many failed, the second in which it began.  One for each
 * cluster that this frontend is out of (ngx_http_pd_ready.h): after so many
 * rounds, until that second.  One for each account that owes something, up to
 * 4096: its key, a hash with the seed above; its limit of requests, what it
 * owes, the same for tokens; the second in which it did.  A file without its
 * last line was cut and is not believed.
 */


#ifndef _NGX_HTTP_PD_STATE_LINES_H_INCLUDED_
#define _NGX_HTTP_PD_STATE_LINES_H_INCLUDED_


#include "ngx_http_pd_zone.h"


#define NGX_HTTP_PD_STATE_HEAD    "ngx_pd 1\n"
#define NGX_HTTP_PD_STATE_TAIL    "end\n"
#define NGX_HTTP_PD_STATE_LINE                                               \
    (sizeof("ejected  \n") + NGX_HTTP_PD_ADDRESS_MAX + NGX_TIME_T_LEN + 1      \
     + NGX_HTTP_PD_NAME_MAX)
#define NGX_HTTP_PD_STATE_MASTER  (sizeof("master \n") + NGX_INT64_LEN)
#define NGX_HTTP_PD_STATE_ENDED                                               \
    (sizeof("ended    \n") + 2 * NGX_INT32_LEN + NGX_TIME_T_LEN + 1          \
     + NGX_HTTP_PD_NAME_MAX)
#define NGX_HTTP_PD_STATE_SEED    (sizeof("seed \n") + 16)
#define NGX_HTTP_PD_STATE_ACCOUNT                                            \
    (sizeof("account       \n") + 16 + 4 * NGX_INT64_LEN + NGX_TIME_T_LEN)
#define NGX_HTTP_PD_STATE_ACCOUNTS    4096
#define NGX_HTTP_PD_STATE_MAX                                                \
    (sizeof(NGX_HTTP_PD_STATE_HEAD NGX_HTTP_PD_STATE_TAIL)                   \
     + NGX_HTTP_PD_STATE_MASTER                                              \
     + NGX_HTTP_PD_ZONE_WORKERS * 2 * NGX_HTTP_PD_STATE_LINE                 \
     + NGX_HTTP_PD_ZONE_CLUSTERS * (NGX_HTTP_PD_PARTS + 1)                   \
       * NGX_HTTP_PD_STATE_ENDED                                             \
     + NGX_HTTP_PD_STATE_SEED                                                \
     + NGX_HTTP_PD_STATE_ACCOUNTS * NGX_HTTP_PD_STATE_ACCOUNT)

/* the head, and the master's line */
#define NGX_HTTP_PD_STATE_BEGINNING                                          \
    (sizeof(NGX_HTTP_PD_STATE_HEAD) + NGX_HTTP_PD_STATE_MASTER)


/* whether that is a state file's beginning */
ngx_uint_t ngx_http_pd_state_known(u_char *p, u_char *last);

/* which master has written it, of its beginning; 0: it does not say */
uint64_t ngx_http_pd_state_master(u_char *p, u_char *last);

/* a known file, into a fresh zone; NGX_ERROR: it is damaged */
ngx_int_t ngx_http_pd_state_apply(ngx_http_pd_main_conf_t *pmcf, u_char *p,
    u_char *last);

/*
 * The whole file, into NGX_HTTP_PD_STATE_MAX bytes; its end.  Under the zone's
 * lock.
 */
u_char *ngx_http_pd_state_write(ngx_http_pd_zone_t *zone, u_char *p);


#endif /* _NGX_HTTP_PD_STATE_LINES_H_INCLUDED_ */
