
/*
 * The OpenAI request: from a body that arrives in pieces to packed Submits.
 *
 *     body pieces --> json --> openai --> request  (who, what, sampling)
 *                                    `--> prompts  (wire format, in ropes)
 *
 * A prompt is written in the wire's format as it is read: its text is copied
 * once, out of the piece into the rope that the dispatcher will send.  What
 * surrounds it is small, and packed when the whole request is known.
 *
 * Every field of the API is in ngx_http_pd_openai_fields.c: honoured, checked
 * and ignored as harmless, or refused by name.
 */


#ifndef _NGX_HTTP_PD_OPENAI_H_INCLUDED_
#define _NGX_HTTP_PD_OPENAI_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "proto/pd.pb-c.h"

#include "ngx_http_pd_error.h"
#include "ngx_http_pd_rope.h"


#define NGX_HTTP_PD_OPENAI_CHAT         1
#define NGX_HTTP_PD_OPENAI_COMPLETIONS  2

#define NGX_HTTP_PD_MAX_PROMPTS         128
#define NGX_HTTP_PD_MAX_CHOICES         128
#define NGX_HTTP_PD_MAX_MESSAGES        4096
#define NGX_HTTP_PD_MAX_STOPS           16
#define NGX_HTTP_PD_MAX_STOP_BYTES      256
#define NGX_HTTP_PD_MAX_STOP_TOKENS     64
#define NGX_HTTP_PD_MAX_BIASES          1024
#define NGX_HTTP_PD_MAX_LOGPROBS        20
#define NGX_HTTP_PD_MAX_MODEL           256


typedef struct ngx_http_pd_parse_s  ngx_http_pd_parse_t;


typedef struct {
    ngx_uint_t            surface;     /* NGX_HTTP_PD_OPENAI_... */
    ngx_pool_t           *pool;

    ngx_str_t             model;
    ngx_array_t           prompts;     /* of ngx_http_pd_rope_t */
    Pd__V1__Sampling     *sampling;    /* with the parser; arrays in pool */
    ngx_uint_t            n;           /* choices of each prompt */

    unsigned              seeded:1;
    unsigned              stream:1;
    unsigned              include_usage:1;

    ngx_http_pd_error_t  *error;       /* filled before NGX_ABORT */
} ngx_http_pd_openai_t;


/* what a Submit says besides the request itself */

typedef struct {
    ngx_str_t             id;
    ngx_str_t             tenant;
    ngx_str_t             traceparent;
    ngx_msec_t            deadline;
    ngx_uint_t            urgent;      /* of the interactive class */
} ngx_http_pd_submit_t;


/*
 * The parser lives from the first byte of a body until all its Submits are
 * packed; it is not in the pool, so that a request that waits for its answer
 * does not keep it.  "size" is the body's, 0 if it is not known; "error" is
 * where it says why it refuses.  NULL: no memory.
 */
ngx_http_pd_parse_t *ngx_http_pd_openai_create(ngx_http_pd_openai_t *request,
    ngx_http_pd_error_t *error, ngx_uint_t surface, off_t size,
    ngx_pool_t *pool, ngx_log_t *log);
void ngx_http_pd_openai_destroy(ngx_http_pd_parse_t *parse);

/* NGX_OK, or NGX_ABORT: request->error says why */
ngx_int_t ngx_http_pd_openai_feed(ngx_http_pd_parse_t *parse, u_char *pos,
    u_char *last);
ngx_int_t ngx_http_pd_openai_end(ngx_http_pd_parse_t *parse);

/* the prompt of a choice: those of one prompt are neighbours */
#define ngx_http_pd_openai_prompt(request, choice)                            \
    (&((ngx_http_pd_rope_t *) (request)->prompts.elts)[(choice)               \
                                                       / (request)->n])

/*
 * Packs the Submit of a choice, see ngx_http_pd_job_t.  "submit" and "options"
 * share their first buffer, and choices of one prompt all that is behind it.
 */
ngx_int_t ngx_http_pd_openai_submit(ngx_http_pd_openai_t *request,
    ngx_uint_t choice, ngx_http_pd_submit_t *about, ngx_chain_t **submit,
    ngx_chain_t **options);

/* 64 bits that no other process draws; not for secrets */
uint64_t ngx_http_pd_random(void);


#endif /* _NGX_HTTP_PD_OPENAI_H_INCLUDED_ */
