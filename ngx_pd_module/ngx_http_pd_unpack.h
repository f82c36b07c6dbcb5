
/*
 * Protobuf messages from a peer, unpacked into memory that is used again for
 * the next one.  However hostile the bytes: at most NGX_HTTP_PD_UNPACK_MAX of
 * memory, and messages at most 32 deep within each other.
 */


#ifndef _NGX_HTTP_PD_UNPACK_H_INCLUDED_
#define _NGX_HTTP_PD_UNPACK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include <protobuf-c/protobuf-c.h>


/* a message of 2 bytes on the wire may well take 200 here */
#define NGX_HTTP_PD_UNPACK_MAX      (16 * 1024 * 1024)


/* where a message lives until the next one; zeroed before its first use */

typedef struct {
    struct ngx_http_pd_arena_block_s  *blocks;    /* the newest first */
    size_t                             size;      /* of all blocks */
} ngx_http_pd_arena_t;


/* NULL if the bytes are no such message, or over a bound */
void *ngx_http_pd_unpack(ngx_http_pd_arena_t *arena,
    const ProtobufCMessageDescriptor *type, const u_char *data, size_t len);

void ngx_http_pd_arena_free(ngx_http_pd_arena_t *arena);


#endif /* _NGX_HTTP_PD_UNPACK_H_INCLUDED_ */
