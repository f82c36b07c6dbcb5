/* The module's JSON parser with all its events written down, as JSON again. */
#ifndef JSON_TREE_H
#define JSON_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "ngx_http_pd_json.h"

struct json_tree {
    ngx_http_pd_json_t json; /* as the parse left it */
    ngx_int_t result;        /* NGX_OK, NGX_ERROR or NGX_ABORT */
    char *text;              /* the document again, from events */
    size_t length;
    char *raw; /* what was captured */
    size_t raw_length;
    int events;
};

/* Feeds `text` in pieces of `piece` bytes (0: all at once), each in memory of its own, so that a
 * sanitizer sees a look behind its end. With `capture` the first object or array inside another is
 * captured too. A handler refuses event number `refuse` (0: none). */
void json_tree_parse(struct json_tree *tree, const char *text, size_t length, size_t piece,
                     bool capture, int refuse);
void json_tree_free(struct json_tree *tree);

#endif
