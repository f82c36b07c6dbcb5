/* A request's body through the module's reader, and what a worker would unpack of it. */
#ifndef OPENAI_REQUEST_H
#define OPENAI_REQUEST_H

#include "ngx_http_pd_openai.h"
#include "ngx_shim.h"

#define CHAT        NGX_HTTP_PD_OPENAI_CHAT
#define COMPLETIONS NGX_HTTP_PD_OPENAI_COMPLETIONS

struct openai_request {
    ngx_pool_t *pool;
    ngx_http_pd_parse_t *parse;
    ngx_http_pd_openai_t request;
    ngx_http_pd_error_t error; /* with NGX_ABORT */
    ngx_int_t result;          /* NGX_OK, NGX_ABORT, or NGX_ERROR where nothing could be created */
};

/* Feeds `body` in pieces of `piece` bytes (0: all at once), each in memory of its own. */
void openai_read(struct openai_request *read, ngx_uint_t surface, const char *body, size_t length,
                 size_t piece);
void openai_free(struct openai_request *read);

/* Prompt `n` as a worker gets it, with all options; free with pd__v1__submit__free_unpacked. */
Pd__V1__Submit *openai_submit(struct openai_request *read, ngx_uint_t n);

/* The same without the prompt, as the decode side gets it. */
Pd__V1__Submit *openai_options(struct openai_request *read, ngx_uint_t n);

#endif
