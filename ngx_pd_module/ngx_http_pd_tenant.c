
/*
 * Who a caller is: see ngx_http_pd_tenant.h.
 *
 * It is asked in the content handler, when nginx's access phase is over and
 * variables of other modules have their values.
 */


#include "ngx_http_pd_tenant.h"
#include "ngx_http_pd_cluster.h"


static ngx_int_t ngx_http_pd_tenant_read(ngx_conf_t *cf, ngx_str_t *name,
    ngx_http_pd_keys_t *keys);
static ssize_t ngx_http_pd_tenant_load(ngx_conf_t *cf, ngx_file_t *file,
    u_char **text);
static ngx_int_t ngx_http_pd_tenant_variable(ngx_http_pd_ctx_t *ctx,
    ngx_http_complex_value_t *value);
static ngx_int_t ngx_http_pd_tenant_key(ngx_http_pd_ctx_t *ctx,
    ngx_http_pd_keys_t *keys);
static ngx_int_t ngx_http_pd_tenant_unknown(ngx_http_pd_ctx_t *ctx,
    const char *challenge);


char *
ngx_http_pd_tenant_key_file(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_loc_conf_t  *plcf = conf;

    ngx_str_t           *value;
    ngx_http_pd_keys_t  *keys;

    if (plcf->keys != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        plcf->keys = NULL;
        return NGX_CONF_OK;
    }

    if (ngx_conf_full_name(cf->cycle, &value[1], 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    keys = ngx_palloc(cf->pool, sizeof(ngx_http_pd_keys_t));

    if (keys == NULL
        || ngx_http_pd_tenant_read(cf, &value[1], keys) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    plcf->keys = keys;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_tenant_read(ngx_conf_t *cf, ngx_str_t *name,
    ngx_http_pd_keys_t *keys)
{
    u_char      *text;
    ssize_t      n;
    ngx_int_t    rc;
    ngx_file_t   file;

    ngx_memzero(&file, sizeof(ngx_file_t));

    file.name = *name;
    file.log = cf->log;
    file.fd = ngx_open_file(name->data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                            NGX_FILE_OPEN, 0);

    if (file.fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed in \"pd_key_file\"",
                           name);
        return NGX_ERROR;
    }

    text = NULL;
    rc = NGX_ERROR;

    n = ngx_http_pd_tenant_load(cf, &file, &text);

    if (n >= 0) {
        rc = ngx_http_pd_key_parse(keys, cf->pool, text, text + n);

        if (rc != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "pd_key_file \"%V\", line %ui%s%V: %s",
                               name, keys->line,
                               keys->about.len ? ", tenant " : "",
                               &keys->about, keys->error);
        }
    }

    if (text) {
        ngx_explicit_memzero(text, n > 0 ? n : 0);
        ngx_free(text);
    }

    (void) ngx_close_file(file.fd);

    return rc;
}


/* its size, and its text from ngx_alloc(); or an error that is logged */

static ssize_t
ngx_http_pd_tenant_load(ngx_conf_t *cf, ngx_file_t *file, u_char **text)
{
    size_t   size;
    ssize_t  n;

    if (ngx_fd_info(file->fd, &file->info) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" failed", &file->name);
        return NGX_ERROR;
    }

    size = ngx_file_size(&file->info);

    if (!ngx_is_file(&file->info) || size > NGX_HTTP_PD_KEY_FILE_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "pd_key_file \"%V\" must be a file of at most "
                           "4 megabytes", &file->name);
        return NGX_ERROR;
    }

    *text = ngx_alloc(size + 1, cf->log);
    if (*text == NULL) {
        return NGX_ERROR;
    }

    n = ngx_read_file(file, *text, size, 0);

    if (n != (ssize_t) size) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, (n == NGX_ERROR) ? ngx_errno : 0,
                           "cannot read pd_key_file \"%V\"", &file->name);
        return NGX_ERROR;
    }

    return n;
}


ngx_int_t
ngx_http_pd_tenant(ngx_http_pd_ctx_t *ctx)
{
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_http_get_module_loc_conf(ctx->request, ngx_http_pd_module);

    if (plcf->tenant) {
        return ngx_http_pd_tenant_variable(ctx, plcf->tenant);
    }

    if (plcf->keys) {
        return ngx_http_pd_tenant_key(ctx, plcf->keys);
    }

    return NGX_OK;
}


/*
 * Whoever should have found out who it is has not: so the caller stays
 * outside.  An operator who wants strangers gives them a name.
 */

static ngx_int_t
ngx_http_pd_tenant_variable(ngx_http_pd_ctx_t *ctx,
    ngx_http_complex_value_t *value)
{
    ngx_str_t                name;
    ngx_http_request_t      *r;
    ngx_http_pd_loc_conf_t  *plcf;

    r = ctx->request;

    if (ngx_http_complex_value(r, value, &name) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!ngx_http_pd_key_name_valid(&name)) {

        if (name.len) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                          "pd: the value of \"pd_tenant\" is no name of 1 to "
                          "%d printable ASCII characters",
                          NGX_HTTP_PD_TENANT_NAME);
        }

        (void) ngx_http_pd_error(&ctx->error, r->pool, NGX_HTTP_UNAUTHORIZED,
                                 "unknown_tenant", NULL,
                                 "The request does not say who its caller "
                                 "is.");

        return ngx_http_pd_tenant_unknown(ctx, "Bearer realm=\"pd\"");
    }

    ctx->tenant = name;

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    if (plcf->keys) {
        ctx->known = ngx_http_pd_key_tenant(plcf->keys, &name);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_tenant_key(ngx_http_pd_ctx_t *ctx, ngx_http_pd_keys_t *keys)
{
    ngx_str_t            key;
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r;

    r = ctx->request;
    h = r->headers_in.authorization;

    if (h == NULL || h->value.len < sizeof("Bearer ")
        || ngx_strncasecmp(h->value.data, (u_char *) "Bearer ", 7) != 0)
    {
        (void) ngx_http_pd_error(&ctx->error, r->pool, NGX_HTTP_UNAUTHORIZED,
                                 "missing_api_key", NULL,
                                 "The request carries no API key: send it "
                                 "in a header \"Authorization: Bearer "
                                 "KEY\".");

        return ngx_http_pd_tenant_unknown(ctx, "Bearer realm=\"pd\"");
    }

    key.data = h->value.data + 7;
    key.len = h->value.len - 7;

    while (key.len && *key.data == ' ') {
        key.data++;
        key.len--;
    }

    ctx->known = ngx_http_pd_key_find(keys, &key);

    if (ctx->known == NULL) {
        (void) ngx_http_pd_error(&ctx->error, r->pool, NGX_HTTP_UNAUTHORIZED,
                                 "invalid_api_key", NULL,
                                 "The API key is not valid.");

        return ngx_http_pd_tenant_unknown(ctx, "Bearer realm=\"pd\", "
                                          "error=\"invalid_token\"");
    }

    ctx->tenant = ctx->known->name;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_tenant_unknown(ngx_http_pd_ctx_t *ctx, const char *challenge)
{
    ngx_str_t  value;

    value.data = (u_char *) challenge;
    value.len = ngx_strlen(challenge);

    if (ngx_http_pd_answer_header(ctx->request, "WWW-Authenticate", &value)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return NGX_HTTP_UNAUTHORIZED;
}


ngx_int_t
ngx_http_pd_tenant_model(ngx_http_pd_ctx_t *ctx)
{
    ngx_str_t  param;

    if (ctx->known == NULL
        || ngx_http_pd_key_allows(ctx->known, &ctx->openai.model))
    {
        return NGX_OK;
    }

    ngx_str_set(&param, "model");

    return ngx_http_pd_error(&ctx->error, ctx->request->pool,
                             NGX_HTTP_FORBIDDEN, "model_not_allowed", &param,
                             "The model `%V` is not among those that the "
                             "caller may use.", &ctx->openai.model);
}
