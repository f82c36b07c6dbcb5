
/*
 * The key file, read and asked: see ngx_http_pd_key.h.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "ngx_http_pd_key.h"


typedef struct {
    u_char                  digest[NGX_HTTP_PD_KEY_DIGEST];
    ngx_http_pd_tenant_t   *tenant;
    ngx_uint_t              line;
} ngx_http_pd_key_t;


typedef struct {
    ngx_http_pd_keys_t     *keys;
    ngx_pool_t             *pool;
    u_char                 *pos;        /* of the line, what is left */
    u_char                 *last;
    ngx_http_pd_tenant_t   *tenant;     /* of the last line */
} ngx_http_pd_key_parser_t;


typedef struct {
    ngx_str_t               name;
    ngx_int_t             (*handler)(ngx_http_pd_key_parser_t *parser);
} ngx_http_pd_key_line_t;


static ngx_int_t ngx_http_pd_key_line(ngx_http_pd_key_parser_t *parser);
static ngx_int_t ngx_http_pd_key_line_tenant(ngx_http_pd_key_parser_t *parser);
static ngx_int_t ngx_http_pd_key_tenant_word(ngx_http_pd_key_parser_t *parser,
    ngx_str_t *word);
static ngx_int_t ngx_http_pd_key_models(ngx_http_pd_key_parser_t *parser,
    ngx_str_t *list);
static ngx_int_t ngx_http_pd_key_line_limit(ngx_http_pd_key_parser_t *parser);
static ngx_int_t ngx_http_pd_key_line_key(ngx_http_pd_key_parser_t *parser);
static ngx_int_t ngx_http_pd_key_known(ngx_http_pd_key_parser_t *parser);
static ngx_http_pd_tenant_t *ngx_http_pd_key_above(
    ngx_http_pd_key_parser_t *parser, ngx_str_t *name);
static ngx_int_t ngx_http_pd_key_limit(ngx_http_pd_key_parser_t *parser,
    ngx_http_pd_limits_t *limits, ngx_str_t *word, const char *unknown);
static ngx_uint_t ngx_http_pd_key_next(ngx_http_pd_key_parser_t *parser,
    ngx_str_t *word);
static ngx_int_t ngx_http_pd_key_copy(ngx_http_pd_key_parser_t *parser,
    ngx_str_t *to, ngx_str_t *from);
static ngx_int_t ngx_http_pd_key_hex(u_char *to, ngx_str_t *hex);
static ngx_int_t ngx_http_pd_key_error(ngx_http_pd_key_parser_t *parser,
    const char *error);
static ngx_int_t ngx_http_pd_key_index(ngx_http_pd_keys_t *keys,
    ngx_http_pd_key_parser_t *parser);
static int ngx_libc_cdecl ngx_http_pd_key_compare(const void *one,
    const void *two);
static int ngx_libc_cdecl ngx_http_pd_key_compare_tenants(const void *one,
    const void *two);
static ngx_int_t ngx_http_pd_key_compare_names(ngx_str_t *one,
    ngx_str_t *two);


static ngx_http_pd_key_line_t  ngx_http_pd_key_lines[] = {
    { ngx_string("tenant"), ngx_http_pd_key_line_tenant },
    { ngx_string("limit"), ngx_http_pd_key_line_limit },
    { ngx_string("key"), ngx_http_pd_key_line_key },
    { ngx_null_string, NULL }
};


ngx_int_t
ngx_http_pd_key_parse(ngx_http_pd_keys_t *keys, ngx_pool_t *pool, u_char *pos,
    u_char *last)
{
    u_char                    *end;
    ngx_http_pd_key_parser_t   parser;

    ngx_memzero(keys, sizeof(ngx_http_pd_keys_t));
    ngx_memzero(&parser, sizeof(ngx_http_pd_key_parser_t));

    parser.keys = keys;
    parser.pool = pool;

    if (ngx_array_init(&keys->tenants, pool, 16,
                       sizeof(ngx_http_pd_tenant_t *))
        != NGX_OK
        || ngx_array_init(&keys->keys, pool, 16, sizeof(ngx_http_pd_key_t))
           != NGX_OK)
    {
        return ngx_http_pd_key_error(&parser, "no memory is left");
    }

    while (pos < last) {
        end = ngx_strlchr(pos, last, LF);

        if (end == NULL) {
            end = last;
        }

        keys->line++;
        parser.pos = pos;
        parser.last = end;

        if (ngx_http_pd_key_line(&parser) != NGX_OK) {
            return NGX_ERROR;
        }

        pos = end + 1;
    }

    return ngx_http_pd_key_index(keys, &parser);
}


static ngx_int_t
ngx_http_pd_key_line(ngx_http_pd_key_parser_t *parser)
{
    ngx_str_t                word;
    ngx_http_pd_key_line_t  *line;

    if (!ngx_http_pd_key_next(parser, &word)) {
        return NGX_OK;
    }

    for (line = ngx_http_pd_key_lines; line->name.len; line++) {

        if (word.len == line->name.len
            && ngx_memcmp(word.data, line->name.data, word.len) == 0)
        {
            return line->handler(parser);
        }
    }

    return ngx_http_pd_key_error(parser, "a line begins with \"tenant\", "
                                 "\"limit\", \"key\" or \"#\"");
}


/* tenant NAME [models=A,B] [class=CLASS] [weight=N] [limits] */

static ngx_int_t
ngx_http_pd_key_line_tenant(ngx_http_pd_key_parser_t *parser)
{
    ngx_str_t               word;
    ngx_array_t            *tenants;
    ngx_http_pd_tenant_t   *tenant, **place;

    tenants = &parser->keys->tenants;

    if (!ngx_http_pd_key_next(parser, &word)
        || !ngx_http_pd_key_name_valid(&word))
    {
        return ngx_http_pd_key_error(parser, "write a name of 1 to 128 "
                                     "printable ASCII characters behind "
                                     "\"tenant\"");
    }

    parser->tenant = ngx_http_pd_key_above(parser, &word);

    if (parser->tenant) {
        return ngx_http_pd_key_error(parser, "this tenant has a line "
                                     "\"tenant\" already: keep one");
    }

    if (tenants->nelts == NGX_HTTP_PD_TENANTS_MAX) {
        return ngx_http_pd_key_error(parser, "at most 4096 tenants fit: use "
                                     "pd_tenant with pd_limit for more");
    }

    tenant = ngx_pcalloc(parser->pool, sizeof(ngx_http_pd_tenant_t));
    place = ngx_array_push(tenants);

    if (tenant == NULL || place == NULL
        || ngx_http_pd_key_copy(parser, &tenant->name, &word) != NGX_OK
        || ngx_array_init(&tenant->models, parser->pool, 1, sizeof(ngx_str_t))
           != NGX_OK
        || ngx_array_init(&tenant->others, parser->pool, 1,
                          sizeof(ngx_http_pd_model_limits_t))
           != NGX_OK)
    {
        return ngx_http_pd_key_error(parser, "no memory is left");
    }

    *place = tenant;
    parser->tenant = tenant;

    ngx_http_pd_limits_init(&tenant->limits);
    tenant->class = NGX_CONF_UNSET_UINT;
    tenant->weight = 1;

    while (ngx_http_pd_key_next(parser, &word)) {
        if (ngx_http_pd_key_tenant_word(parser, &word) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_key_tenant_word(ngx_http_pd_key_parser_t *parser, ngx_str_t *word)
{
    ngx_int_t              n;
    ngx_str_t              list;
    ngx_http_pd_tenant_t  *tenant;

    tenant = parser->tenant;

    if (word->len > 7 && ngx_memcmp(word->data, "models=", 7) == 0) {
        list.data = word->data + 7;
        list.len = word->len - 7;

        return ngx_http_pd_key_models(parser, &list);
    }

    if (word->len > 6 && ngx_memcmp(word->data, "class=", 6) == 0) {
        tenant->class = ngx_http_pd_class_find(word->data + 6, word->len - 6);

        if (tenant->class == NGX_CONF_UNSET_UINT) {
            return ngx_http_pd_key_error(parser, "no such class: write "
                                         "class=interactive or "
                                         "class=standard");
        }

        return NGX_OK;
    }

    if (word->len > 7 && ngx_memcmp(word->data, "weight=", 7) == 0) {
        n = ngx_atoi(word->data + 7, word->len - 7);

        if (n < 1 || n > NGX_HTTP_PD_TENANT_WEIGHT) {
            return ngx_http_pd_key_error(parser, "write weight=1 to "
                                         "weight=1000");
        }

        tenant->weight = n;
        return NGX_OK;
    }

    return ngx_http_pd_key_limit(parser, &tenant->limits, word,
                                 "behind a tenant's name come models=, "
                                 "class=, weight=, " NGX_HTTP_PD_LIMITS);
}


static ngx_int_t
ngx_http_pd_key_models(ngx_http_pd_key_parser_t *parser, ngx_str_t *list)
{
    u_char       *p, *end, *last;
    ngx_str_t     name, *model;
    ngx_array_t  *models;

    models = &parser->tenant->models;
    last = list->data + list->len;

    for (p = list->data; p <= last; p = end + 1) {
        end = ngx_strlchr(p, last, ',');

        if (end == NULL) {
            end = last;
        }

        if (end == p || models->nelts == NGX_HTTP_PD_TENANT_MODELS) {
            return ngx_http_pd_key_error(parser, "write 1 to 64 models as "
                                         "models=A,B,C");
        }

        name.data = p;
        name.len = end - p;

        model = ngx_array_push(models);

        if (model == NULL
            || ngx_http_pd_key_copy(parser, model, &name) != NGX_OK)
        {
            return ngx_http_pd_key_error(parser, "no memory is left");
        }
    }

    return NGX_OK;
}


/* limit NAME MODEL limits */

static ngx_int_t
ngx_http_pd_key_line_limit(ngx_http_pd_key_parser_t *parser)
{
    ngx_str_t                    word;
    ngx_uint_t                   i;
    ngx_array_t                 *others;
    ngx_http_pd_model_limits_t  *limits;

    if (ngx_http_pd_key_known(parser) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!ngx_http_pd_key_next(parser, &word)) {
        return ngx_http_pd_key_error(parser, "write \"limit TENANT MODEL\" "
                                     "and limits");
    }

    others = &parser->tenant->others;
    limits = others->elts;

    for (i = 0; i < others->nelts; i++) {

        if (limits[i].model.len == word.len
            && ngx_memcmp(limits[i].model.data, word.data, word.len) == 0)
        {
            return ngx_http_pd_key_error(parser, "this tenant and model have "
                                         "a line of limits already: keep "
                                         "one");
        }
    }

    if (others->nelts == NGX_HTTP_PD_TENANT_MODELS) {
        return ngx_http_pd_key_error(parser, "a tenant has at most 64 lines "
                                     "of limits");
    }

    limits = ngx_array_push(others);

    if (limits == NULL
        || ngx_http_pd_key_copy(parser, &limits->model, &word) != NGX_OK)
    {
        return ngx_http_pd_key_error(parser, "no memory is left");
    }

    ngx_http_pd_limits_init(&limits->limits);

    while (ngx_http_pd_key_next(parser, &word)) {

        if (ngx_http_pd_key_limit(parser, &limits->limits, &word,
                                  "behind a model's name come "
                                  NGX_HTTP_PD_LIMITS)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* key NAME SHA256 */

static ngx_int_t
ngx_http_pd_key_line_key(ngx_http_pd_key_parser_t *parser)
{
    ngx_str_t           word, rest;
    ngx_http_pd_key_t  *key;

    if (ngx_http_pd_key_known(parser) != NGX_OK) {
        return NGX_ERROR;
    }

    if (parser->keys->keys.nelts == NGX_HTTP_PD_KEYS_MAX) {
        return ngx_http_pd_key_error(parser, "at most 16384 keys fit");
    }

    key = ngx_array_push(&parser->keys->keys);

    if (key == NULL) {
        return ngx_http_pd_key_error(parser, "no memory is left");
    }

    key->tenant = parser->tenant;
    key->line = parser->keys->line;

    if (!ngx_http_pd_key_next(parser, &word)
        || ngx_http_pd_key_next(parser, &rest)
        || ngx_http_pd_key_hex(key->digest, &word) != NGX_OK)
    {
        return ngx_http_pd_key_error(parser, "write \"key TENANT SHA256\" "
                                     "with the 64 hexadecimal digits of "
                                     "printf %s \"$KEY\" | sha256sum");
    }

    return NGX_OK;
}


/* the tenant that a line names next */

static ngx_int_t
ngx_http_pd_key_known(ngx_http_pd_key_parser_t *parser)
{
    ngx_str_t  word;

    if (!ngx_http_pd_key_next(parser, &word)) {
        return ngx_http_pd_key_error(parser, "a tenant's name is missing");
    }

    if (parser->tenant == NULL
        || ngx_http_pd_key_compare_names(&parser->tenant->name, &word) != 0)
    {
        parser->tenant = ngx_http_pd_key_above(parser, &word);
    }

    if (parser->tenant) {
        return NGX_OK;
    }

    /* not quoted: it may be a key, where the words are in the wrong order */

    return ngx_http_pd_key_error(parser, "no tenant of this name is known: "
                                 "write a line \"tenant NAME\" above");
}


static ngx_http_pd_tenant_t *
ngx_http_pd_key_above(ngx_http_pd_key_parser_t *parser, ngx_str_t *name)
{
    ngx_uint_t              i;
    ngx_http_pd_tenant_t  **tenants;

    tenants = parser->keys->tenants.elts;

    for (i = 0; i < parser->keys->tenants.nelts; i++) {

        if (ngx_http_pd_key_compare_names(&tenants[i]->name, name) == 0) {
            return tenants[i];
        }
    }

    return NULL;
}


static ngx_int_t
ngx_http_pd_key_limit(ngx_http_pd_key_parser_t *parser,
    ngx_http_pd_limits_t *limits, ngx_str_t *word, const char *unknown)
{
    switch (ngx_http_pd_limits_word(limits, word)) {

    case NGX_OK:
        return NGX_OK;

    case NGX_DECLINED:
        return ngx_http_pd_key_error(parser, unknown);

    default: /* NGX_ERROR */
        return ngx_http_pd_key_error(parser, "a limit is a number from 1 to "
                                     "1000000000, or \"off\"");
    }
}


/* the line's next word, if there is one */

static ngx_uint_t
ngx_http_pd_key_next(ngx_http_pd_key_parser_t *parser, ngx_str_t *word)
{
    u_char  *p, *last;

    p = parser->pos;
    last = parser->last;

    while (p < last && (*p == ' ' || *p == '\t' || *p == CR)) {
        p++;
    }

    word->data = p;

    if (p < last && *p == '#') {
        p = last;
        word->data = p;
    }

    while (p < last && *p != ' ' && *p != '\t' && *p != CR) {
        p++;
    }

    word->len = p - word->data;
    parser->pos = p;

    return word->len != 0;
}


static ngx_int_t
ngx_http_pd_key_copy(ngx_http_pd_key_parser_t *parser, ngx_str_t *to,
    ngx_str_t *from)
{
    to->data = ngx_pnalloc(parser->pool, from->len);
    if (to->data == NULL) {
        return NGX_ERROR;
    }

    to->len = from->len;
    ngx_memcpy(to->data, from->data, from->len);

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_key_hex(u_char *to, ngx_str_t *hex)
{
    u_char      ch;
    ngx_uint_t  i, n;

    if (hex->len != 2 * NGX_HTTP_PD_KEY_DIGEST) {
        return NGX_ERROR;
    }

    for (i = 0; i < hex->len; i++) {
        ch = hex->data[i] | 0x20;

        if (ch >= '0' && ch <= '9' && ch == hex->data[i]) {
            n = ch - '0';

        } else if (ch >= 'a' && ch <= 'f') {
            n = ch - 'a' + 10;

        } else {
            return NGX_ERROR;
        }

        to[i / 2] = (u_char) (to[i / 2] << 4 | n);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_key_error(ngx_http_pd_key_parser_t *parser, const char *error)
{
    parser->keys->error = error;

    if (parser->tenant) {
        parser->keys->about = parser->tenant->name;
    }

    return NGX_ERROR;
}


/* all is read: in order, and each but once */

static ngx_int_t
ngx_http_pd_key_index(ngx_http_pd_keys_t *keys,
    ngx_http_pd_key_parser_t *parser)
{
    ngx_uint_t              i, byte;
    ngx_http_pd_key_t      *key;
    ngx_http_pd_tenant_t  **tenant;

    tenant = keys->tenants.elts;
    key = keys->keys.elts;

    ngx_qsort(tenant, keys->tenants.nelts, sizeof(ngx_http_pd_tenant_t *),
              ngx_http_pd_key_compare_tenants);

    ngx_qsort(key, keys->keys.nelts, sizeof(ngx_http_pd_key_t),
              ngx_http_pd_key_compare);

    for (i = 1; i < keys->keys.nelts; i++) {

        if (ngx_http_pd_key_compare(&key[i - 1], &key[i]) == 0) {
            keys->line = ngx_max(key[i - 1].line, key[i].line);
            parser->tenant = key[i].tenant;
            return ngx_http_pd_key_error(parser, "a key of this tenant is "
                                         "given twice: keep one");
        }
    }

    for (i = 0, byte = 0; byte <= 256; byte++) {

        while (i < keys->keys.nelts && key[i].digest[0] < byte) {
            i++;
        }

        keys->first[byte] = i;
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
ngx_http_pd_key_compare(const void *one, const void *two)
{
    return ngx_memcmp(((ngx_http_pd_key_t *) one)->digest,
                      ((ngx_http_pd_key_t *) two)->digest,
                      NGX_HTTP_PD_KEY_DIGEST);
}


static int ngx_libc_cdecl
ngx_http_pd_key_compare_tenants(const void *one, const void *two)
{
    return (int) ngx_http_pd_key_compare_names(
                                     &(*(ngx_http_pd_tenant_t **) one)->name,
                                     &(*(ngx_http_pd_tenant_t **) two)->name);
}


static ngx_int_t
ngx_http_pd_key_compare_names(ngx_str_t *one, ngx_str_t *two)
{
    if (one->len != two->len) {
        return (one->len < two->len) ? -1 : 1;
    }

    return ngx_memcmp(one->data, two->data, one->len);
}


ngx_uint_t
ngx_http_pd_key_name_valid(ngx_str_t *name)
{
    size_t  i;

    for (i = 0; i < name->len; i++) {

        if (name->data[i] < 0x20 || name->data[i] > 0x7e) {
            return 0;
        }
    }

    return name->len && name->len <= NGX_HTTP_PD_TENANT_NAME;
}


ngx_http_pd_tenant_t *
ngx_http_pd_key_find(ngx_http_pd_keys_t *keys, ngx_str_t *key)
{
    u_char                 digest[EVP_MAX_MD_SIZE];
    ngx_uint_t             i;
    ngx_http_pd_key_t     *known;
    ngx_http_pd_tenant_t  *tenant;

    if (key->len == 0 || key->len > NGX_HTTP_PD_KEY_LEN
        || EVP_Digest(key->data, key->len, digest, NULL, EVP_sha256(), NULL)
           != 1)
    {
        return NULL;
    }

    known = keys->keys.elts;
    tenant = NULL;

    for (i = keys->first[digest[0]]; i < keys->first[digest[0] + 1]; i++) {

        if (CRYPTO_memcmp(known[i].digest, digest, NGX_HTTP_PD_KEY_DIGEST)
            == 0)
        {
            tenant = known[i].tenant;
        }
    }

    return tenant;
}


ngx_http_pd_tenant_t *
ngx_http_pd_key_tenant(ngx_http_pd_keys_t *keys, ngx_str_t *name)
{
    ngx_int_t               rc;
    ngx_uint_t              low, high, middle;
    ngx_http_pd_tenant_t  **tenants;

    tenants = keys->tenants.elts;
    low = 0;
    high = keys->tenants.nelts;

    while (low < high) {
        middle = (low + high) / 2;

        rc = ngx_http_pd_key_compare_names(name, &tenants[middle]->name);

        if (rc == 0) {
            return tenants[middle];
        }

        if (rc < 0) {
            high = middle;

        } else {
            low = middle + 1;
        }
    }

    return NULL;
}


ngx_uint_t
ngx_http_pd_key_allows(ngx_http_pd_tenant_t *tenant, ngx_str_t *model)
{
    ngx_str_t   *models;
    ngx_uint_t   i;

    models = tenant->models.elts;

    for (i = 0; i < tenant->models.nelts; i++) {

        if (ngx_http_pd_key_compare_names(&models[i], model) == 0) {
            return 1;
        }
    }

    return tenant->models.nelts == 0;
}
