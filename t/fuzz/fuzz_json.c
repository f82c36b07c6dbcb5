/* The module's JSON parser beside jansson: both take or both refuse, and what both take is the
 * same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "json_tree.h"
#include "ngx_http_pd_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the two differ in on purpose: depth, length of a number or key, magnitude of a number. */
static int beyond_either(const struct json_tree *tree, const json_error_t *error)
{
    enum json_error_code code = json_error_code(error);

    return code == json_error_numeric_overflow || code == json_error_null_byte_in_key ||
           (tree->json.error &&
            (strstr(tree->json.error, "nested") || strstr(tree->json.error, "too long")));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_tree whole, pieces;
    size_t piece;
    json_error_t error = {.line = 0};
    json_t *expected, *got;

    if (size < 1)
        return 0;
    piece = 1 + data[0] % 32;
    data++;
    size--;

    json_tree_parse(&whole, (const char *)data, size, 0, false, 0);
    json_tree_parse(&pieces, (const char *)data, size, piece, data[-1] & 0x80, 0);
    if (whole.result != pieces.result ||
        (whole.result == NGX_OK &&
         (whole.length != pieces.length || memcmp(whole.text, pieces.text, whole.length))) ||
        (whole.result != NGX_OK && whole.json.error_offset != pieces.json.error_offset))
        abort();

    expected = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (memchr(data, 0, size)) {
        if (whole.result == NGX_OK) /* jansson may take the zero byte for the end */
            abort();
    } else if (!beyond_either(&whole, &error)) {
        if ((whole.result == NGX_OK) != (expected != NULL))
            abort();
        if (expected && size <= NGX_HTTP_PD_JSON_TOKEN) {
            got = json_loadb(whole.text, whole.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            if (!got || !json_equal(expected, got))
                abort();
            json_decref(got);
        }
    }
    json_decref(expected);
    json_tree_free(&whole);
    json_tree_free(&pieces);
    return 0;
}
