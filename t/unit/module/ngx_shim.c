#include "ngx_shim.h"

#include <inttypes.h>
#include <stdbool.h>

/* A pool is a list of pieces: `current` is taken for its head, the other members stay unused. */
struct piece {
    struct piece *next;
    max_align_t data[];
};

static size_t pool_bytes;
static long allocations_left = -1;

static ngx_cycle_t shim_cycle;
volatile ngx_cycle_t *ngx_cycle = &shim_cycle;
ngx_pid_t ngx_pid;
ngx_uint_t ngx_pagesize = 4096;

ngx_pool_t *shim_pool_create(void)
{
    return calloc(1, sizeof(ngx_pool_t));
}

void shim_pool_destroy(ngx_pool_t *pool)
{
    struct piece *next;

    for (struct piece *piece = (void *)pool->current; piece; piece = next) {
        next = piece->next;
        free(piece);
    }
    free(pool);
}

size_t shim_pool_bytes(void)
{
    size_t bytes = pool_bytes;

    pool_bytes = 0;
    return bytes;
}

void shim_fail_after(long count)
{
    allocations_left = count;
}

static int refused(void)
{
    if (allocations_left < 0)
        return 0;
    if (allocations_left == 0)
        return 1;
    allocations_left--;
    return 0;
}

void *ngx_palloc(ngx_pool_t *pool, size_t size)
{
    struct piece *piece;

    if (refused())
        return NULL;
    piece = malloc(sizeof(struct piece) + size);
    piece->next = (void *)pool->current;
    pool->current = (void *)piece;
    pool_bytes += size;
    return piece->data;
}

void *ngx_pnalloc(ngx_pool_t *pool, size_t size)
{
    return ngx_palloc(pool, size);
}

void *ngx_pcalloc(ngx_pool_t *pool, size_t size)
{
    void *data = ngx_palloc(pool, size);

    return data ? memset(data, 0, size) : NULL;
}

void *ngx_alloc(size_t size, ngx_log_t *log)
{
    (void)log;
    return refused() ? NULL : malloc(size);
}

void *ngx_calloc(size_t size, ngx_log_t *log)
{
    (void)log;
    return refused() ? NULL : calloc(1, size);
}

uint64_t shim_clock_us = 1000000000;

uint64_t ngx_http_pd_now_us(void)
{
    return shim_clock_us;
}

ngx_int_t ngx_atoi(u_char *line, size_t n)
{
    ngx_int_t value = 0;

    if (n == 0 || n > 18)
        return NGX_ERROR;
    for (; n--; line++) {
        if (*line < '0' || *line > '9')
            return NGX_ERROR;
        value = value * 10 + *line - '0';
    }
    return value;
}

time_t ngx_atotm(u_char *line, size_t n)
{
    return ngx_atoi(line, n);
}

static ngx_time_t now = {.sec = 1764441230};
volatile ngx_time_t *ngx_cached_time = &now;

void *ngx_array_push(ngx_array_t *array)
{
    if (array->nelts == array->nalloc) {
        void *data = ngx_palloc(array->pool, 2 * array->nalloc * array->size);

        if (!data)
            return NULL;
        memcpy(data, array->elts, array->nelts * array->size);
        array->elts = data;
        array->nalloc *= 2;
    }
    return (u_char *)array->elts + array->size * array->nelts++;
}

ngx_chain_t *ngx_alloc_chain_link(ngx_pool_t *pool)
{
    return ngx_palloc(pool, sizeof(ngx_chain_t));
}

ngx_buf_t *ngx_create_temp_buf(ngx_pool_t *pool, size_t size)
{
    ngx_buf_t *buf = ngx_pcalloc(pool, sizeof(ngx_buf_t));

    if (!buf || !(buf->start = ngx_palloc(pool, size)))
        return NULL;
    buf->pos = buf->last = buf->start;
    buf->end = buf->start + size;
    buf->temporary = 1;
    return buf;
}

ngx_chain_t *ngx_chain_get_free_buf(ngx_pool_t *pool, ngx_chain_t **free_list)
{
    ngx_chain_t *link = *free_list;

    if (link) {
        *free_list = link->next;
        link->next = NULL;
        return link;
    }
    link = ngx_palloc(pool, sizeof(ngx_chain_t));
    if (!link || !(link->buf = ngx_pcalloc(pool, sizeof(ngx_buf_t))))
        return NULL;
    link->next = NULL;
    return link;
}

/* ---- formats: %V %*s %s %d %i %z %O %L %D %T, and u before the last six; %0 and a width before x of
 * some of these ---- */

static u_char *put(u_char *to, u_char *last, const void *text, size_t length)
{
    if (length > (size_t)(last - to))
        length = (size_t)(last - to);
    memcpy(to, text, length);
    return to + length;
}

struct number_format {
    bool is_unsigned, hexadecimal;
    int width; /* with zeros before it */
};

static u_char *put_number(u_char *to, u_char *last, char kind, struct number_format format,
                          va_list *arguments)
{
    char text[32];
    int64_t number;

    switch (kind) {
    case 'i':
        number = va_arg(*arguments, ngx_int_t);
        break;
    case 'z':
        number = va_arg(*arguments, ssize_t);
        break;
    case 'O':
        number = va_arg(*arguments, off_t);
        break;
    case 'T':
        number = va_arg(*arguments, time_t);
        break;
    case 'L':
        number = va_arg(*arguments, int64_t);
        break;
    case 'D':
        number = format.is_unsigned ? (int64_t)va_arg(*arguments, uint32_t)
                                    : va_arg(*arguments, int32_t);
        break;
    case 'd':
        number =
            format.is_unsigned ? (int64_t)va_arg(*arguments, unsigned) : va_arg(*arguments, int);
        break;
    default:
        abort(); /* the module has learned a format that this file has not */
    }
    if (format.hexadecimal)
        snprintf(text, sizeof text, "%0*" PRIx64, format.width, number);
    else
        snprintf(text, sizeof text, format.is_unsigned ? "%" PRIu64 : "%" PRId64, number);
    return put(to, last, text, strlen(text));
}

u_char *ngx_vslprintf(u_char *to, u_char *last, const char *format, va_list caller_arguments)
{
    va_list arguments;

    va_copy(arguments, caller_arguments);
    for (; *format; format++) {
        struct number_format number = {0};

        if (*format != '%') {
            to = put(to, last, format, 1);
            continue;
        }
        if (*++format == '0')
            number.width = (int)strtol(format, (char **)&format, 10);
        if (*format == 'u' || *format == 'x') {
            number.is_unsigned = true;
            number.hexadecimal = *format++ == 'x';
        }
        if (*format == 'V') {
            const ngx_str_t *text = va_arg(arguments, ngx_str_t *);
            to = put(to, last, text->data, text->len);
        } else if (*format == '*') {
            size_t length = va_arg(arguments, size_t);
            format++;
            to = put(to, last, va_arg(arguments, u_char *), length);
        } else if (*format == 's') {
            const char *text = va_arg(arguments, char *);
            to = put(to, last, text, strlen(text));
        } else {
            to = put_number(to, last, *format, number, &arguments);
        }
    }
    va_end(arguments);
    return to;
}

u_char *ngx_slprintf(u_char *to, u_char *last, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    to = ngx_vslprintf(to, last, format, arguments);
    va_end(arguments);
    return to;
}

u_char *ngx_sprintf(u_char *to, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    to = ngx_vslprintf(to, (u_char *)UINTPTR_MAX, format, arguments);
    va_end(arguments);
    return to;
}
