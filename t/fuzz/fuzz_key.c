/* The key file's parser: whatever the bytes, an error names a line of the file, and what is taken
 * keeps its promises. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_http_pd_key.h"
#include "ngx_shim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth)
{
    if (!truth)
        abort();
}

static void check_limits(const ngx_http_pd_limits_t *limits)
{
    const ngx_uint_t values[] = {limits->requests, limits->tokens, limits->concurrent,
                                 limits->prompt, limits->output};

    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        require(values[i] == NGX_CONF_UNSET_UINT || values[i] <= NGX_HTTP_PD_LIMIT_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ngx_pool_t *pool = shim_pool_create();
    ngx_http_pd_keys_t keys;
    ngx_http_pd_tenant_t **tenants;
    ngx_str_t key = {.len = size, .data = (u_char *)data};
    size_t lines = 1;

    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';

    if (ngx_http_pd_key_parse(&keys, pool, (u_char *)data, (u_char *)data + size) != NGX_OK) {
        require(keys.error && (keys.line <= lines));
    } else {
        tenants = keys.tenants.elts;
        for (size_t i = 0; i < keys.tenants.nelts; i++) {
            require(ngx_http_pd_key_tenant(&keys, &tenants[i]->name) == tenants[i]);
            require(ngx_http_pd_key_name_valid(&tenants[i]->name));
            require(tenants[i]->weight >= 1 && tenants[i]->weight <= NGX_HTTP_PD_TENANT_WEIGHT);
            check_limits(&tenants[i]->limits);
        }
        require(keys.first[256] == keys.keys.nelts);
        require(!ngx_http_pd_key_find(&keys, &key)); /* nobody finds a SHA-256 by chance */
    }
    shim_pool_destroy(pool);
    return 0;
}
