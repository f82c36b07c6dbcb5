
/*
 * Limits as numbers: see ngx_http_pd_limits.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_limits.h"


typedef struct {
    ngx_str_t    name;
    size_t       offset;
} ngx_http_pd_limit_name_t;


static ngx_http_pd_limit_name_t  ngx_http_pd_limit_names[] = {
    { ngx_string("requests="), offsetof(ngx_http_pd_limits_t, requests) },
    { ngx_string("tokens="), offsetof(ngx_http_pd_limits_t, tokens) },
    { ngx_string("concurrent="), offsetof(ngx_http_pd_limits_t, concurrent) },
    { ngx_string("max_prompt="), offsetof(ngx_http_pd_limits_t, prompt) },
    { ngx_string("max_output="), offsetof(ngx_http_pd_limits_t, output) },
    { ngx_null_string, 0 }
};


#define ngx_http_pd_limit_of(limits, known)                                  \
    ((ngx_uint_t *) ((u_char *) (limits) + (known)->offset))


void
ngx_http_pd_limits_init(ngx_http_pd_limits_t *limits)
{
    ngx_http_pd_limit_name_t  *known;

    for (known = ngx_http_pd_limit_names; known->name.len; known++) {
        *ngx_http_pd_limit_of(limits, known) = NGX_CONF_UNSET_UINT;
    }
}


ngx_int_t
ngx_http_pd_limits_word(ngx_http_pd_limits_t *limits, ngx_str_t *word)
{
    u_char                    *p;
    size_t                     len;
    ngx_int_t                  n;
    ngx_http_pd_limit_name_t  *known;

    for (known = ngx_http_pd_limit_names; known->name.len; known++) {

        if (word->len >= known->name.len
            && ngx_memcmp(word->data, known->name.data, known->name.len) == 0)
        {
            break;
        }
    }

    if (known->name.len == 0) {
        return NGX_DECLINED;
    }

    p = word->data + known->name.len;
    len = word->len - known->name.len;

    if (len == 3 && ngx_memcmp(p, "off", 3) == 0) {
        *ngx_http_pd_limit_of(limits, known) = 0;
        return NGX_OK;
    }

    n = ngx_atoi(p, len);

    if (n < 1 || n > NGX_HTTP_PD_LIMIT_MAX) {
        return NGX_ERROR;
    }

    *ngx_http_pd_limit_of(limits, known) = n;

    return NGX_OK;
}


void
ngx_http_pd_limits_merge(ngx_http_pd_limits_t *limits,
    ngx_http_pd_limits_t *others)
{
    ngx_http_pd_limit_name_t  *known;

    for (known = ngx_http_pd_limit_names; known->name.len; known++) {

        if (*ngx_http_pd_limit_of(limits, known) == NGX_CONF_UNSET_UINT) {
            *ngx_http_pd_limit_of(limits, known)
                                    = *ngx_http_pd_limit_of(others, known);
        }
    }
}
