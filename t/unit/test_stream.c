/* From tokens to text. The oracle for characters is the Unicode standard's table of replaced sequences, the
 * one for stop strings a search that knows the whole text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/unit/tiny_vocabulary.h"
#include "worker/text/stream.h"

#define FFFD "\xef\xbf\xbd"

enum { STOPS = 4, ANSWER = 4096 };

struct world {
    struct tiny_vocabulary v;
    struct pd_tokenizer *tokenizer;
    int32_t special, added, broken_head, broken_tail, words;
};

static int make_world(void **state)
{
    struct world *w = malloc(sizeof *w);
    struct pd_tokenizer_spec spec;

    tiny_init(&w->v);
    w->special = tiny_add(&w->v, "<|im_end|>", PD_TOKEN_SPECIAL);
    w->added = tiny_add(&w->v, "<think>", PD_TOKEN_ADDED);
    w->broken_head = tiny_add(&w->v, "x\xe2\x82", PD_TOKEN_NORMAL);
    w->broken_tail = tiny_add(&w->v, "\xac\xf0\x9f", PD_TOKEN_NORMAL);
    w->words = tiny_add(&w->v, " and so on", PD_TOKEN_NORMAL);
    spec = tiny_spec(&w->v);
    w->tokenizer = tiny_build(&spec);
    *state = w;
    return 0;
}

static int free_world(void **state)
{
    struct world *w = *state;

    pd_tokenizer_destroy(w->tokenizer);
    free(w);
    return 0;
}

/* What a stream has given so far. */
struct answer {
    struct pd_text_stream *stream;
    char text[ANSWER];
    size_t length;
    int stop;
};

static void begin(struct answer *a, struct world *w, const char *const *stops, bool include)
{
    struct pd_string strings[STOPS];
    struct pd_stop_rules rules = {strings, 0, include};
    struct pd_error error;

    for (; stops && stops[rules.count]; rules.count++)
        strings[rules.count] = (struct pd_string){stops[rules.count], strlen(stops[rules.count])};
    memset(a, 0, sizeof *a);
    a->stop = -1;
    assert_int_equal(pd_text_stream_create(w->tokenizer, &rules, &a->stream, &error), PD_OK);
}

static void take(struct answer *a, const struct pd_text_delta *delta)
{
    assert_true(a->length + delta->length < ANSWER);
    memcpy(a->text + a->length, delta->bytes, delta->length);
    a->length += delta->length;
    a->text[a->length] = 0;
    a->stop = delta->stop;
}

/* Pushes a token and asserts what it gave. */
static void push(struct answer *a, int32_t token, const char *expected)
{
    struct pd_text_delta delta;

    assert_int_equal(pd_text_stream_push(a->stream, token, &delta), PD_OK);
    assert_int_equal(delta.length, strlen(expected));
    assert_memory_equal(delta.bytes, expected, delta.length);
    take(a, &delta);
}

static void finish(struct answer *a, const char *expected)
{
    struct pd_text_delta delta;

    assert_int_equal(pd_text_stream_finish(a->stream, &delta), PD_OK);
    assert_int_equal(delta.length, strlen(expected));
    assert_memory_equal(delta.bytes, expected, delta.length);
    take(a, &delta);
    pd_text_stream_destroy(a->stream);
}

/* ---- characters ------------------------------------------------------------------------------------- */

static void a_character_comes_whole(void **state)
{
    struct world *w = *state;
    struct answer a;

    begin(&a, w, NULL, false);
    push(&a, 'a', "a");
    push(&a, 0xC3, "");
    push(&a, 0xA9, "é");
    push(&a, w->broken_head, "x");
    push(&a, w->broken_tail, "€");
    push(&a, 0x98, "");
    push(&a, 0x80, "😀");
    push(&a, w->words, " and so on");
    finish(&a, "");
}

static void special_tokens_give_no_text(void **state)
{
    struct world *w = *state;
    struct answer a;

    begin(&a, w, NULL, false);
    push(&a, 0xC3, "");
    push(&a, w->special, ""); /* and do not break a character */
    push(&a, 0xA9, "é");
    push(&a, w->added, "<think>");
    push(&a, -1, "");
    push(&a, 100000, "");
    finish(&a, "");
}

static void broken_characters_become_replacements(void **state)
{
    /* bytes, and their text: the Unicode standard, section 3.9, and its neighbours */
    static const char *const cases[][2] = {
        {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
         "a" FFFD FFFD FFFD "b" FFFD "c" FFFD FFFD "d"},
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A"},
        {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", FFFD FFFD FFFD FFFD "A"},
        {"\xF4\x8F\xBF\xBF\xEF\xBF\xBF\xED\x9F\xBF", "\xF4\x8F\xBF\xBF\xEF\xBF\xBF\xED\x9F\xBF"},
        {"\xE2\x82", FFFD},
        {"\xF0\x9F\x98", FFFD},
        {"\xF0", FFFD},
        {"\xF0\x9F\xC3\xA9", FFFD "é"},
        {"\xE0\x9F\x41", FFFD FFFD "A"},
        {"\xF0\x8F", FFFD FFFD},
        {"\xE0\xA0", FFFD},
        {"\xF0\x90", FFFD},
    };
    struct world *w = *state;
    size_t i, j;

    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct answer a;
        struct pd_text_delta delta;

        begin(&a, w, NULL, false);
        for (j = 0; cases[i][0][j]; j++) {
            assert_int_equal(pd_text_stream_push(a.stream, (unsigned char)cases[i][0][j], &delta),
                             PD_OK);
            take(&a, &delta);
        }
        assert_int_equal(pd_text_stream_finish(a.stream, &delta), PD_OK);
        take(&a, &delta);
        assert_string_equal(a.text, cases[i][1]);
        pd_text_stream_destroy(a.stream);
    }
}

/* ---- stop strings ------------------------------------------------------------------------------------ */

static void a_stop_string_is_found_over_borders(void **state)
{
    static const char *const stops[] = {"END", NULL};
    struct world *w = *state;
    struct answer a;

    begin(&a, w, stops, false);
    push(&a, 'a', "a");
    push(&a, 'E', "");
    push(&a, 'N', "");
    push(&a, 'x', "ENx");
    push(&a, 'E', "");
    push(&a, 'E', "E");
    push(&a, 'N', "");
    assert_int_equal(a.stop, -1);
    push(&a, 'D', "");
    assert_int_equal(a.stop, 0);
    assert_string_equal(a.text, "aENxE");
    finish(&a, "");
    assert_int_equal(a.stop, 0);
}

static void what_is_held_comes_at_the_end(void **state)
{
    static const char *const stops[] = {"ab\xc3\xa9", NULL};
    struct world *w = *state;
    struct answer a;

    begin(&a, w, stops, false);
    push(&a, 'a', "");
    push(&a, 'b', "");
    push(&a, 0xC3, "");
    finish(&a, "ab" FFFD);
    assert_int_equal(a.stop, -1);
}

static void the_stop_string_is_kept_if_asked_for(void **state)
{
    static const char *const stops[] = {"so", NULL};
    struct world *w = *state;
    struct answer a;

    begin(&a, w, stops, true);
    push(&a, w->words, " and so");
    assert_int_equal(a.stop, 0);
    finish(&a, "");
    begin(&a, w, stops, false);
    push(&a, w->words, " and ");
    assert_int_equal(a.stop, 0);
    finish(&a, "");
}

static void the_first_complete_string_wins_then_the_longest(void **state)
{
    static const char *const stops[] = {"b", "aab", "xyz", NULL};
    static const char *const nested[] = {"abcd", "bc", NULL};
    struct world *w = *state;
    struct answer a;

    begin(&a, w, stops, false);
    push(&a, 'a', "");
    push(&a, 'a', "");
    push(&a, 'a', "a"); /* "aaa": two of them may still begin "aab" */
    push(&a, 'b', "");
    assert_int_equal(a.stop, 1);
    finish(&a, "");
    begin(&a, w, nested, false);
    push(&a, 'a', "");
    push(&a, 'b', "");
    push(&a, 'c', "a");
    assert_int_equal(a.stop, 1);
    finish(&a, "");
}

static void a_stop_string_may_begin_within_itself(void **state)
{
    static const char *const stops[] = {"aabaaac", "aabaaac", NULL};
    struct world *w = *state;
    struct pd_text_delta delta;
    struct answer a;
    const char *c;

    begin(&a, w, stops, false);
    for (c = "aabaaabaaac"; *c; c++) {
        assert_int_equal(pd_text_stream_push(a.stream, *c, &delta), PD_OK);
        take(&a, &delta);
    }
    assert_int_equal(a.stop, 0);
    assert_string_equal(a.text, "aaba");
    finish(&a, "");
}

static void a_replacement_can_stop_too(void **state)
{
    static const char *const stops[] = {FFFD, NULL};
    struct world *w = *state;
    struct answer a;

    begin(&a, w, stops, false);
    push(&a, 'a', "a");
    push(&a, 0xC3, "");
    finish(&a, "");
    assert_int_equal(a.stop, 0);
}

static void nothing_may_follow_a_stop(void **state)
{
    static const char *const stops[] = {"a", NULL};
    struct world *w = *state;
    struct pd_text_delta delta;
    struct answer a;

    begin(&a, w, stops, false);
    push(&a, 'a', "");
    assert_int_equal(pd_text_stream_push(a.stream, 'b', &delta), PD_INVALID);
    finish(&a, "");
}

static void rules_are_checked(void **state)
{
    static char text[1 << 16];
    struct world *w = *state;
    struct pd_string strings[65];
    struct pd_stop_rules rules = {strings, 1, false};
    struct pd_text_stream *stream = NULL;
    struct pd_error error;
    size_t i;

    strings[0] = (struct pd_string){"", 0};
    assert_int_equal(pd_text_stream_create(w->tokenizer, &rules, &stream, &error), PD_INVALID);
    strings[0] = (struct pd_string){"\xff", 1};
    assert_int_equal(pd_text_stream_create(w->tokenizer, &rules, &stream, &error), PD_INVALID);
    for (i = 0; i < 65; i++)
        strings[i] = (struct pd_string){"a", 1};
    rules.count = 65;
    assert_int_equal(pd_text_stream_create(w->tokenizer, &rules, &stream, &error), PD_INVALID);
    memset(text, 'a', sizeof text);
    strings[0] = (struct pd_string){text, sizeof text};
    rules.count = 2;
    assert_int_equal(pd_text_stream_create(w->tokenizer, &rules, &stream, &error), PD_INVALID);
    assert_null(stream);
}

/* ---- any cut into tokens gives the same text ----------------------------------------------------------- */

static unsigned long next_random(unsigned long *seed)
{
    *seed = *seed * 6364136223846793005ul + 1442695040888963407ul;
    return *seed >> 33;
}

/* Where the whole text would be cut: the end of the stop string that is complete first. */
static int search(const char *text, size_t length, const char *const *stops, size_t *first,
                  size_t *end)
{
    int stop = -1, i;

    for (*end = 1; *end <= length; ++*end) {
        size_t longest = 0;

        for (i = 0; stops[i]; i++) {
            size_t n = strlen(stops[i]);

            if (n > longest && n <= *end && memcmp(text + *end - n, stops[i], n) == 0) {
                longest = n;
                stop = i;
            }
        }
        if (stop >= 0) {
            *first = *end - longest;
            return stop;
        }
    }
    *first = *end = length;
    return -1;
}

static void tokens_do_not_show_in_the_text(void **state)
{
    static const char *const stops[] = {"aba", "abb", "bab\xef\xbf\xbd", "é", NULL};
    static const unsigned char alphabet[] = {'a', 'b', 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 'a', 'b', 'b'};
    struct world *w = *state;
    unsigned long seed = 1;
    int round;

    for (round = 0; round < 3000; round++) {
        bool include = round % 2;
        int32_t tokens[40];
        size_t count = 1 + next_random(&seed) % 40, first, end, i;
        struct answer plain, stopped;
        struct pd_text_delta delta;

        for (i = 0; i < count; i++)
            tokens[i] = next_random(&seed) % 8 ? alphabet[next_random(&seed) % sizeof alphabet]
                                               : w->special + (int32_t)(next_random(&seed) % 5);
        begin(&plain, w, NULL, false);
        begin(&stopped, w, stops, include);
        for (i = 0; i < count; i++) {
            assert_int_equal(pd_text_stream_push(plain.stream, tokens[i], &delta), PD_OK);
            take(&plain, &delta);
            if (stopped.stop < 0) {
                assert_int_equal(pd_text_stream_push(stopped.stream, tokens[i], &delta), PD_OK);
                take(&stopped, &delta);
            }
        }
        assert_int_equal(pd_text_stream_finish(plain.stream, &delta), PD_OK);
        take(&plain, &delta);
        assert_int_equal(pd_text_stream_finish(stopped.stream, &delta), PD_OK);
        take(&stopped, &delta);
        assert_int_equal(stopped.stop, search(plain.text, plain.length, stops, &first, &end));
        assert_int_equal(stopped.length, include ? end : first);
        assert_memory_equal(stopped.text, plain.text, stopped.length);
        pd_text_stream_destroy(plain.stream);
        pd_text_stream_destroy(stopped.stream);
    }
}

/* ---- every way to cut a text into tokens ------------------------------------------------------------ */

enum { LONGEST = 15 };

/* A vocabulary that has every part of one text; a part that comes twice is one token. */
struct parts {
    struct tiny_vocabulary v;
    struct world world;
    int32_t ids[LONGEST][LONGEST + 1]; /* by first byte and length */
};

static int32_t part(struct parts *p, const char *text, size_t first, size_t length)
{
    char bytes[LONGEST + 1] = "";

    if (length == 1)
        return (unsigned char)text[first];
    for (size_t i = 0; i < first; i++)
        if (memcmp(text + i, text + first, length) == 0)
            return p->ids[i][length];
    memcpy(bytes, text + first, length);
    return tiny_add(&p->v, bytes, PD_TOKEN_NORMAL);
}

static void make_parts(struct parts *p, const char *text)
{
    size_t length = strlen(text);
    struct pd_tokenizer_spec spec;

    assert_true(length <= LONGEST);
    tiny_init(&p->v);
    for (size_t first = 0; first < length; first++)
        for (size_t n = 1; n <= length - first; n++)
            p->ids[first][n] = part(p, text, first, n);
    spec = tiny_spec(&p->v);
    p->world.tokenizer = tiny_build(&spec);
}

/* The text behind each byte whose bit in `cuts` is set cut off, up to the stop string. */
static void say(struct parts *p, const char *text, unsigned cuts, const char *const *stops,
                struct answer *a)
{
    size_t length = strlen(text), first = 0;
    struct pd_text_delta delta;

    begin(a, &p->world, stops, false);
    for (size_t end = 1; end <= length && a->stop < 0; end++) {
        if (end < length && !(cuts >> (end - 1) & 1))
            continue;
        assert_int_equal(pd_text_stream_push(a->stream, p->ids[first][end - first], &delta), PD_OK);
        take(a, &delta);
        first = end;
    }
    assert_int_equal(pd_text_stream_finish(a->stream, &delta), PD_OK);
    take(a, &delta);
    pd_text_stream_destroy(a->stream);
}

static void every_split_of_a_corpus_says_the_same(void **state)
{
    static const char *const corpus[] = {"aé€ab😀bé",
                                         "abab\xe2\x82"
                                         "ababb",
                                         "\xf0\x9f\x98x\xc3"
                                         "ba\xac"
                                         "bab"};
    static const char *const stops[] = {"bé", "babb", FFFD "b", "x" FFFD, NULL};
    static struct parts p;
    struct answer plain, other;
    size_t first, end;
    int stop;

    (void)state;
    for (size_t i = 0; i < sizeof(corpus) / sizeof(corpus[0]); i++) {
        make_parts(&p, corpus[i]);
        say(&p, corpus[i], ~0u, NULL, &plain);
        if (i == 0)
            assert_string_equal(plain.text, corpus[0]);
        stop = search(plain.text, plain.length, stops, &first, &end);
        assert_true(stop >= 0);
        for (unsigned cuts = 0; cuts < 1u << (strlen(corpus[i]) - 1); cuts++) {
            say(&p, corpus[i], cuts, NULL, &other);
            assert_string_equal(other.text, plain.text);
            say(&p, corpus[i], cuts, stops, &other);
            assert_int_equal(other.stop, stop);
            assert_int_equal(other.length, first);
            assert_memory_equal(other.text, plain.text, first);
        }
        pd_tokenizer_destroy(p.world.tokenizer);
    }
}

#define WITH_WORLD(test) cmocka_unit_test_setup_teardown(test, make_world, free_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_WORLD(a_character_comes_whole),
        WITH_WORLD(special_tokens_give_no_text),
        WITH_WORLD(broken_characters_become_replacements),
        WITH_WORLD(a_stop_string_is_found_over_borders),
        WITH_WORLD(what_is_held_comes_at_the_end),
        WITH_WORLD(the_stop_string_is_kept_if_asked_for),
        WITH_WORLD(the_first_complete_string_wins_then_the_longest),
        WITH_WORLD(a_stop_string_may_begin_within_itself),
        WITH_WORLD(a_replacement_can_stop_too),
        WITH_WORLD(nothing_may_follow_a_stop),
        WITH_WORLD(rules_are_checked),
        WITH_WORLD(tokens_do_not_show_in_the_text),
        cmocka_unit_test(every_split_of_a_corpus_says_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
