
/*
 * Submits: everything around a prompt, packed when the request is known.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <sys/random.h>

#include "ngx_http_pd_openai.h"


static uint64_t ngx_http_pd_submit_seed(ngx_http_pd_openai_t *request,
    ngx_uint_t choice);
static uint64_t ngx_http_pd_mix(uint64_t z);
static char *ngx_http_pd_submit_string(ngx_pool_t *pool, ngx_str_t *value);


ngx_int_t
ngx_http_pd_openai_submit(ngx_http_pd_openai_t *request, ngx_uint_t choice,
    ngx_http_pd_submit_t *about, ngx_chain_t **submit, ngx_chain_t **options)
{
    size_t             size;
    ngx_buf_t         *b;
    ngx_chain_t       *head, *alone;
    Pd__V1__Submit     packed;
    Pd__V1__Sampling   sampling;

    sampling = request->sampling;
    sampling.seed = ngx_http_pd_submit_seed(request, choice);

    pd__v1__submit__init(&packed);

    packed.model = (char *) request->model.data;
    packed.request_id = ngx_http_pd_submit_string(request->pool, &about->id);
    packed.tenant = ngx_http_pd_submit_string(request->pool, &about->tenant);
    packed.traceparent = ngx_http_pd_submit_string(request->pool,
                                                   &about->traceparent);
    packed.deadline_us = (uint64_t) about->deadline * 1000;
    packed.class_ = about->urgent
                    ? PD__V1__REQUEST_CLASS__CLASS_INTERACTIVE
                    : PD__V1__REQUEST_CLASS__CLASS_STANDARD;
    packed.sampling = &sampling;

    if (packed.request_id == NULL || packed.tenant == NULL
        || packed.traceparent == NULL)
    {
        return NGX_ERROR;
    }

    size = pd__v1__submit__get_packed_size(&packed);

    b = ngx_create_temp_buf(request->pool, size);
    head = ngx_alloc_chain_link(request->pool);
    alone = ngx_alloc_chain_link(request->pool);

    if (b == NULL || head == NULL || alone == NULL) {
        return NGX_ERROR;
    }

    b->last += pd__v1__submit__pack(&packed, b->last);

    head->buf = b;
    head->next = ngx_http_pd_openai_prompt(request, choice)->first;

    alone->buf = b;
    alone->next = NULL;

    *submit = head;
    *options = alone;

    return NGX_OK;
}


/*
 * A prompt's first choice has the client's seed, as it would have alone; the
 * others have seeds that nobody else's first choice is likely to have.
 */

static uint64_t
ngx_http_pd_submit_seed(ngx_http_pd_openai_t *request, ngx_uint_t choice)
{
    uint64_t  n;

    if (!request->seeded) {
        return ngx_http_pd_random();
    }

    n = choice % request->n;

    return n ? ngx_http_pd_mix(request->sampling.seed
                               + n * 0x9e3779b97f4a7c15)
             : request->sampling.seed;
}


static char *
ngx_http_pd_submit_string(ngx_pool_t *pool, ngx_str_t *value)
{
    u_char  *p;

    p = ngx_pnalloc(pool, value->len + 1);
    if (p == NULL) {
        return NULL;
    }

    if (value->len) {
        ngx_memcpy(p, value->data, value->len);
    }

    p[value->len] = '\0';

    return (char *) p;
}


uint64_t
ngx_http_pd_random(void)
{
    static uint64_t  state;

    /* splitmix64: a counter, started anywhere, and a good mixer */

    if (state == 0
        && getrandom(&state, sizeof(state), 0) != (ssize_t) sizeof(state))
    {
        state = ((uint64_t) ngx_random() << 32) ^ (uint64_t) ngx_pid;
    }

    state += 0x9e3779b97f4a7c15;

    return ngx_http_pd_mix(state);
}


static uint64_t
ngx_http_pd_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;

    return z ^ (z >> 31);
}
