/* What the module's parsers need of nginx, without nginx: pools of which every piece is a malloc of
 * its own, so that a sanitizer sees an overrun, and the formats that the module's messages use.
 *
 * Pools count, and can be told to fail. */
#ifndef NGX_SHIM_H
#define NGX_SHIM_H

#include <ngx_config.h>
#include <ngx_core.h>

ngx_pool_t *shim_pool_create(void);
void shim_pool_destroy(ngx_pool_t *pool);

/* Bytes allocated from all pools since the last call. */
size_t shim_pool_bytes(void);

/* The allocation after `count` more returns NULL, and all behind it; -1: none fails. */
void shim_fail_after(long count);

/* What the module takes for the time: microseconds of a monotonic clock. */
extern uint64_t shim_clock_us;

#endif
