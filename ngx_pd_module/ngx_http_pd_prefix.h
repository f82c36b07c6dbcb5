
/*
 * Prefixes of a prompt: points at which two prompts that begin alike are found
 * to do so.
 *
 *     system ------| user ------| assistant -----| user ---|
 *     .   .   .    o   .   .    o    .    .      o         o
 *
 * A point is a hash of everything before it, and lies at the end of a message
 * (o; the last few are kept) or after 256, 384, 512, 768 ... bytes (.).  Only
 * what the model reads is hashed, so the answer to a prompt, which is hashed as
 * it streams, ends at the point that the next turn of the chat will have there.
 *
 * Hashes are seeded, and a wrong guess costs a detour, never a wrong answer.
 */


#ifndef _NGX_HTTP_PD_PREFIX_H_INCLUDED_
#define _NGX_HTTP_PD_PREFIX_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_PD_PREFIX_ENDS     12     /* of messages, the last ones */
#define NGX_HTTP_PD_PREFIX_SIZES    32     /* 256 bytes to 16 MB */
#define NGX_HTTP_PD_PREFIX_POINTS                                             \
    (NGX_HTTP_PD_PREFIX_ENDS + NGX_HTTP_PD_PREFIX_SIZES)


typedef struct {
    uint64_t                    hash;
    size_t                      bytes;     /* of text before it */
} ngx_http_pd_point_t;


/* everything up to somewhere; what follows can be hashed behind it */

typedef struct {
    uint64_t                    hash;
    uint64_t                    word;      /* bytes not hashed yet */
    size_t                      bytes;     /* of text so far */
} ngx_http_pd_tail_t;


typedef struct {
    ngx_http_pd_tail_t          tail;
    size_t                      next;      /* bytes: the next point by size */
    ngx_uint_t                  chat;      /* unsigned  chat:1; */
    ngx_uint_t                  ends;      /* messages, all of them */
    ngx_uint_t                  sizes;
    ngx_http_pd_point_t         end[NGX_HTTP_PD_PREFIX_ENDS];
    ngx_http_pd_point_t         size[NGX_HTTP_PD_PREFIX_SIZES];
} ngx_http_pd_prefix_t;


/*
 * The points of a prompt as it lies in a rope: the field chat, text or tokens
 * of a Submit, written by ngx_http_pd_openai_prompt.c.
 */
void ngx_http_pd_prefix_scan(ngx_http_pd_prefix_t *prefix, ngx_chain_t *prompt,
    uint64_t seed);

/* the answer of a chat, behind its prompt: begins, goes on, ends at a point */
void ngx_http_pd_tail_answer(ngx_http_pd_tail_t *tail);
void ngx_http_pd_tail_text(ngx_http_pd_tail_t *tail, u_char *p, size_t len);
void ngx_http_pd_tail_end(ngx_http_pd_tail_t *tail,
    ngx_http_pd_point_t *point);


#endif /* _NGX_HTTP_PD_PREFIX_H_INCLUDED_ */
