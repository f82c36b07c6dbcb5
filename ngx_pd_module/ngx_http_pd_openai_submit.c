
/*
 * Submits: everything around a prompt, packed when the request is known.
 *
 * Written by hand: protobuf-c looks at each of the three dozen fields that a
 * Submit and its sampling may have, once to count and once to pack, and nearly
 * all of them are not there.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <sys/random.h>

#include "ngx_http_pd_openai.h"
#include "ngx_http_pd_wire.h"


/* what is not counted one by one: tags, lengths, numbers, the short fields */

#define NGX_HTTP_PD_SUBMIT_FIXED    256
#define NGX_HTTP_PD_SUBMIT_USUAL    512    /* bytes of one, nearly always */

/* an element of a list: its tags, its length, its numbers */

#define NGX_HTTP_PD_SUBMIT_STOP     4
#define NGX_HTTP_PD_SUBMIT_TOKEN    5
#define NGX_HTTP_PD_SUBMIT_BIAS     16

/* a length that is known later, as in ngx_http_pd_openai_prompt.c */

#define NGX_HTTP_PD_SUBMIT_LENGTH   3


static size_t ngx_http_pd_submit_size(ngx_http_pd_openai_t *request,
    ngx_http_pd_submit_t *about);
static u_char *ngx_http_pd_submit_pack(u_char *p,
    ngx_http_pd_openai_t *request, ngx_uint_t choice,
    ngx_http_pd_submit_t *about);
static u_char *ngx_http_pd_submit_sampling(u_char *p, Pd__V1__Sampling *s,
    uint64_t seed);
static u_char *ngx_http_pd_submit_lists(u_char *p, Pd__V1__Sampling *s);
static uint64_t ngx_http_pd_submit_seed(ngx_http_pd_openai_t *request,
    ngx_uint_t choice);
static uint64_t ngx_http_pd_mix(uint64_t z);


/* a field; one that is zero or empty means the same when it is not there */

static ngx_inline u_char *
ngx_http_pd_submit_uint(u_char *p, ngx_uint_t id, uint64_t number)
{
    if (number == 0) {
        return p;
    }

    p = ngx_http_pd_wire_put(p, ngx_http_pd_wire_uint(id));

    return ngx_http_pd_wire_put(p, number);
}


static ngx_inline u_char *
ngx_http_pd_submit_float(u_char *p, ngx_uint_t id, float number)
{
    uint32_t  n;

    if (number == 0) {
        return p;
    }

    p = ngx_http_pd_wire_put(p, ngx_http_pd_wire_float(id));

    ngx_memcpy(&n, &number, sizeof(uint32_t));
    n = htole32(n);

    return ngx_cpymem(p, &n, sizeof(uint32_t));
}


static ngx_inline u_char *
ngx_http_pd_submit_bytes(u_char *p, ngx_uint_t id, u_char *data, size_t len)
{
    if (len == 0) {
        return p;
    }

    p = ngx_http_pd_wire_put(p, ngx_http_pd_wire_bytes(id));
    p = ngx_http_pd_wire_put(p, len);

    return ngx_cpymem(p, data, len);
}


/* something of a length that is known when it is written: its tag and room */

static ngx_inline u_char *
ngx_http_pd_submit_open(u_char *p, ngx_uint_t id)
{
    *p = (u_char) ngx_http_pd_wire_bytes(id);

    return p + 1 + NGX_HTTP_PD_SUBMIT_LENGTH;
}


static ngx_inline void
ngx_http_pd_submit_close(u_char *begin, u_char *end)
{
    size_t  len;

    len = end - begin;

    begin[-3] = (u_char) (0x80 | (len & 0x7f));
    begin[-2] = (u_char) (0x80 | ((len >> 7) & 0x7f));
    begin[-1] = (u_char) (len >> 14);
}


ngx_int_t
ngx_http_pd_openai_submit(ngx_http_pd_openai_t *request, ngx_uint_t choice,
    ngx_http_pd_submit_t *about, ngx_chain_t **submit, ngx_chain_t **options)
{
    size_t        size;
    u_char       *p, *last, usual[NGX_HTTP_PD_SUBMIT_USUAL];
    ngx_buf_t    *b;
    ngx_chain_t  *head, *alone;

    size = ngx_http_pd_submit_size(request, about);

    p = (size <= sizeof(usual)) ? usual : ngx_pnalloc(request->pool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    last = ngx_http_pd_submit_pack(p, request, choice, about);
    size = last - p;

    if (p == usual) {
        p = ngx_pnalloc(request->pool, size);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(p, usual, size);
    }

    b = ngx_calloc_buf(request->pool);
    head = ngx_alloc_chain_link(request->pool);
    alone = ngx_alloc_chain_link(request->pool);

    if (b == NULL || head == NULL || alone == NULL) {
        return NGX_ERROR;
    }

    b->start = p;
    b->pos = p;
    b->last = p + size;
    b->end = b->last;
    b->temporary = 1;

    head->buf = b;
    head->next = ngx_http_pd_openai_prompt(request, choice)->first;

    alone->buf = b;
    alone->next = NULL;

    *submit = head;
    *options = alone;

    return NGX_OK;
}


/* at most */

static size_t
ngx_http_pd_submit_size(ngx_http_pd_openai_t *request,
    ngx_http_pd_submit_t *about)
{
    size_t             i, size;
    Pd__V1__Sampling  *s;

    s = request->sampling;

    size = NGX_HTTP_PD_SUBMIT_FIXED + request->model.len + about->id.len
           + about->tenant.len + about->traceparent.len
           + s->n_stop_token_ids * NGX_HTTP_PD_SUBMIT_TOKEN
           + s->n_logit_bias * NGX_HTTP_PD_SUBMIT_BIAS;

    for (i = 0; i < s->n_stop; i++) {
        size += NGX_HTTP_PD_SUBMIT_STOP + s->stop[i].len;
    }

    return size;
}


static u_char *
ngx_http_pd_submit_pack(u_char *p, ngx_http_pd_openai_t *request,
    ngx_uint_t choice, ngx_http_pd_submit_t *about)
{
    u_char  *begin;

    p = ngx_http_pd_submit_bytes(p, 2, request->model.data,
                                 request->model.len);
    p = ngx_http_pd_submit_uint(p, 3, about->urgent
                                 ? PD__V1__REQUEST_CLASS__CLASS_INTERACTIVE
                                 : PD__V1__REQUEST_CLASS__CLASS_STANDARD);
    p = ngx_http_pd_submit_bytes(p, 4, about->tenant.data, about->tenant.len);
    p = ngx_http_pd_submit_bytes(p, 5, about->id.data, about->id.len);
    p = ngx_http_pd_submit_bytes(p, 6, about->traceparent.data,
                                 about->traceparent.len);
    p = ngx_http_pd_submit_uint(p, 7, (uint64_t) about->deadline * 1000);

    begin = ngx_http_pd_submit_open(p, 15);
    p = ngx_http_pd_submit_sampling(begin, request->sampling,
                                    ngx_http_pd_submit_seed(request, choice));
    ngx_http_pd_submit_close(begin, p);

    return p;
}


static u_char *
ngx_http_pd_submit_sampling(u_char *p, Pd__V1__Sampling *s, uint64_t seed)
{
    p = ngx_http_pd_submit_float(p, 1, s->temperature);
    p = ngx_http_pd_submit_float(p, 2, s->top_p);
    p = ngx_http_pd_submit_uint(p, 3, s->top_k);
    p = ngx_http_pd_submit_float(p, 4, s->min_p);
    p = ngx_http_pd_submit_float(p, 5, s->presence_penalty);
    p = ngx_http_pd_submit_float(p, 6, s->frequency_penalty);
    p = ngx_http_pd_submit_float(p, 7, s->repetition_penalty);
    p = ngx_http_pd_submit_uint(p, 8, seed);
    p = ngx_http_pd_submit_uint(p, 9, s->max_tokens);
    p = ngx_http_pd_submit_uint(p, 10, s->min_tokens);
    p = ngx_http_pd_submit_uint(p, 11, s->ignore_eos != 0);
    p = ngx_http_pd_submit_lists(p, s);
    p = ngx_http_pd_submit_uint(p, 14, s->include_stop != 0);
    p = ngx_http_pd_submit_uint(p, 16, s->logprobs != 0);
    p = ngx_http_pd_submit_uint(p, 17, s->top_logprobs);

    return ngx_http_pd_submit_float(p, 18, s->typical_p);
}


static u_char *
ngx_http_pd_submit_lists(u_char *p, Pd__V1__Sampling *s)
{
    size_t   i;
    u_char  *begin;

    for (i = 0; i < s->n_stop; i++) {
        p = ngx_http_pd_submit_bytes(p, 12, s->stop[i].data, s->stop[i].len);
    }

    if (s->n_stop_token_ids) {
        begin = ngx_http_pd_submit_open(p, 13);
        p = begin;

        for (i = 0; i < s->n_stop_token_ids; i++) {
            p = ngx_http_pd_wire_put(p, s->stop_token_ids[i]);
        }

        ngx_http_pd_submit_close(begin, p);
    }

    for (i = 0; i < s->n_logit_bias; i++) {
        begin = ngx_http_pd_submit_open(p, 15);

        p = ngx_http_pd_submit_uint(begin, 1, s->logit_bias[i]->token);
        p = ngx_http_pd_submit_float(p, 2, s->logit_bias[i]->bias);

        ngx_http_pd_submit_close(begin, p);
    }

    return p;
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

    return n ? ngx_http_pd_mix(request->sampling->seed
                               + n * 0x9e3779b97f4a7c15)
             : request->sampling->seed;
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
