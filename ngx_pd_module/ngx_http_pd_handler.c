
/*
 * The content handler of a location with pd_pass.
 */


#include "ngx_http_pd_module.h"


ngx_int_t
ngx_http_pd_handler(ngx_http_request_t *r)
{
    return NGX_HTTP_SERVICE_UNAVAILABLE;
}
