#include "json_tree.h"

#include <stdlib.h>
#include <string.h>

enum { CAPTURE_NO, CAPTURE_WANTED, CAPTURE_RUNNING, CAPTURE_DONE };

struct walk {
    struct json_tree *tree;
    size_t room;
    int refuse;
    int capture;
    int depth, capture_depth;
    bool first; /* nothing in this container yet */
    bool value; /* behind a key */
};

static void append(char **text, size_t *length, const void *more, size_t count)
{
    *text = realloc(*text, *length + count + 1);
    memcpy(*text + *length, more, count);
    *length += count;
    (*text)[*length] = 0;
}

static void write_text(struct walk *walk, const void *text, size_t length)
{
    append(&walk->tree->text, &walk->tree->length, text, length);
}

static void write_string(struct walk *walk, const u_char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        char escape[8];

        if (text[i] >= 0x20 && text[i] != '"' && text[i] != '\\') {
            write_text(walk, text + i, 1);
            continue;
        }
        snprintf(escape, sizeof escape, "\\u%04x", text[i]);
        write_text(walk, escape, 6);
    }
}

static ngx_int_t event(struct walk *walk)
{
    return ++walk->tree->events == walk->refuse ? NGX_ABORT : NGX_OK;
}

static void separate(struct walk *walk)
{
    if (!walk->value && !walk->first)
        write_text(walk, ",", 1);
    walk->value = walk->first = false;
}

static ngx_int_t on_begin(void *data, ngx_http_pd_json_type_e type, ngx_str_t *text)
{
    static const char *const literals[] = {"null", "false", "true"};
    struct walk *walk = data;

    separate(walk);
    switch (type) {
    case NGX_HTTP_PD_JSON_NUMBER:
        write_text(walk, text->data, text->len);
        break;
    case NGX_HTTP_PD_JSON_STRING:
        write_text(walk, "\"", 1);
        break;
    case NGX_HTTP_PD_JSON_OBJECT:
    case NGX_HTTP_PD_JSON_ARRAY:
        write_text(walk, type == NGX_HTTP_PD_JSON_OBJECT ? "{" : "[", 1);
        walk->first = true;
        if (walk->capture == CAPTURE_WANTED && walk->depth == 1) {
            walk->capture = CAPTURE_RUNNING;
            walk->capture_depth = walk->depth;
            ngx_http_pd_json_raw_begin(&walk->tree->json);
        }
        walk->depth++;
        break;
    default:
        write_text(walk, literals[type], strlen(literals[type]));
    }
    return event(walk);
}

static ngx_int_t on_end(void *data, ngx_http_pd_json_type_e type)
{
    struct walk *walk = data;

    if (type == NGX_HTTP_PD_JSON_STRING) {
        write_text(walk, "\"", 1);
        return event(walk);
    }
    write_text(walk, type == NGX_HTTP_PD_JSON_OBJECT ? "}" : "]", 1);
    walk->first = false;
    walk->depth--;
    if (walk->capture == CAPTURE_RUNNING && walk->depth == walk->capture_depth) {
        walk->capture = CAPTURE_DONE;
        if (ngx_http_pd_json_raw_end(&walk->tree->json) != NGX_OK)
            return NGX_ABORT;
    }
    return event(walk);
}

static ngx_int_t on_key(void *data, ngx_str_t *name)
{
    struct walk *walk = data;

    separate(walk);
    write_text(walk, "\"", 1);
    write_string(walk, name->data, name->len);
    write_text(walk, "\":", 2);
    walk->value = true;
    return event(walk);
}

static ngx_int_t on_text(void *data, u_char *text, size_t length)
{
    write_string(data, text, length);
    return event(data);
}

static ngx_int_t on_raw(void *data, u_char *text, size_t length)
{
    struct walk *walk = data;

    append(&walk->tree->raw, &walk->tree->raw_length, text, length);
    return NGX_OK;
}

void json_tree_parse(struct json_tree *tree, const char *text, size_t length, size_t piece,
                     bool capture, int refuse)
{
    static const ngx_http_pd_json_handlers_t handlers = {on_begin, on_end, on_key, on_text, on_raw};
    struct walk walk = {.tree = tree,
                        .refuse = refuse,
                        .capture = capture ? CAPTURE_WANTED : CAPTURE_NO,
                        .first = true};

    memset(tree, 0, sizeof *tree);
    ngx_http_pd_json_init(&tree->json, &handlers, &walk);
    if (piece == 0)
        piece = length ? length : 1;
    for (size_t at = 0; at < length && tree->result == NGX_OK; at += piece) {
        size_t count = length - at < piece ? length - at : piece;
        u_char *copy = malloc(count);

        memcpy(copy, text + at, count);
        tree->result = ngx_http_pd_json_feed(&tree->json, copy, copy + count);
        free(copy);
    }
    if (tree->result == NGX_OK)
        tree->result = ngx_http_pd_json_end(&tree->json);
}

void json_tree_free(struct json_tree *tree)
{
    free(tree->text);
    free(tree->raw);
}
