
/*
 * protobuf-c asks an allocator for each message, string and array.  Ours hands
 * out pieces of blocks and takes nothing back; the next message starts over.
 * One block is kept for good, so that a usual message costs no malloc().
 *
 * protobuf-c recurses into messages within messages without a limit, and a few
 * kilobytes can nest a thousand of them.  It allocates at each level, though:
 * so the allocator is where the depth of the stack is measured.
 */


#include "ngx_http_pd_unpack.h"


#define NGX_HTTP_PD_UNPACK_BLOCK    (64 * 1024)
#define NGX_HTTP_PD_UNPACK_KEEP     (128 * 1024)
#define NGX_HTTP_PD_UNPACK_STACK    (128 * 1024)
#define NGX_HTTP_PD_UNPACK_ALIGN    16


typedef struct ngx_http_pd_arena_block_s  ngx_http_pd_arena_block_t;

struct ngx_http_pd_arena_block_s {
    ngx_http_pd_arena_block_t  *next;
    u_char                      *pos;
    u_char                      *end;
};


static void *ngx_http_pd_unpack_alloc(void *data, size_t size);
static void ngx_http_pd_unpack_free(void *data, void *p);
static ngx_int_t ngx_http_pd_arena_grow(ngx_http_pd_arena_t *arena,
    size_t size);
static void ngx_http_pd_arena_reset(ngx_http_pd_arena_t *arena);


void *
ngx_http_pd_unpack(ngx_http_pd_arena_t *arena,
    const ProtobufCMessageDescriptor *type, const u_char *data, size_t len)
{
    ProtobufCAllocator  allocator;

    ngx_http_pd_arena_reset(arena);

    arena->stack = __builtin_frame_address(0);

    allocator.alloc = ngx_http_pd_unpack_alloc;
    allocator.free = ngx_http_pd_unpack_free;
    allocator.allocator_data = arena;

    return protobuf_c_message_unpack(type, &allocator, len, data);
}


static void *
ngx_http_pd_unpack_alloc(void *data, size_t size)
{
    ngx_http_pd_arena_t  *arena = data;

    u_char                      *p, *stack;
    ngx_http_pd_arena_block_t  *block;

    stack = __builtin_frame_address(0);

    if (arena->stack - stack > NGX_HTTP_PD_UNPACK_STACK) {
        return NULL;
    }

    if (size > NGX_HTTP_PD_UNPACK_MAX) {
        return NULL;
    }

    size = ngx_align(size, NGX_HTTP_PD_UNPACK_ALIGN);
    block = arena->blocks;

    if (block == NULL || (size_t) (block->end - block->pos) < size) {

        if (ngx_http_pd_arena_grow(arena, size) != NGX_OK) {
            return NULL;
        }

        block = arena->blocks;
    }

    p = block->pos;
    block->pos += size;

    return p;
}


static void
ngx_http_pd_unpack_free(void *data, void *p)
{
    /* all at once, by reset */
}


static ngx_int_t
ngx_http_pd_arena_grow(ngx_http_pd_arena_t *arena, size_t size)
{
    size_t                       header;
    u_char                      *p;
    ngx_http_pd_arena_block_t  *block;

    header = ngx_align(sizeof(ngx_http_pd_arena_block_t),
                       NGX_HTTP_PD_UNPACK_ALIGN);
    size = header + ngx_max(size, NGX_HTTP_PD_UNPACK_BLOCK);

    if (arena->size + size > NGX_HTTP_PD_UNPACK_MAX) {
        return NGX_ERROR;
    }

    p = ngx_alloc(size, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    block = (ngx_http_pd_arena_block_t *) p;
    block->next = arena->blocks;
    block->pos = p + header;
    block->end = p + size;

    arena->blocks = block;
    arena->size += size;

    return NGX_OK;
}


static void
ngx_http_pd_arena_reset(ngx_http_pd_arena_t *arena)
{
    ngx_http_pd_arena_block_t  *block;

    while (arena->blocks) {
        block = arena->blocks;

        if (block->next == NULL && arena->size <= NGX_HTTP_PD_UNPACK_KEEP) {
            block->pos = (u_char *) block
                         + ngx_align(sizeof(ngx_http_pd_arena_block_t),
                                     NGX_HTTP_PD_UNPACK_ALIGN);
            return;
        }

        arena->blocks = block->next;
        arena->size -= block->end - (u_char *) block;
        ngx_free(block);
    }
}


void
ngx_http_pd_arena_free(ngx_http_pd_arena_t *arena)
{
    ngx_http_pd_arena_block_t  *block;

    while (arena->blocks) {
        block = arena->blocks;
        arena->blocks = block->next;
        ngx_free(block);
    }

    arena->size = 0;
}
