#include "worker/link/clean.h"

#include <string.h>

#include "worker/text/unicode.h"

enum { CHARACTER_BYTES_MAX = 4 };

void pd_clean_text(char *text)
{
    size_t length = strlen(text), at = pd_utf8_valid(text, length);

    while (at < length) {
        if (length - at < CHARACTER_BYTES_MAX) {
            text[at] = '\0';
            return;
        }
        text[at++] = '?';
        at += pd_utf8_valid(text + at, length - at);
    }
}
