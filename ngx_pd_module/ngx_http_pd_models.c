
/*
 * GET .../models and .../models/ID: what a request can be routed to now.
 */


#include "ngx_http_pd_api.h"


static ngx_int_t ngx_http_pd_models_one(ngx_http_pd_rope_t *rope,
    ngx_str_t *id);


ngx_int_t
ngx_http_pd_models(ngx_http_pd_ctx_t *ctx, ngx_str_t *id)
{
    ngx_int_t                rc;
    ngx_str_t               *model;
    ngx_uint_t               i, n;
    ngx_array_t             *models;
    ngx_http_request_t      *r;
    ngx_http_pd_rope_t       rope;
    ngx_http_pd_loc_conf_t  *plcf;

    r = ctx->request;
    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    models = ngx_array_create(r->pool, 4, sizeof(ngx_str_t));

    if (models == NULL
        || ngx_http_pd_cluster_models(plcf->pass, r->pool, models) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memzero(&rope, sizeof(ngx_http_pd_rope_t));

    rope.pool = r->pool;
    rope.buffer = 512;

    if (id->len == 0
        && ngx_http_pd_rope_literal(&rope, "{\"object\":\"list\",\"data\":[")
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    model = models->elts;
    n = 0;

    for (i = 0; i < models->nelts; i++) {

        if (id->len
            && (model[i].len != id->len
                || ngx_memcmp(model[i].data, id->data, id->len) != 0))
        {
            continue;
        }

        if (ctx->known && !ngx_http_pd_key_allows(ctx->known, &model[i])) {
            continue;
        }

        if ((n++ && ngx_http_pd_rope_literal(&rope, ",") != NGX_OK)
            || ngx_http_pd_models_one(&rope, &model[i]) != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (id->len == 0) {

        if (ngx_http_pd_rope_literal(&rope, "]}") != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

    } else if (n == 0) {
        (void) ngx_http_pd_error(&ctx->error, r->pool, NGX_HTTP_NOT_FOUND,
                                 "model_not_found", NULL,
                                 "The model `%V` does not exist", id);
        return NGX_HTTP_NOT_FOUND;
    }

    return ngx_http_pd_answer_send(r, &rope);
}


static ngx_int_t
ngx_http_pd_models_one(ngx_http_pd_rope_t *rope, ngx_str_t *id)
{
    /* nobody knows when a model was made, so the time is that of the epoch */

    if (ngx_http_pd_rope_literal(rope, "{\"id\":\"") != NGX_OK
        || ngx_http_pd_rope_escape(rope, id->data, id->len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_pd_rope_literal(rope, "\",\"object\":\"model\","
                                          "\"created\":0,"
                                          "\"owned_by\":\"ngx_pd\"}");
}
