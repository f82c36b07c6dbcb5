
/*
 * Prefixes of a prompt: see the header.
 *
 * The prompt is read where it lies, in the wire's format.  All that is read was
 * written here, by the parser of the API, so lengths are as it writes them: two
 * bytes for short strings, five for the rest.  A length that does not fit ends
 * the scan with the points that there are.
 */


#include "ngx_http_pd_prefix.h"

#include <endian.h>


#define NGX_HTTP_PD_PREFIX_CHAT       0x52    /* Submit.chat */
#define NGX_HTTP_PD_PREFIX_TOKENS     0x62    /* Submit.tokens */
#define NGX_HTTP_PD_PREFIX_MESSAGE    0x0a    /* ChatPrompt.messages */
#define NGX_HTTP_PD_PREFIX_FLAG       0x18    /* ChatMessage.content_null */
#define NGX_HTTP_PD_PREFIX_ROLE       0x0a    /* ChatMessage.role */
#define NGX_HTTP_PD_PREFIX_CONTENT    0x12    /* ChatMessage.content */

#define NGX_HTTP_PD_PREFIX_FIRST      256     /* bytes: the first point */

#define NGX_HTTP_PD_PREFIX_PRIME      0x9e3779b97f4a7c15u


/* a place in a rope */

typedef struct {
    ngx_chain_t                *cl;
    u_char                     *pos;
} ngx_http_pd_prefix_reader_t;


static void ngx_http_pd_prefix_chat(ngx_http_pd_prefix_t *prefix,
    ngx_http_pd_prefix_reader_t *in, size_t left);
static size_t ngx_http_pd_prefix_message(ngx_http_pd_prefix_t *prefix,
    ngx_http_pd_prefix_reader_t *in, size_t left);
static void ngx_http_pd_prefix_read(ngx_http_pd_prefix_t *prefix,
    ngx_http_pd_prefix_reader_t *in, size_t len);
static size_t ngx_http_pd_prefix_length(ngx_http_pd_prefix_reader_t *in,
    ngx_uint_t n);
static ngx_int_t ngx_http_pd_prefix_byte(ngx_http_pd_prefix_reader_t *in);
static void ngx_http_pd_prefix_text(ngx_http_pd_prefix_t *prefix, u_char *p,
    size_t len);
static void ngx_http_pd_prefix_end(ngx_http_pd_prefix_t *prefix);
static void ngx_http_pd_tail_mark(ngx_http_pd_tail_t *tail, u_char mark);


/* both halves of a wide product, each bit of which depends on all */

static ngx_inline uint64_t
ngx_http_pd_prefix_mix(uint64_t hash, uint64_t word)
{
#if (__SIZEOF_INT128__)

    unsigned __int128  product;

    product = (unsigned __int128) (hash ^ word) * NGX_HTTP_PD_PREFIX_PRIME;

    return (uint64_t) product ^ (uint64_t) (product >> 64);

#else

    hash = (hash ^ word) * NGX_HTTP_PD_PREFIX_PRIME;

    return hash ^ (hash >> 32);

#endif
}


static ngx_inline uint64_t
ngx_http_pd_prefix_word(uint64_t hash, u_char *p)
{
    uint64_t  word;

    ngx_memcpy(&word, p, sizeof(uint64_t));

    return ngx_http_pd_prefix_mix(hash, le64toh(word));
}


/* up to 8 bytes, the first one lowest: two reads that overlap, or bytes */

static ngx_inline uint64_t
ngx_http_pd_prefix_short(u_char *p, size_t n)
{
    uint32_t    first, last;
    uint64_t    word;
    ngx_uint_t  i;

    if (n >= 4) {
        ngx_memcpy(&first, p, 4);
        ngx_memcpy(&last, p + n - 4, 4);

        return le32toh(first) | (uint64_t) le32toh(last) << (n - 4) * 8;
    }

    word = 0;

    for (i = 0; i < n; i++) {
        word |= (uint64_t) p[i] << i * 8;
    }

    return word;
}


/* up to 8 bytes of text: they fill the word, and may begin the next */

static ngx_inline void
ngx_http_pd_tail_short(ngx_http_pd_tail_t *tail, u_char *p, size_t n)
{
    uint64_t    bytes;
    ngx_uint_t  shift;

    bytes = ngx_http_pd_prefix_short(p, n);
    shift = tail->bytes % 8 * 8;

    tail->bytes += n;
    tail->word |= bytes << shift;

    if (shift + n * 8 >= 64) {
        tail->hash = ngx_http_pd_prefix_mix(tail->hash, tail->word);
        tail->word = shift ? bytes >> (64 - shift) : 0;
    }
}


void
ngx_http_pd_prefix_scan(ngx_http_pd_prefix_t *prefix, ngx_chain_t *prompt,
    uint64_t seed)
{
    size_t                       len;
    ngx_int_t                    tag;
    ngx_http_pd_prefix_reader_t  in;

    ngx_memzero(prefix, offsetof(ngx_http_pd_prefix_t, end));
    in.cl = prompt;
    in.pos = prompt ? prompt->buf->pos : NULL;

    tag = ngx_http_pd_prefix_byte(&in);
    len = ngx_http_pd_prefix_length(&in, 5);

    prefix->tail.hash = ngx_http_pd_prefix_mix(seed, (uint64_t) tag);
    prefix->next = NGX_HTTP_PD_PREFIX_FIRST;

    if (tag == NGX_HTTP_PD_PREFIX_CHAT) {
        prefix->chat = 1;
        ngx_http_pd_prefix_chat(prefix, &in, len);
        return;
    }

    if (tag == NGX_HTTP_PD_PREFIX_TOKENS) {
        (void) ngx_http_pd_prefix_byte(&in);
        len = ngx_http_pd_prefix_length(&in, 5);
    }

    ngx_http_pd_prefix_read(prefix, &in, len);
}


static void
ngx_http_pd_prefix_chat(ngx_http_pd_prefix_t *prefix,
    ngx_http_pd_prefix_reader_t *in, size_t left)
{
    size_t  len;

    while (left >= 6
           && ngx_http_pd_prefix_byte(in) == NGX_HTTP_PD_PREFIX_MESSAGE)
    {
        len = ngx_http_pd_prefix_length(in, 5);

        if (len > left - 6
            || ngx_http_pd_prefix_message(prefix, in, len) != len)
        {
            return;
        }

        ngx_http_pd_prefix_end(prefix);

        left -= 6 + len;
    }
}


/* bytes read: all, unless it is not what it should be */

static size_t
ngx_http_pd_prefix_message(ngx_http_pd_prefix_t *prefix,
    ngx_http_pd_prefix_reader_t *in, size_t left)
{
    size_t      all, len;
    ngx_int_t   tag;
    ngx_uint_t  n;

    all = left;

    while (left) {
        tag = ngx_http_pd_prefix_byte(in);

        /* content, reasoning and tool calls have long lengths */

        n = (tag == NGX_HTTP_PD_PREFIX_FLAG) ? 1
            : (tag == NGX_HTTP_PD_PREFIX_CONTENT || tag == 0x2a || tag == 0x3a)
              ? 5 : 2;

        if (tag == NGX_ERROR || left < 1 + n) {
            break;
        }

        len = ngx_http_pd_prefix_length(in, n);
        left -= 1 + n;

        if (n == 1) {
            continue;
        }

        if (len > left) {
            break;
        }

        ngx_http_pd_tail_mark(&prefix->tail, (u_char) tag);
        ngx_http_pd_prefix_read(prefix, in, len);
        left -= len;
    }

    return all - left;
}


static void
ngx_http_pd_prefix_read(ngx_http_pd_prefix_t *prefix,
    ngx_http_pd_prefix_reader_t *in, size_t len)
{
    size_t  n;

    while (len && in->cl) {
        n = ngx_min((size_t) (in->cl->buf->last - in->pos), len);

        ngx_http_pd_prefix_text(prefix, in->pos, n);

        in->pos += n;
        len -= n;

        if (len) {
            in->cl = in->cl->next;
            in->pos = in->cl ? in->cl->buf->pos : NULL;
        }
    }
}


/* a varint of "n" bytes */

static size_t
ngx_http_pd_prefix_length(ngx_http_pd_prefix_reader_t *in, ngx_uint_t n)
{
    size_t      len;
    ngx_int_t   ch;
    ngx_uint_t  i;

    len = 0;

    for (i = 0; i < n; i++) {
        ch = ngx_http_pd_prefix_byte(in);

        if (ch == NGX_ERROR) {
            return 0;
        }

        len |= (size_t) (ch & 0x7f) << (7 * i);
    }

    return len;
}


static ngx_int_t
ngx_http_pd_prefix_byte(ngx_http_pd_prefix_reader_t *in)
{
    while (in->cl && in->pos == in->cl->buf->last) {
        in->cl = in->cl->next;
        in->pos = in->cl ? in->cl->buf->pos : NULL;
    }

    return in->cl ? *in->pos++ : NGX_ERROR;
}


static void
ngx_http_pd_prefix_text(ngx_http_pd_prefix_t *prefix, u_char *p, size_t len)
{
    size_t                n;
    ngx_http_pd_point_t  *point;

    while (len) {
        n = ngx_min(prefix->next - prefix->tail.bytes, len);

        ngx_http_pd_tail_text(&prefix->tail, p, n);

        p += n;
        len -= n;

        if (prefix->tail.bytes < prefix->next) {
            return;
        }

        if (prefix->sizes == NGX_HTTP_PD_PREFIX_SIZES) {
            prefix->next = (size_t) -1;
            continue;
        }

        point = &prefix->size[prefix->sizes];

        point->hash = prefix->tail.hash;
        point->bytes = prefix->tail.bytes;

        /* half way to the next power of two, or there */

        prefix->next += (prefix->sizes % 2) ? prefix->next / 3
                                            : prefix->next / 2;
        prefix->sizes++;
    }
}


static void
ngx_http_pd_prefix_end(ngx_http_pd_prefix_t *prefix)
{
    ngx_http_pd_tail_end(&prefix->tail,
                         &prefix->end[prefix->ends++
                                      % NGX_HTTP_PD_PREFIX_ENDS]);
}


/* the same hash whatever the pieces are: words begin where the text does */

void
ngx_http_pd_tail_text(ngx_http_pd_tail_t *tail, u_char *p, size_t len)
{
    size_t     n;
    u_char    *last;
    uint64_t   hash;

    if (len <= 8) {
        ngx_http_pd_tail_short(tail, p, len);
        return;
    }

    n = (8 - tail->bytes % 8) % 8;

    ngx_http_pd_tail_short(tail, p, n);

    last = p + len;
    p += n;

    tail->bytes += (last - p) & ~(size_t) 7;
    hash = tail->hash;

    for ( /* void */ ; last - p >= 32; p += 32) {
        hash = ngx_http_pd_prefix_word(hash, p);
        hash = ngx_http_pd_prefix_word(hash, p + 8);
        hash = ngx_http_pd_prefix_word(hash, p + 16);
        hash = ngx_http_pd_prefix_word(hash, p + 24);
    }

    for ( /* void */ ; last - p >= 8; p += 8) {
        hash = ngx_http_pd_prefix_word(hash, p);
    }

    tail->hash = hash;

    ngx_http_pd_tail_short(tail, p, last - p);
}


/* where a field begins, and where a message ends: lengths are not hashed */

static void
ngx_http_pd_tail_mark(ngx_http_pd_tail_t *tail, u_char mark)
{
    tail->hash = ngx_http_pd_prefix_mix(tail->hash, tail->bytes * 256 + mark);
}


void
ngx_http_pd_tail_end(ngx_http_pd_tail_t *tail, ngx_http_pd_point_t *point)
{
    ngx_http_pd_tail_mark(tail, NGX_HTTP_PD_PREFIX_MESSAGE);

    point->hash = ngx_http_pd_prefix_mix(tail->hash, tail->word);
    point->bytes = tail->bytes;
}


/* as the client will send it back */

void
ngx_http_pd_tail_answer(ngx_http_pd_tail_t *tail)
{
    static u_char  role[] = "assistant";

    ngx_http_pd_tail_mark(tail, NGX_HTTP_PD_PREFIX_ROLE);
    ngx_http_pd_tail_text(tail, role, sizeof(role) - 1);
    ngx_http_pd_tail_mark(tail, NGX_HTTP_PD_PREFIX_CONTENT);
}


