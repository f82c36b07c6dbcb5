/* Values of the template language, and the memory that they live in.
 *
 * Everything that one rendering makes lives in one arena with a stated bound and goes away with it;
 * nothing is freed alone. A string knows which of its bytes a client wrote; every operation keeps
 * that. */
#ifndef PD_JINJA_VALUE_H
#define PD_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/text/tokenizer.h"

/* ---- arena ----------------------------------------------------------------------------------- */

struct pd_arena_chunk;

struct pd_arena {
    struct pd_arena_chunk *chunks;
    char *free;    /* next free byte of the newest chunk */
    size_t left;   /* bytes left in it */
    size_t budget; /* bytes that may still be taken */
};

void pd_arena_init(struct pd_arena *arena, size_t budget);
/* Zeroed memory, aligned for anything; NULL when the budget or the system's memory is used up. */
void *pd_arena_take(struct pd_arena *arena, size_t bytes);
void pd_arena_free(struct pd_arena *arena);

/* ---- values ---------------------------------------------------------------------------------- */

enum pd_jinja_kind {
    PD_JINJA_UNDEFINED,
    PD_JINJA_NONE,
    PD_JINJA_BOOL,
    PD_JINJA_INT,
    PD_JINJA_FLOAT,
    PD_JINJA_STRING,
    PD_JINJA_LIST, /* a tuple is a list that prints with parentheses */
    PD_JINJA_DICT,
    PD_JINJA_NAMESPACE,
    PD_JINJA_MACRO,
    PD_JINJA_FUNCTION,
};

/* Who wrote the bytes of a string. */
enum pd_jinja_mark { PD_JINJA_TRUSTED, PD_JINJA_LITERAL, PD_JINJA_MIXED };

struct pd_jinja_string {
    const char *bytes; /* UTF-8 */
    size_t length;
    enum pd_jinja_mark mark;
    const uint8_t *marks; /* MIXED: for each byte 1 if a client wrote it */
};

struct pd_jinja_value {
    enum pd_jinja_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct pd_jinja_string string;
        struct pd_jinja_list *list;
        struct pd_jinja_dict *dict; /* DICT and NAMESPACE */
        const struct pd_jinja_node *macro;
        int function;             /* FUNCTION: enum pd_jinja_function */
        struct pd_string missing; /* UNDEFINED: the name that was not there */
    };
};

struct pd_jinja_list {
    struct pd_jinja_value *items;
    size_t count, capacity;
    bool tuple;
};

struct pd_jinja_entry {
    struct pd_jinja_value key, value;
};

struct pd_jinja_dict { /* in order of insertion, looked up from the front */
    struct pd_jinja_entry *entries;
    size_t count, capacity;
};

struct pd_jinja_value pd_jinja_undefined(struct pd_string name);
struct pd_jinja_value pd_jinja_none(void);
struct pd_jinja_value pd_jinja_bool(bool value);
struct pd_jinja_value pd_jinja_int(int64_t value);
struct pd_jinja_value pd_jinja_float(double value);
/* Borrows `bytes`; NULL is an empty string. */
struct pd_jinja_value pd_jinja_text(const char *bytes, size_t length, enum pd_jinja_mark mark);

/* Each returns false when the arena is used up. */
bool pd_jinja_list_new(struct pd_arena *arena, size_t capacity, struct pd_jinja_value *out);
bool pd_jinja_list_push(struct pd_arena *arena, struct pd_jinja_list *list,
                        struct pd_jinja_value item);
bool pd_jinja_dict_new(struct pd_arena *arena, size_t capacity, struct pd_jinja_value *out);
/* Replaces an entry of the same key. */
bool pd_jinja_dict_set(struct pd_arena *arena, struct pd_jinja_dict *dict,
                       struct pd_jinja_value key, struct pd_jinja_value value);
/* Appends without looking whether the key is there. */
bool pd_jinja_dict_append(struct pd_arena *arena, struct pd_jinja_dict *dict,
                          struct pd_jinja_value key, struct pd_jinja_value value);
const struct pd_jinja_value *pd_jinja_dict_get(const struct pd_jinja_dict *dict,
                                               const struct pd_jinja_value *key);
const struct pd_jinja_value *pd_jinja_dict_find(const struct pd_jinja_dict *dict, const char *key,
                                                size_t length);

bool pd_jinja_truth(const struct pd_jinja_value *value);
bool pd_jinja_equal(const struct pd_jinja_value *a, const struct pd_jinja_value *b);
/* Order of two numbers or two strings (-1, 0, 1); false where Python would raise. */
bool pd_jinja_compare(const struct pd_jinja_value *a, const struct pd_jinja_value *b, int *order);
const char *pd_jinja_kind_name(enum pd_jinja_kind kind); /* as Python's type names: "str" */

/* ---- building text --------------------------------------------------------------------------- */

/* A growing string with marks; on heap, so that a long output is not copied again and again in the
 * arena. */
struct pd_jinja_output {
    char *bytes;
    uint8_t *marks;
    size_t length, capacity, limit;
    bool full; /* the limit or the system's memory was reached: everything after is dropped */
};

void pd_jinja_output_init(struct pd_jinja_output *output, size_t limit);
void pd_jinja_output_free(struct pd_jinja_output *output);
void pd_jinja_output_put(struct pd_jinja_output *output, const char *bytes, size_t length,
                         bool literal);
void pd_jinja_output_string(struct pd_jinja_output *output, const struct pd_jinja_string *string);
/* Copies what was built into the arena as one string value. */
bool pd_jinja_output_value(const struct pd_jinja_output *output, struct pd_arena *arena,
                           struct pd_jinja_value *value);

/* A part of a string, with its marks. */
struct pd_jinja_string pd_jinja_substring(const struct pd_jinja_string *string, size_t first,
                                          size_t length);

/* Appends str(value) (or repr(value)) as Python writes it. Nesting deeper than 64 prints "...". */
void pd_jinja_print(struct pd_jinja_output *output, const struct pd_jinja_value *value, bool repr);

struct pd_jinja_json_style {
    int indent; /* < 0: on one line */
    bool sort_keys, ascii;
    struct pd_string item_separator, key_separator;
};

/* Appends value as json.dumps does; false for a value that is not JSON (undefined, a macro). */
bool pd_jinja_to_json(struct pd_jinja_output *output, const struct pd_jinja_value *value,
                      const struct pd_jinja_json_style *style);

/* Parses JSON that a client wrote: every string of it is LITERAL. */
int pd_jinja_from_json(struct pd_arena *arena, struct pd_string json, struct pd_jinja_value *out,
                       struct pd_error *error);

#endif
