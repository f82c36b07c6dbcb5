
/*
 * The key file: tenants, their limits, and the keys by which they are known.
 *
 *     # one entry a line
 *     tenant acme models=small,large requests=600 tokens=200000 weight=2
 *     limit  acme large tokens=50000
 *     key    acme 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15...
 *
 * It holds no key but the SHA-256 of each.  What is said about it when it is
 * wrong quotes none of its words but tenants' names: whoever has written a key
 * in the place of its hash shall not find it in a log.
 */


#ifndef _NGX_HTTP_PD_KEY_H_INCLUDED_
#define _NGX_HTTP_PD_KEY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_class.h"
#include "ngx_http_pd_limits.h"


#define NGX_HTTP_PD_KEY_FILE_MAX       (4 * 1024 * 1024)
#define NGX_HTTP_PD_KEYS_MAX           16384
#define NGX_HTTP_PD_KEY_LEN            512      /* of a key, not its hash */
#define NGX_HTTP_PD_KEY_DIGEST         32
#define NGX_HTTP_PD_TENANTS_MAX        4096
#define NGX_HTTP_PD_TENANT_NAME        128
#define NGX_HTTP_PD_TENANT_MODELS      64
#define NGX_HTTP_PD_TENANT_WEIGHT      1000


typedef struct {
    ngx_str_t               model;
    ngx_http_pd_limits_t    limits;
} ngx_http_pd_model_limits_t;


typedef struct {
    ngx_str_t               name;
    ngx_http_pd_limits_t    limits;    /* of each model for itself */
    ngx_array_t             others;    /* ngx_http_pd_model_limits_t */
    ngx_array_t             models;    /* ngx_str_t that it may use; none: all */
    ngx_uint_t              class;     /* or NGX_CONF_UNSET_UINT */
    ngx_uint_t              weight;    /* its share of a busy cluster */
} ngx_http_pd_tenant_t;


typedef struct {
    ngx_array_t             tenants;   /* ngx_http_pd_tenant_t *, by name */
    ngx_array_t             keys;      /* by digest */
    uint32_t                first[257];    /* key with such a first byte */

    /* after an error */

    ngx_uint_t              line;
    const char             *error;     /* what is wrong, and the cure */
    ngx_str_t               about;     /* a tenant's name, may be empty */
} ngx_http_pd_keys_t;


/* NGX_OK, or NGX_ERROR: keys->error; the text may be forgotten afterwards */
ngx_int_t ngx_http_pd_key_parse(ngx_http_pd_keys_t *keys, ngx_pool_t *pool,
    u_char *pos, u_char *last);

/* 1 to 128 printable ASCII characters */
ngx_uint_t ngx_http_pd_key_name_valid(ngx_str_t *name);

/*
 * The tenant with this key, or NULL.  Keys are compared by their SHA-256, each
 * in constant time, with all those that share its first byte.
 */
ngx_http_pd_tenant_t *ngx_http_pd_key_find(ngx_http_pd_keys_t *keys,
    ngx_str_t *key);

/* the tenant of this name, or NULL */
ngx_http_pd_tenant_t *ngx_http_pd_key_tenant(ngx_http_pd_keys_t *keys,
    ngx_str_t *name);

/* 1 if the tenant may use the model */
ngx_uint_t ngx_http_pd_key_allows(ngx_http_pd_tenant_t *tenant,
    ngx_str_t *model);


#endif /* _NGX_HTTP_PD_KEY_H_INCLUDED_ */
