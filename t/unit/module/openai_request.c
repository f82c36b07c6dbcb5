#include "openai_request.h"

#include <stdlib.h>

void openai_read(struct openai_request *read, ngx_uint_t surface, const char *body, size_t length,
                 size_t piece)
{
    ngx_http_pd_parse_t *parse;

    read->pool = shim_pool_create();
    parse = ngx_http_pd_openai_create(&read->request, &read->error, surface, (off_t)length,
                                      read->pool, NULL);
    read->parse = parse;
    read->result = parse ? NGX_OK : NGX_ERROR;
    if (!parse)
        return;
    if (piece == 0)
        piece = length ? length : 1;
    for (size_t at = 0; at < length && read->result == NGX_OK; at += piece) {
        size_t count = length - at < piece ? length - at : piece;
        u_char *copy = malloc(count);

        memcpy(copy, body + at, count);
        read->result = ngx_http_pd_openai_feed(parse, copy, copy + count);
        free(copy);
    }
    if (read->result == NGX_OK)
        read->result = ngx_http_pd_openai_end(parse);
}

void openai_free(struct openai_request *read)
{
    if (read->parse)
        ngx_http_pd_openai_destroy(read->parse);
    shim_pool_destroy(read->pool);
}

static Pd__V1__Submit *unpack(const ngx_chain_t *chain)
{
    Pd__V1__Submit *submit;
    u_char *flat = NULL;
    size_t length = 0;

    for (; chain; chain = chain->next) {
        size_t count = (size_t)(chain->buf->last - chain->buf->pos);

        flat = realloc(flat, length + count + 1);
        memcpy(flat + length, chain->buf->pos, count);
        length += count;
    }
    submit = pd__v1__submit__unpack(NULL, length, flat);
    free(flat);
    return submit;
}

static Pd__V1__Submit *pack(struct openai_request *read, ngx_uint_t n, int with_prompt)
{
    ngx_http_pd_submit_t about = {ngx_string("request-7"), ngx_string("tenant-x"),
                                  ngx_string("00-trace"), 1500, 0};
    ngx_chain_t *submit, *options;

    if (ngx_http_pd_openai_submit(&read->request, n, &about, &submit, &options) != NGX_OK)
        return NULL;
    return unpack(with_prompt ? submit : options);
}

Pd__V1__Submit *openai_submit(struct openai_request *read, ngx_uint_t n)
{
    return pack(read, n, 1);
}

Pd__V1__Submit *openai_options(struct openai_request *read, ngx_uint_t n)
{
    return pack(read, n, 0);
}
