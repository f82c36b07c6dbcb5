/* A tokenizer.model from a stranger: it is refused with words, or becomes a tokenizer. In front of what the fuzzer says are the
 * pieces that a file must have, so that it need not find them first; its first byte says whether. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The settings that are supported, all 256 bytes and two pieces. */
static size_t begin(uint8_t *out)
{
    static const char head[] = "\x12\x05\x18\x02\x98\x02\x01\x1a\x02\x20\x00"
                               "\x0a\x08\x0a\x01z\x15\0\0\x80\xbf"
                               "\x0a\x09\x0a\x02zz\x15\0\0\0\xc0";
    size_t length = sizeof(head) - 1;

    memcpy(out, head, length);
    for (unsigned i = 0; i < 256; i++) {
        char piece[16];

        snprintf(piece, sizeof(piece), "\n\n\n\x06<0x%02X>\x18\x06", i);
        memcpy(out + length, piece, 12);
        length += 12;
    }
    return length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "zz \xe2\x96\x81 a\xc3\xa9<s>";
    static uint8_t file[1 << 14];
    struct pd_tokenizer *tokenizer;
    struct pd_tokens tokens = {0};
    struct pd_error error = {PD_OK, ""};
    size_t length = 0;

    if (size == 0 || size > 8192)
        return 0;
    if (data[0] % 4 > 0)
        length = begin(file);
    memcpy(file + length, data + 1, size - 1);
    if (pd_tokenizer_from_sentencepiece(file, length + size - 1, NULL, 0, &tokenizer, &error) !=
        PD_OK) {
        if (error.text[0] == '\0' || (size == 1 && length > 0))
            abort();
        return 0;
    }
    pd_tokenizer_encode(tokenizer, text, sizeof(text) - 1, NULL, 0, 40, &tokens, &error);
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(tokenizer);
    return 0;
}
