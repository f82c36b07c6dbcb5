
/*
 * Classes by name.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "ngx_http_pd_class.h"


static ngx_str_t  ngx_http_pd_class_names[NGX_HTTP_PD_CLASSES] = {
    ngx_string("interactive"),
    ngx_string("standard")
};


ngx_uint_t
ngx_http_pd_class_find(u_char *name, size_t len)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_PD_CLASSES; i++) {

        if (ngx_http_pd_class_names[i].len == len
            && ngx_memcmp(ngx_http_pd_class_names[i].data, name, len) == 0)
        {
            return i;
        }
    }

    return NGX_CONF_UNSET_UINT;
}


ngx_str_t *
ngx_http_pd_class_name(ngx_uint_t class)
{
    return &ngx_http_pd_class_names[class];
}
