/* Python's string operations on marked UTF-8 strings. Positions and lengths that a template sees
 * are characters; every result keeps the marks of the bytes it is made of. */
#ifndef PD_JINJA_TEXT_H
#define PD_JINJA_TEXT_H

#include "worker/text/jinja_render.h"

size_t pd_jinja_characters(const struct pd_jinja_string *string);
/* Byte offset of character `index`, or the length if there are fewer. */
size_t pd_jinja_offset(const struct pd_jinja_string *string, size_t index);
/* Byte offset of `needle` at or after `from`, or SIZE_MAX. */
size_t pd_jinja_find(const struct pd_jinja_string *string, const struct pd_jinja_string *needle,
                     size_t from);

/* Strips characters of `set` (NULL: white space) from the ends asked for. */
struct pd_jinja_string pd_jinja_strip(const struct pd_jinja_string *string,
                                      const struct pd_jinja_string *set, bool left, bool right);

bool pd_jinja_replace(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                      const struct pd_jinja_string *old, const struct pd_jinja_string *with,
                      int64_t count, struct pd_jinja_value *out);

/* split(separator, count): separator NULL splits at white space; count < 0: no limit. */
bool pd_jinja_split(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                    const struct pd_jinja_string *separator, int64_t count,
                    struct pd_jinja_value *out);
bool pd_jinja_rsplit(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                     const struct pd_jinja_string *separator, int64_t count,
                     struct pd_jinja_value *out);
bool pd_jinja_splitlines(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                         bool keep, struct pd_jinja_value *out);

enum pd_jinja_case { PD_JINJA_UPPER, PD_JINJA_LOWER, PD_JINJA_TITLE, PD_JINJA_CAPITALIZE };
/* `python`: str.title() begins a word after any uncased character; the filter only after white
 * space and brackets. */
bool pd_jinja_change_case(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                          enum pd_jinja_case mode, bool python, struct pd_jinja_value *out);

/* Whether every character satisfies `is` (and there is one). */
bool pd_jinja_all(const struct pd_jinja_string *string, bool (*is)(int32_t character));
bool pd_jinja_is_space(int32_t character);
bool pd_jinja_is_digit(int32_t character);
bool pd_jinja_is_letter(int32_t character);
bool pd_jinja_is_alnum(int32_t character);

/* start:stop:step as Python slices a sequence of `length`: the first index, the step and how many.
 */
bool pd_jinja_slice_range(struct pd_jinja_render *render, const struct pd_jinja_value *start,
                          const struct pd_jinja_value *stop, const struct pd_jinja_value *step,
                          size_t length, int64_t *first, int64_t *stride, size_t *count);
bool pd_jinja_slice_string(struct pd_jinja_render *render, const struct pd_jinja_string *string,
                           int64_t first, int64_t stride, size_t count, struct pd_jinja_value *out);

/* Joins items with a separator; `attribute` NULL or the item's attribute to take. */
bool pd_jinja_join(struct pd_jinja_render *render, const struct pd_jinja_list *items,
                   const struct pd_jinja_string *separator, struct pd_jinja_value *out);

#endif
