
/*
 * What a tenant may have of a model: numbers only, as a configuration states
 * them.  What it has had is in ngx_http_pd_account.h.
 */


#ifndef _NGX_HTTP_PD_LIMITS_H_INCLUDED_
#define _NGX_HTTP_PD_LIMITS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_HTTP_PD_LIMIT_MAX    1000000000


/* each 1 to NGX_HTTP_PD_LIMIT_MAX; 0: no limit; NGX_CONF_UNSET_UINT: unsaid */

typedef struct {
    ngx_uint_t    requests;      /* that begin, a minute */
    ngx_uint_t    tokens;        /* of prompts and answers, a minute */
    ngx_uint_t    concurrent;    /* requests that wait or run */
    ngx_uint_t    prompt;        /* tokens of one prompt */
    ngx_uint_t    output;        /* tokens of one answer */
} ngx_http_pd_limits_t;


#define NGX_HTTP_PD_LIMITS                                                   \
    "requests=, tokens=, concurrent=, max_prompt= or max_output="


/* all unsaid */
void ngx_http_pd_limits_init(ngx_http_pd_limits_t *limits);

/*
 * One word of a configuration: NGX_OK, NGX_DECLINED: it is no limit, or
 * NGX_ERROR: its value is none.
 */
ngx_int_t ngx_http_pd_limits_word(ngx_http_pd_limits_t *limits,
    ngx_str_t *word);

/* what is unsaid in "limits" is as in "others" */
void ngx_http_pd_limits_merge(ngx_http_pd_limits_t *limits,
    ngx_http_pd_limits_t *others);


#endif /* _NGX_HTTP_PD_LIMITS_H_INCLUDED_ */
