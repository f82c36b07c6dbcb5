
/*
 * One gRPC stream, as a client, over an HTTP/2 connection of its own, in
 * nginx's event loop.  Knows frames and gRPC's message framing, and nothing of
 * what the messages say.
 */


#ifndef _NGX_HTTP_PD_H2_H_INCLUDED_
#define _NGX_HTTP_PD_H2_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_event_connect.h>


typedef struct ngx_http_pd_h2_s  ngx_http_pd_h2_t;


typedef struct {

    /* our side's next bytes, prefixes included; less than "size": no more */
    size_t     (*fill)(void *data, u_char *buf, size_t size);

    /* one message of the other side; all but NGX_OK ends the stream */
    ngx_int_t  (*message)(void *data, u_char *message, size_t len);

    /* the stream has ended and its h2 is gone; why is for the log */
    void       (*closed)(void *data, ngx_str_t *why);

    /* nginx leaves: gracefully, or at once */
    void       (*shutdown)(void *data, ngx_uint_t at_once);

} ngx_http_pd_h2_handlers_t;


/*
 * Starts to connect and opens the stream.  NULL: it failed at once, "closed"
 * is not called, *why says why.  "name" is the peer's, for :authority and logs,
 * and lives as long as the stream.
 */
ngx_http_pd_h2_t *ngx_http_pd_h2_open(ngx_addr_t *addr, ngx_str_t *name,
    const char *path, const ngx_http_pd_h2_handlers_t *handlers, void *data,
    ngx_log_t *log, ngx_str_t *why);

/* "fill" has something again; "closed" may be called from here */
void ngx_http_pd_h2_flush(ngx_http_pd_h2_t *h2);

/* ends the stream without a call of "closed"; not from "message" or "fill" */
void ngx_http_pd_h2_close(ngx_http_pd_h2_t *h2);


#endif /* _NGX_HTTP_PD_H2_H_INCLUDED_ */
