#include "worker/text/jinja_lexer.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void pd_jinja_lexer_init(struct pd_jinja_lexer *lexer, const char *source, size_t length,
                         struct pd_arena *arena)
{
    if (length && source[length - 1] == '\n')
        length--;
    *lexer = (struct pd_jinja_lexer){.source = source,
                                     .end = source + length,
                                     .at = source,
                                     .arena = arena,
                                     .line = 1,
                                     .line_start = source};
}

static void advance_to(struct pd_jinja_lexer *lexer, const char *to)
{
    for (; lexer->at < to; lexer->at++) {
        if (*lexer->at == '\n') {
            lexer->line++;
            lexer->line_start = lexer->at + 1;
        }
    }
}

static int fault(const struct pd_jinja_lexer *lexer, struct pd_error *error, const char *what)
{
    return pd_fail(error, PD_INVALID, "line %d, column %d: %s", lexer->line,
                   (int)(lexer->at - lexer->line_start) + 1, what);
}

static void set_place(const struct pd_jinja_lexer *lexer, struct pd_jinja_token *token)
{
    token->line = lexer->line;
    token->column = (int)(lexer->at - lexer->line_start) + 1;
}

static bool starts(const struct pd_jinja_lexer *lexer, const char *at, const char *text)
{
    size_t length = strlen(text);

    return (size_t)(lexer->end - at) >= length && memcmp(at, text, length) == 0;
}

/* ---- text between tags ----------------------------------------------------------------------- */

static const char *next_tag(const struct pd_jinja_lexer *lexer)
{
    for (const char *at = lexer->at; at + 1 < lexer->end; at++)
        if (at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#'))
            return at;
    return lexer->end;
}

/* Where the data before `tag` ends once the tag's left edge has taken its white space. */
static const char *trimmed_end(const struct pd_jinja_lexer *lexer, const char *start,
                               const char *tag)
{
    const char *end = tag;

    if (tag + 2 < lexer->end && tag[2] == '-') {
        while (end > start && isspace((unsigned char)end[-1]))
            end--;
        return end;
    }
    if (tag < lexer->end && tag[1] != '{' && !(tag + 2 < lexer->end && tag[2] == '+')) {
        while (end > start && isspace((unsigned char)end[-1]) && end[-1] != '\n')
            end--;
        /* Only blanks stood between the line's start and the tag. */
        if (end == lexer->source || end[-1] == '\n')
            return end;
    }
    return tag;
}

static void skip_trimmed(struct pd_jinja_lexer *lexer)
{
    const char *at = lexer->at;

    if (!lexer->trim_next)
        return;
    lexer->trim_next = false;
    while (at < lexer->end && isspace((unsigned char)*at))
        at++;
    advance_to(lexer, at);
}

/* Behind the two characters that close a block or a comment: trim_blocks takes one newline. */
static void close_block(struct pd_jinja_lexer *lexer, const char *close)
{
    char edge = close[-1];

    advance_to(lexer, close + 2);
    if (edge == '-')
        lexer->trim_next = true;
    else if (edge != '+' && starts(lexer, lexer->at, "\n"))
        advance_to(lexer, lexer->at + 1);
}

static int skip_comment(struct pd_jinja_lexer *lexer, struct pd_error *error)
{
    const char *close = memmem(lexer->at + 2, (size_t)(lexer->end - lexer->at - 2), "#}", 2);

    if (!close)
        return fault(lexer, error, "a {# comment is not closed");
    close_block(lexer, close);
    return PD_OK;
}

/* {% raw %} ... {% endraw %}: gives the inside as data. Returns 1 if there was one. */
static int raw_block(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                     struct pd_error *error)
{
    const char *at = lexer->at + 2, *start;
    struct pd_jinja_lexer inner;

    at += at < lexer->end && (*at == '-' || *at == '+');
    while (at < lexer->end && isspace((unsigned char)*at))
        at++;
    if (!starts(lexer, at, "raw"))
        return 0;
    at += 3;
    while (at < lexer->end && isspace((unsigned char)*at))
        at++;
    at += at < lexer->end && (*at == '-' || *at == '+');
    if (!starts(lexer, at, "%}"))
        return 0;
    close_block(lexer, at);
    skip_trimmed(lexer);
    set_place(lexer, token);
    start = lexer->at;
    inner = *lexer;
    for (;;) {
        const char *tag = next_tag(&inner), *word = tag + 2;

        if (tag == lexer->end)
            return fault(lexer, error, "{% raw %} has no {% endraw %}");
        inner.at = tag + 1;
        word += word < lexer->end && (*word == '-' || *word == '+');
        while (word < lexer->end && isspace((unsigned char)*word))
            word++;
        if (tag[1] != '%' || !starts(lexer, word, "endraw"))
            continue;
        word = memmem(word, (size_t)(lexer->end - word), "%}", 2);
        if (!word)
            return fault(lexer, error, "{% endraw is not closed");
        token->kind = PD_JINJA_T_DATA;
        token->text.bytes = start;
        token->text.length = (size_t)(trimmed_end(lexer, start, tag) - start);
        advance_to(lexer, tag);
        close_block(lexer, word);
        return 1;
    }
}

static int data_token(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                      struct pd_error *error)
{
    for (;;) {
        const char *start, *tag, *end;
        int raw;

        skip_trimmed(lexer);
        set_place(lexer, token);
        start = lexer->at;
        tag = next_tag(lexer);
        end = trimmed_end(lexer, start, tag);
        advance_to(lexer, tag);
        if (end > start) {
            token->kind = PD_JINJA_T_DATA;
            token->text = (struct pd_string){start, (size_t)(end - start)};
            return PD_OK;
        }
        set_place(lexer, token);
        if (tag == lexer->end) {
            token->kind = PD_JINJA_T_END;
            return PD_OK;
        }
        if (tag[1] == '#') {
            if (skip_comment(lexer, error) != PD_OK)
                return PD_INVALID;
            continue;
        }
        raw = tag[1] == '%' ? raw_block(lexer, token, error) : 0;
        if (raw < 0)
            return PD_INVALID;
        if (raw > 0) {
            if (token->text.length == 0)
                continue;
            return PD_OK;
        }
        token->kind = tag[1] == '{' ? PD_JINJA_T_OUTPUT : PD_JINJA_T_BLOCK;
        lexer->in_output = tag[1] == '{';
        lexer->in_block = !lexer->in_output;
        lexer->braces = 0;
        advance_to(lexer, tag + 2);
        if (starts(lexer, lexer->at, "-") || (lexer->in_block && starts(lexer, lexer->at, "+")))
            lexer->at++;
        return PD_OK;
    }
}

/* ---- inside a tag ---------------------------------------------------------------------------- */

static size_t put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (code >> 18 & 7));
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* \xNN, \uNNNN, \UNNNNNNNN: *at stands on the letter and is moved behind the digits. */
static bool hex_escape(const char **at, const char *end, char *out, size_t *length)
{
    size_t digits = **at == 'x' ? 2 : **at == 'u' ? 4 : 8;
    uint32_t code = 0;

    if ((size_t)(end - *at) <= digits)
        return false;
    for (size_t i = 1; i <= digits; i++) {
        char c = (*at)[i];

        if (!isxdigit((unsigned char)c))
            return false;
        code = code << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return false;
    *length += put_utf8(out + *length, code);
    *at += digits + 1;
    return true;
}

static int string_token(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                        struct pd_error *error)
{
    static const char letters[] = "nrtbfav0\\'\"", bytes[] = "\n\r\t\b\f\a\v\0\\'\"";
    char quote = *lexer->at;
    const char *at = lexer->at + 1, *close = at;
    size_t length = 0;
    char *text;

    while (close < lexer->end && *close != quote)
        close += *close == '\\' ? 2 : 1;
    if (close >= lexer->end)
        return fault(lexer, error, "a string is not closed");
    /* No escape is shorter than what it stands for. */
    text = pd_arena_take(lexer->arena, (size_t)(close - at) + 1);
    if (!text)
        return fault(lexer, error, "the template is too large");
    while (at < close) {
        const char *letter;

        if (*at != '\\') {
            text[length++] = *at++;
            continue;
        }
        at++;
        if (*at == 'x' || *at == 'u' || *at == 'U') {
            if (!hex_escape(&at, close + 1, text, &length))
                return fault(lexer, error, "a string holds a broken escape");
            continue;
        }
        if (*at == '\n') { /* a continued line */
            at++;
            continue;
        }
        letter = memchr(letters, *at, sizeof(letters) - 1);
        if (letter) {
            text[length++] = bytes[letter - letters];
        } else {
            text[length++] = '\\';
            text[length++] = *at;
        }
        at++;
    }
    token->kind = PD_JINJA_T_STRING;
    token->text = (struct pd_string){text, length};
    advance_to(lexer, close + 1);
    return PD_OK;
}

static int number_token(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                        struct pd_error *error)
{
    char text[64];
    size_t length = 0;
    bool real = false;
    const char *at = lexer->at;

    for (; at < lexer->end && length < sizeof(text) - 1; at++) {
        bool fraction = *at == '.' && !real && at + 1 < lexer->end && isdigit((unsigned char)at[1]);
        bool exponent = (*at == 'e' || *at == 'E') && length;
        bool sign = (*at == '-' || *at == '+') && length && (at[-1] == 'e' || at[-1] == 'E');

        if (*at == '_')
            continue;
        if (!isdigit((unsigned char)*at) && !fraction && !exponent && !sign)
            break;
        real |= fraction || exponent;
        text[length++] = *at;
    }
    text[length] = '\0';
    if (length == sizeof(text) - 1)
        return fault(lexer, error, "a number is too long");
    token->kind = real ? PD_JINJA_T_FLOAT : PD_JINJA_T_INT;
    token->real = strtod(text, NULL);
    token->integer = strtoll(text, NULL, 10);
    token->text = (struct pd_string){lexer->at, (size_t)(at - lexer->at)};
    advance_to(lexer, at);
    return PD_OK;
}

static int operator_token(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                          struct pd_error *error)
{
    static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*",
                                            "/",  "%",  "<",  ">",  "=",  "~",  "(", ")", "[",
                                            "]",  "{",  "}",  ",",  ":",  ".",  "|"};

    for (size_t i = 0; i < sizeof(operators) / sizeof(*operators); i++) {
        if (!starts(lexer, lexer->at, operators[i]))
            continue;
        token->kind = PD_JINJA_T_OPERATOR;
        token->text = (struct pd_string){operators[i], strlen(operators[i])};
        lexer->braces += strchr("([{", operators[i][0]) != NULL;
        lexer->braces -= strchr(")]}", operators[i][0]) != NULL;
        advance_to(lexer, lexer->at + token->text.length);
        return PD_OK;
    }
    return fault(lexer, error, "an unexpected character");
}

/* Whether the tag ends here; moves behind it if so. */
static bool tag_end(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token)
{
    const char *close = lexer->in_output ? "}}" : "%}";
    const char *at = lexer->at + (*lexer->at == '-' || (*lexer->at == '+' && lexer->in_block));

    if (!starts(lexer, at, close) || (lexer->in_output && lexer->braces > 0))
        return false;
    token->kind = lexer->in_output ? PD_JINJA_T_OUTPUT_END : PD_JINJA_T_BLOCK_END;
    if (lexer->in_block) {
        close_block(lexer, at);
    } else {
        lexer->trim_next = at > lexer->at;
        advance_to(lexer, at + 2);
    }
    lexer->in_output = lexer->in_block = false;
    return true;
}

int pd_jinja_lexer_next(struct pd_jinja_lexer *lexer, struct pd_jinja_token *token,
                        struct pd_error *error)
{
    const char *at = lexer->at;

    *token = (struct pd_jinja_token){0};
    if (!lexer->in_output && !lexer->in_block)
        return data_token(lexer, token, error);
    while (at < lexer->end && isspace((unsigned char)*at))
        at++;
    advance_to(lexer, at);
    set_place(lexer, token);
    if (at == lexer->end)
        return fault(lexer, error, "a tag is not closed");
    if (tag_end(lexer, token))
        return PD_OK;
    if (*at == '"' || *at == '\'')
        return string_token(lexer, token, error);
    if (isdigit((unsigned char)*at))
        return number_token(lexer, token, error);
    if (isalpha((unsigned char)*at) || *at == '_') {
        while (at < lexer->end && (isalnum((unsigned char)*at) || *at == '_'))
            at++;
        token->kind = PD_JINJA_T_NAME;
        token->text = (struct pd_string){lexer->at, (size_t)(at - lexer->at)};
        advance_to(lexer, at);
        return PD_OK;
    }
    return operator_token(lexer, token, error);
}
