/* SentencePiece's spelling: a vocabulary small enough to see through, as a tokenizer.json and as a GGUF file. That ids
 * are Hugging Face's for any text is t/oracle/tokenizer.py's to ask. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/gguf_file.h"
#include "worker/model/gguf_tokenizer.h"
#include "worker/text/stream.h"

#define M    "\xE2\x96\x81"
#define FFFD "\xEF\xBF\xBD"

enum { BYTES = 3, PIECES = BYTES + 256, INST = PIECES + 9, TOKENS };

/* Ids of the pieces, in their order. */
enum { MARK = PIECES, T, H, E, MARK_T, MARK_TH, HE, MARK_THE, MARK_MARK };

static const char *const pieces[] = {M, "t", "h", "e", M "t", M "th", "he", M "the", M M};
/* "▁ t" comes before "h e", so that "the" is ▁th e, and not ▁t he. */
static const float piece_scores[] = {-90, -90, -90, -90, -1, -2, -3, -4, -5};

struct vocabulary {
    char text[TOKENS][8];
    const char *tokens[TOKENS];
    int32_t types[TOKENS];
    float scores[TOKENS];
};

static void make(struct vocabulary *v)
{
    static const char *const specials[] = {"<unk>", "<s>", "</s>"};

    memset(v, 0, sizeof *v);
    for (int i = 0; i < TOKENS; i++) {
        v->tokens[i] = v->text[i];
        v->types[i] = i == 0 ? 2 : i < BYTES ? 3 : i < PIECES ? 6 : i < INST ? 1 : 4;
        if (i < BYTES)
            v->tokens[i] = specials[i];
        else if (i < PIECES)
            snprintf(v->text[i], sizeof v->text[i], "<0x%02X>", (unsigned)(i - BYTES));
        else if (i < INST)
            v->tokens[i] = pieces[i - PIECES];
        else
            v->tokens[i] = "[INST]";
        v->scores[i] = i >= PIECES && i < INST ? piece_scores[i - PIECES] : 0;
    }
}

/* ---- the two kinds of files -------------------------------------------------------------------------- */

#define PREPEND         "{\"type\":\"Prepend\",\"prepend\":\"" M "\"}"
#define REPLACE         "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" M "\"}"
#define NORMALS(steps)  "{\"type\":\"Sequence\",\"normalizers\":[" steps "]}"
#define DECODERS(steps) "{\"type\":\"Sequence\",\"decoders\":[" steps "]}"
#define UNMARK          "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" M "\"},\"content\":\" \"}"
#define FALLBACK        "{\"type\":\"ByteFallback\"}"
#define TAIL            "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define METASPACE(more) "{\"type\":\"Metaspace\",\"replacement\":\"" M "\"," more "}"
#define FIRST           "\"prepend_scheme\":\"first\",\"split\":false"

struct parts {
    const char *normalizer, *pre, *decoder, *fallback, *added;
};

static int load_json(const struct parts *p, struct pd_tokenizer **tokenizer, struct pd_error *error)
{
    struct vocabulary v;
    char *json = malloc(1 << 16);
    size_t used;
    int status;

    make(&v);
    used = (size_t)sprintf(
        json,
        "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":%s,\"added_tokens\":[%s"
        "{\"id\":1,\"content\":\"<s>\",\"special\":true},{\"id\":2,\"content\":\"</s>\","
        "\"special\":true},{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
        "{\"id\":%d,\"content\":\"[INST]\",\"normalized\":false}],"
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
        "\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[1]}}},"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":%"
        "s,"
        "\"vocab\":{",
        p->normalizer ? p->normalizer : "null", p->pre ? p->pre : "null",
        p->decoder ? p->decoder : DECODERS(UNMARK "," FALLBACK "," TAIL), p->added ? p->added : "",
        INST, p->fallback ? p->fallback : "true");
    for (int i = 0; i < INST; i++)
        used += (size_t)sprintf(json + used, "%s\"%s\":%d", i ? "," : "", v.tokens[i], i);
    used += (size_t)sprintf(json + used, "},\"merges\":[\"" M " t\",\"" M "t h\",\"h e\",\"" M
                                         "th e\",\"" M "t he\",\"" M " " M "\"]}}");
    *tokenizer = NULL;
    status = pd_tokenizer_from_json(json, used, NULL, 0, tokenizer, error);
    free(json);
    return status;
}

static struct pd_tokenizer *from_json(struct parts p)
{
    struct pd_tokenizer *tokenizer;
    struct pd_error error;

    if (load_json(&p, &tokenizer, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokenizer;
}

static struct pd_tokenizer *like_llama(void)
{
    return from_json((struct parts){.normalizer = NORMALS(PREPEND "," REPLACE)});
}

static int load_gguf(struct gguf_file *file, const struct vocabulary *v, size_t scores,
                     struct pd_tokenizer **tokenizer, struct pd_error *error)
{
    struct pd_tensor_table tensors = {0};
    struct pd_tokenizer_spec spec;
    struct pd_gguf *gguf;
    struct bytes bytes;
    int status;

    gguf_key_string(file, "tokenizer.ggml.model", "llama");
    gguf_key_strings(file, "tokenizer.ggml.tokens", v->tokens, TOKENS);
    gguf_key_i32s(file, "tokenizer.ggml.token_type", v->types, TOKENS);
    gguf_key_f32s(file, "tokenizer.ggml.scores", v->scores, scores);
    gguf_key_u32(file, "tokenizer.ggml.bos_token_id", 1);
    gguf_finish(file, &bytes);
    assert_int_equal(pd_gguf_parse("x.gguf", bytes.data, bytes.size, &tensors, &gguf, error),
                     PD_OK);
    *tokenizer = NULL;
    status = pd_gguf_tokenizer_read(gguf, &spec, error);
    if (status == PD_OK)
        status = pd_tokenizer_create(&spec, tokenizer, error);
    pd_gguf_tokenizer_free(&spec);
    pd_gguf_destroy(gguf);
    pd_tensor_table_free(&tensors);
    bytes_free(&bytes);
    return status;
}

static struct pd_tokenizer *from_gguf(struct gguf_file *file)
{
    struct pd_tokenizer *tokenizer;
    struct pd_error error;
    struct vocabulary v;

    make(&v);
    if (load_gguf(file, &v, TOKENS, &tokenizer, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokenizer;
}

/* ---- text to ids ------------------------------------------------------------------------------------- */

#define expect(tokenizer, text, ...)                                                               \
    do {                                                                                           \
        const int32_t ids_[] = {__VA_ARGS__};                                                      \
        expect_ids(tokenizer, text, ids_, sizeof ids_ / sizeof ids_[0]);                           \
    } while (0)

static void expect_ids(const struct pd_tokenizer *tokenizer, const char *text, const int32_t *ids,
                       size_t count)
{
    struct pd_tokens tokens = {0};
    struct pd_error error;

    assert_int_equal(
        pd_tokenizer_encode(tokenizer, text, strlen(text), NULL, 0, 60, &tokens, &error), PD_OK);
    assert_int_equal(tokens.count, count);
    assert_memory_equal(tokens.ids, ids, count * sizeof *ids);
    pd_tokens_free(&tokens);
}

/* What holds for both kinds of files. */
static void expect_llama(const struct pd_tokenizer *tokenizer)
{
    expect(tokenizer, "the", 1, MARK_THE);
    expect(tokenizer, "he the", 1, MARK, HE, MARK_THE);
    expect(tokenizer, M "the", 1, MARK, MARK_THE); /* the mark itself is a space */
    expect(tokenizer, "  ", 1, MARK_MARK, MARK);
    expect(tokenizer, "[INST]the", 1, INST, MARK_THE); /* text goes on behind an added token */
    expect(tokenizer, "t\xC3\xA9z", 1, MARK_T, BYTES + 0xC3, BYTES + 0xA9, BYTES + 'z');
    expect(tokenizer, "<0x41>", 1, MARK, BYTES + '<', BYTES + '0', BYTES + 'x', BYTES + '4',
           BYTES + '1', BYTES + '>');
    expect(tokenizer, "<s>t", 1, MARK_T); /* it begins with its own */
}

static void both_kinds_of_files_are_one_tokenizer(void **state)
{
    struct gguf_file file = {0};
    struct pd_tokenizer *json = like_llama(), *gguf = from_gguf(&file);
    uint8_t digests[2][32];

    (void)state;
    expect_llama(json);
    expect_llama(gguf);
    assert_true(pd_tokenizer_has_marks(gguf));
    pd_tokenizer_digest(json, digests[0]);
    pd_tokenizer_digest(gguf, digests[1]);
    assert_memory_equal(digests[0], digests[1], sizeof digests[0]);
    pd_tokenizer_destroy(json);
    pd_tokenizer_destroy(gguf);
}

static void the_mark_goes_where_the_file_says(void **state)
{
    static const struct {
        struct parts parts;
        bool at_first, behind_added, before_space;
    } cases[] = {
        {{.normalizer = NORMALS(PREPEND "," REPLACE)}, true, true, true},
        {{.normalizer = REPLACE}, false, false, false},
        {{.pre = METASPACE(FIRST)}, true, false, false},
        {{.pre = METASPACE("\"prepend_scheme\":\"always\",\"split\":false")}, true, true, false},
        {{.pre = METASPACE("\"prepend_scheme\":\"never\",\"split\":false")}, false, false, false},
        {{.pre = METASPACE("\"add_prefix_space\":true,\"split\":false")}, true, true, false},
        {{.pre = METASPACE("\"add_prefix_space\":false,\"split\":false")}, false, false, false},
    };
    struct gguf_file file = {0};
    struct pd_tokenizer *tokenizer;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tokenizer = from_json(cases[i].parts);
        expect(tokenizer, "t[INST]t", 1, cases[i].at_first ? MARK_T : T, INST,
               cases[i].behind_added ? MARK_T : T);
        if (cases[i].before_space)
            expect(tokenizer, " t", 1, MARK, MARK_T);
        else
            expect(tokenizer, " t", 1, MARK_T);
        pd_tokenizer_destroy(tokenizer);
    }
    gguf_key_bool(&file, "tokenizer.ggml.add_space_prefix", 0);
    gguf_key_bool(&file, "tokenizer.ggml.add_bos_token", 0);
    tokenizer = from_gguf(&file);
    expect(tokenizer, "t[INST]t", T, INST, T);
    pd_tokenizer_destroy(tokenizer);
}

static void words_of_a_user_are_no_added_tokens(void **state)
{
    struct pd_tokenizer *tokenizer = like_llama();
    struct pd_span span = {0, 4};
    struct pd_tokens tokens = {0};
    struct pd_error error;

    (void)state;
    assert_int_equal(pd_tokenizer_encode(tokenizer, "</s>", 4, &span, 1, 60, &tokens, &error),
                     PD_OK);
    assert_int_equal(tokens.count, 6); /* begin, mark, and four bytes */
    assert_int_equal(tokens.ids[2], BYTES + '<');
    tokens.count = 0;
    assert_int_equal(pd_tokenizer_encode(tokenizer, "</s>", 4, &span, 1, 5, &tokens, &error),
                     PD_FULL);
    pd_tokens_free(&tokens);
    pd_tokenizer_destroy(tokenizer);
}

/* ---- ids to text ------------------------------------------------------------------------------------- */

static void expect_text(const struct pd_tokenizer *tokenizer, const char *const *texts,
                        const int32_t *ids, size_t count)
{
    struct pd_stop_rules none = {0};
    struct pd_text_stream *stream;
    struct pd_text_delta delta;
    struct pd_error error;

    assert_int_equal(pd_text_stream_create(tokenizer, &none, &stream, &error), PD_OK);
    for (size_t i = 0; i <= count; i++) {
        assert_int_equal(i < count ? pd_text_stream_push(stream, ids[i], &delta)
                                   : pd_text_stream_finish(stream, &delta),
                         PD_OK);
        assert_int_equal(delta.length, strlen(texts[i]));
        assert_memory_equal(delta.bytes, texts[i], delta.length);
    }
    pd_text_stream_destroy(stream);
}

static void tokens_of_bytes_become_characters(void **state)
{
    static const int32_t ids[] = {MARK_THE,     BYTES + 0xE2, BYTES + 0x82, BYTES + 0xAC, 2,
                                  BYTES + 0xE2, BYTES + 0x82, HE,           BYTES + 0xFF, INST,
                                  BYTES + 0xF0, BYTES + 0x9F};
    static const char *const texts[] = {
        " the",   "", "", "\xE2\x82\xAC", "", "", "", FFFD FFFD "he", FFFD,
        "[INST]", "", "", FFFD FFFD};
    struct pd_tokenizer *tokenizer = like_llama();

    (void)state;
    expect_text(tokenizer, texts, ids, sizeof ids / sizeof ids[0]);
    pd_tokenizer_destroy(tokenizer);
}

/* ---- what is refused ---------------------------------------------------------------------------------- */

static void what_is_not_understood_is_named(void **state)
{
    static const char llama[] = NORMALS(PREPEND "," REPLACE);
    static const struct {
        struct parts parts;
        const char *words;
    } cases[] = {
        {{.normalizer = PREPEND}, "prepend"},
        {{.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"x\"}"}, "\"Prepend\""},
        {{.normalizer = NORMALS(REPLACE "," REPLACE)}, "\"Replace\""},
        {{.normalizer = NORMALS("{\"type\":\"NFC\"}," REPLACE)}, "NFC"},
        {{.normalizer = REPLACE, .pre = METASPACE(FIRST)}, "\"Metaspace\""},
        {{.pre = METASPACE("\"prepend_scheme\":\"first\"")}, "\"split\""},
        {{.pre = METASPACE("\"prepend_scheme\":\"last\",\"split\":false")}, "\"prepend_scheme\""},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"split\":false}"},
         "\"replacement\""},
        {{.normalizer = llama, .fallback = "false"}, "without \"byte_fallback\""},
        {{.normalizer = llama, .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"},
         "ByteLevel"},
        {{.normalizer = llama, .pre = "{\"type\":\"Digits\",\"individual_digits\":true}"},
         "expressions"},
        {{.normalizer = llama, .decoder = DECODERS(UNMARK "," TAIL)}, "ByteFallback"},
        {{.normalizer = llama, .decoder = DECODERS(FALLBACK "," TAIL)}, "marks"},
        {{.normalizer = llama, .decoder = "{\"type\":\"ByteLevel\"}"}, "\"ByteLevel\""},
        {{.normalizer = llama, .added = "{\"id\":300,\"content\":\"<x>\",\"normalized\":true},"},
         "\"normalized\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pd_tokenizer *tokenizer;
        struct pd_error error = {0};
        int status = load_json(&cases[i].parts, &tokenizer, &error);

        if (status != PD_UNSUPPORTED || !strstr(error.text, cases[i].words))
            fail_msg("%zu: status %d, \"%s\" for \"%s\"", i, status, error.text, cases[i].words);
    }
}

static void refuse(const struct vocabulary *v, size_t scores, int status, const char *words)
{
    struct gguf_file file = {0};
    struct pd_tokenizer *tokenizer;
    struct pd_error error;

    assert_int_equal(load_gguf(&file, v, scores, &tokenizer, &error), status);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" for \"%s\"", error.text, words);
}

static void faults_of_a_file_are_named(void **state)
{
    struct vocabulary v;

    (void)state;
    make(&v);
    refuse(&v, TOKENS - 1, PD_INVALID, "scores for");
    v.scores[T] = NAN;
    refuse(&v, TOKENS, PD_INVALID, "scores: the score of token 260 is no number");
    make(&v);
    v.tokens[BYTES + 7] = "<0x07";
    refuse(&v, TOKENS, PD_UNSUPPORTED, "no token <0x07>");
    make(&v);
    v.types[T] = 7;
    refuse(&v, TOKENS, PD_INVALID, "type 7, which a SentencePiece BPE does not have");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_kinds_of_files_are_one_tokenizer),
        cmocka_unit_test(the_mark_goes_where_the_file_says),
        cmocka_unit_test(words_of_a_user_are_no_added_tokens),
        cmocka_unit_test(tokens_of_bytes_become_characters),
        cmocka_unit_test(what_is_not_understood_is_named),
        cmocka_unit_test(faults_of_a_file_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
