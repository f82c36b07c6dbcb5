
/*
 * Bytes per token: see the header.
 */


#include "ngx_http_pd_ratio.h"


#define NGX_HTTP_PD_RATIO_UNIT     256       /* parts of a byte */
#define NGX_HTTP_PD_RATIO_FIRST    (4 * NGX_HTTP_PD_RATIO_UNIT)
#define NGX_HTTP_PD_RATIO_LEAST    16        /* tokens: fewer teach nothing */
#define NGX_HTTP_PD_RATIO_BYTES    NGX_MAX_INT32_VALUE


static uint64_t ngx_http_pd_ratio_key(uint64_t model, uint64_t tenant);
static void ngx_http_pd_ratio_put(ngx_http_pd_zone_t *zone, uint64_t key,
    uint32_t ratio);


size_t
ngx_http_pd_ratio_tokens(ngx_http_pd_zone_t *zone, uint64_t model,
    uint64_t tenant, size_t bytes)
{
    uint32_t              ratio;
    uint64_t              keys[2];
    ngx_uint_t            i;
    ngx_http_pd_ratio_t  *place;

    keys[0] = ngx_http_pd_ratio_key(model, tenant);
    keys[1] = ngx_http_pd_ratio_key(model, 0);
    ratio = NGX_HTTP_PD_RATIO_FIRST;

    for (i = 0; i < 2; i++) {
        place = &zone->sh->ratios[keys[i] % NGX_HTTP_PD_RATIOS];

        if (place->key == keys[i]) {
            ratio = place->ratio;
            break;
        }
    }

    bytes = ngx_min(bytes, NGX_HTTP_PD_RATIO_BYTES);

    return (uint64_t) bytes * NGX_HTTP_PD_RATIO_UNIT / ratio + 1;
}


void
ngx_http_pd_ratio_learn(ngx_http_pd_zone_t *zone, uint64_t model,
    uint64_t tenant, size_t bytes, size_t tokens)
{
    uint32_t  ratio;

    if (tokens < NGX_HTTP_PD_RATIO_LEAST) {
        return;
    }

    bytes = ngx_min(bytes, NGX_HTTP_PD_RATIO_BYTES);
    ratio = ngx_max((uint64_t) bytes * NGX_HTTP_PD_RATIO_UNIT / tokens, 1);

    ngx_http_pd_ratio_put(zone, ngx_http_pd_ratio_key(model, tenant), ratio);

    if (tenant) {
        ngx_http_pd_ratio_put(zone, ngx_http_pd_ratio_key(model, 0), ratio);
    }
}


static void
ngx_http_pd_ratio_put(ngx_http_pd_zone_t *zone, uint64_t key, uint32_t ratio)
{
    ngx_http_pd_ratio_t  *place;

    place = &zone->sh->ratios[key % NGX_HTTP_PD_RATIOS];

    if (place->key != key) {
        place->key = key;
        place->ratio = ratio;
        return;
    }

    place->ratio = ((uint64_t) place->ratio * 7 + ratio) / 8;
    place->ratio = ngx_max(place->ratio, 1);
}


static uint64_t
ngx_http_pd_ratio_key(uint64_t model, uint64_t tenant)
{
    uint64_t  key;

    key = (model ^ (tenant * 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
    key ^= key >> 32;

    return key ? key : 1;
}
