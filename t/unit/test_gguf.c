/* GGUF files, good and hostile. Every file is parsed from a buffer of exactly its size, so that the
 * sanitizers see a read of one byte too many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/gguf_file.h"
#include "worker/model/gguf.h"

static const uint64_t matrix[] = {32, 4}; /* innermost first: 4 rows of 32 */
static const uint64_t vector[] = {32};

struct parsed {
    uint8_t *copy;
    struct pd_tensor_table tensors;
    struct pd_gguf *gguf;
    struct pd_error error;
    int status;
};

static struct parsed parse(const void *data, size_t size)
{
    struct parsed parsed = {.copy = malloc(size ? size : 1)};

    assert_non_null(parsed.copy);
    memcpy(parsed.copy, data, size);
    parsed.status =
        pd_gguf_parse("x.gguf", parsed.copy, size, &parsed.tensors, &parsed.gguf, &parsed.error);
    if (parsed.status == PD_OK)
        parsed.status = pd_tensor_table_seal(&parsed.tensors, &parsed.error);
    return parsed;
}

static void release(struct parsed *parsed)
{
    pd_tensor_table_free(&parsed->tensors);
    pd_gguf_destroy(parsed->gguf);
    free(parsed->copy);
}

/* The file is refused with a message that holds all of `words` (separated by '|'). */
static void assert_refused(struct bytes *file, int status, const char *words)
{
    struct parsed parsed = parse(file->data, file->size);
    char copy[256], *rest = copy, *word;

    snprintf(copy, sizeof(copy), "x.gguf|%s", words);
    assert_int_equal(parsed.status, status);
    while ((word = strsep(&rest, "|")))
        if (!strstr(parsed.error.text, word))
            fail_msg("\"%s\" is not in \"%s\"", word, parsed.error.text);
    assert_null(strchr(parsed.error.text, '\n'));
    release(&parsed);
    bytes_free(file);
}

/* One file, spoiled by the statements given; f is the file, out its bytes. */
#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        struct gguf_file f = {0};                                                                  \
        struct bytes out = {0};                                                                    \
        __VA_ARGS__;                                                                               \
        if (!out.data)                                                                             \
            gguf_finish(&f, &out);                                                                 \
        assert_refused(&out, status, words);                                                       \
    } while (0)

static struct bytes sample(void)
{
    static const char *const words[] = {"a", "", "word"};
    static const int32_t numbers[] = {-1, 0, 7};
    struct gguf_file file = {0};
    struct bytes out;

    gguf_key_string(&file, "general.architecture", "llama");
    gguf_key_u32(&file, "count", 4000000000u);
    gguf_key_f32(&file, "ratio", 0.5f);
    gguf_key_bool(&file, "flag", 1);
    gguf_key_strings(&file, "words", words, 3);
    gguf_key_i32s(&file, "numbers", numbers, 3);
    gguf_tensor(&file, "matrix", 2, matrix, GGML_F32, NULL, 512);
    gguf_tensor(&file, "blocks", 2, matrix, GGML_Q4_1, NULL, 80);
    gguf_tensor(&file, "vector", 1, vector, GGML_F16, NULL, 64);
    gguf_finish(&file, &out);
    return out;
}

static void test_a_good_file_is_read(void **state)
{
    struct bytes file = sample();
    struct parsed parsed = parse(file.data, file.size);
    const struct pd_file_tensor *tensor;

    (void)state;
    assert_int_equal(parsed.status, PD_OK);
    assert_int_equal(parsed.tensors.count, 3);
    tensor = pd_tensor_table_find(&parsed.tensors, "blocks");
    assert_non_null(tensor);
    assert_int_equal(tensor->type, PD_Q4_1);
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], 4);
    assert_int_equal(tensor->shape[1], 32);
    assert_int_equal(tensor->bytes, 80);
    assert_int_equal(tensor->data[1],
                     (uint8_t)(37 + 2)); /* second byte of the second tensor's pattern */
    tensor = pd_tensor_table_find(&parsed.tensors, "vector");
    assert_int_equal(tensor->rank, 1);
    assert_ptr_equal(tensor->data + tensor->bytes, parsed.copy + file.size);
    assert_null(pd_tensor_table_find(&parsed.tensors, "vecto"));
    release(&parsed);
    bytes_free(&file);
}

static void test_metadata_is_typed(void **state)
{
    struct bytes file = sample();
    struct parsed parsed = parse(file.data, file.size);
    struct pd_string string, *strings;
    struct pd_error error;
    int32_t *integers;
    int64_t integer;
    double number;
    size_t count;
    bool flag;

    (void)state;
    assert_int_equal(pd_gguf_integer(parsed.gguf, "count", 0, UINT32_MAX, &integer, &error), PD_OK);
    assert_int_equal(integer, 4000000000);
    assert_int_equal(pd_gguf_integer(parsed.gguf, "count", 0, 5, &integer, &error), PD_INVALID);
    assert_non_null(
        strstr(error.text, "x.gguf: metadata count: 4000000000 is not between 0 and 5"));
    assert_int_equal(pd_gguf_integer(parsed.gguf, "none", 0, 5, &integer, &error), PD_NOT_FOUND);
    assert_int_equal(pd_gguf_integer(parsed.gguf, "ratio", 0, 5, &integer, &error), PD_INVALID);
    assert_int_equal(pd_gguf_integer(parsed.gguf, "words", 0, 5, &integer, &error), PD_INVALID);
    assert_int_equal(pd_gguf_number(parsed.gguf, "ratio", &number, &error), PD_OK);
    assert_true(number == 0.5);
    assert_int_equal(pd_gguf_number(parsed.gguf, "count", &number, &error), PD_OK);
    assert_true(number == 4e9);
    assert_int_equal(pd_gguf_number(parsed.gguf, "flag", &number, &error), PD_INVALID);
    assert_int_equal(pd_gguf_boolean(parsed.gguf, "flag", &flag, &error), PD_OK);
    assert_true(flag);
    assert_int_equal(pd_gguf_boolean(parsed.gguf, "count", &flag, &error), PD_INVALID);
    assert_int_equal(pd_gguf_string(parsed.gguf, "general.architecture", &string, &error), PD_OK);
    assert_memory_equal(string.bytes, "llama", 5);
    assert_int_equal(string.length, 5);
    assert_int_equal(pd_gguf_string(parsed.gguf, "flag", &string, &error), PD_INVALID);
    assert_int_equal(pd_gguf_strings(parsed.gguf, "words", &strings, &count, &error), PD_OK);
    assert_int_equal(count, 3);
    assert_int_equal(strings[1].length, 0);
    assert_memory_equal(strings[2].bytes, "word", 4);
    free(strings);
    assert_int_equal(pd_gguf_strings(parsed.gguf, "numbers", &strings, &count, &error), PD_INVALID);
    assert_int_equal(pd_gguf_integers(parsed.gguf, "numbers", &integers, &count, &error), PD_OK);
    assert_int_equal(count, 3);
    assert_int_equal(integers[0], -1);
    assert_int_equal(integers[2], 7);
    free(integers);
    assert_int_equal(pd_gguf_integers(parsed.gguf, "words", &integers, &count, &error), PD_INVALID);
    assert_int_equal(pd_gguf_integers(parsed.gguf, "flag", &integers, &count, &error), PD_INVALID);
    release(&parsed);
    bytes_free(&file);
}

static void test_every_truncation_is_refused(void **state)
{
    struct bytes file = sample();

    (void)state;
    for (size_t size = 0; size < file.size; size++) {
        struct parsed parsed = parse(file.data, size);

        assert_int_equal(parsed.status, PD_INVALID);
        assert_memory_equal(parsed.error.text, "x.gguf: ", 8);
        assert_null(parsed.gguf);
        release(&parsed);
    }
    bytes_free(&file);
}

/* A byte changed anywhere: refused, or read as something that still lies inside the file. */
static void test_every_spoiled_byte_stays_inside(void **state)
{
    static const uint8_t masks[] = {0x01, 0x10, 0x80, 0xff};
    struct bytes file = sample();

    (void)state;
    for (size_t at = 0; at < file.size - 656; at++)
        for (size_t i = 0; i < sizeof(masks); i++) {
            struct parsed parsed;

            file.data[at] ^= masks[i];
            parsed = parse(file.data, file.size);
            for (size_t t = 0; parsed.status == PD_OK && t < parsed.tensors.count; t++) {
                const struct pd_file_tensor *tensor = &parsed.tensors.tensors[t];

                assert_true(tensor->data >= parsed.copy &&
                            tensor->data + tensor->bytes <= parsed.copy + file.size);
            }
            release(&parsed);
            file.data[at] ^= masks[i];
        }
    bytes_free(&file);
}

static void test_headers(void **state)
{
    (void)state;
    REFUSED(PD_INVALID, "not a GGUF file", bytes_put(&out, "GGML\3\0\0\0", 8));
    REFUSED(PD_UNSUPPORTED, "version 1", f.version = 1);
    REFUSED(PD_UNSUPPORTED, "version 4", f.version = 4);
    REFUSED(PD_UNSUPPORTED, "big-endian", f.version = 3u << 24);
    REFUSED(PD_INVALID, "header|tensors", f.tensor_count = UINT64_MAX);
    REFUSED(PD_INVALID, "header|tensors", f.tensor_count = 1 << 17);
    REFUSED(PD_INVALID, "header|metadata entries", f.key_count = UINT64_MAX / 2);
    REFUSED(PD_INVALID, "tensor entry 0|the file ends", f.tensor_count = 1);
    REFUSED(PD_INVALID, "metadata entry 0|the file ends", f.key_count = 1);
}

static void begin_key(struct gguf_file *file, const char *key, uint32_t type)
{
    bytes_string(&file->keys, key);
    bytes_u32(&file->keys, type);
    file->key_count++;
}

static void begin_array(struct gguf_file *file, const char *key, uint32_t type, uint64_t count)
{
    begin_key(file, key, GGUF_ARRAY);
    bytes_u32(&file->keys, type);
    bytes_u64(&file->keys, count);
}

static void test_hostile_metadata(void **state)
{
    (void)state;
    REFUSED(PD_INVALID, "metadata entry 0|18446744073709551615 bytes", f.key_count = 1,
            bytes_u64(&f.keys, UINT64_MAX));
    REFUSED(PD_INVALID, "metadata k|the file ends", begin_key(&f, "k", GGUF_STRING),
            bytes_u64(&f.keys, 1u << 31));
    REFUSED(PD_INVALID, "metadata k|value type 13", begin_key(&f, "k", 13));
    REFUSED(PD_INVALID, "metadata k|value type 4294967295", begin_array(&f, "k", UINT32_MAX, 1));
    REFUSED(PD_UNSUPPORTED, "metadata k|array of arrays", begin_array(&f, "k", GGUF_ARRAY, 1));
    REFUSED(PD_INVALID, "metadata k|do not fit", begin_array(&f, "k", GGUF_U64, UINT64_MAX / 4));
    REFUSED(PD_INVALID, "metadata k|the file ends", begin_array(&f, "k", GGUF_U64, 1u << 20));
    REFUSED(PD_INVALID, "metadata k|the file ends", begin_array(&f, "k", GGUF_STRING, UINT64_MAX));
    REFUSED(PD_INVALID, "metadata same|two of this key", gguf_key_u32(&f, "same", 1),
            gguf_key_u32(&f, "other", 1), gguf_key_u32(&f, "same", 1));
    REFUSED(PD_INVALID, "metadata entry 0|printable", gguf_key_u32(&f, "new\nline", 1));
    REFUSED(PD_INVALID, "metadata entry 0|printable", gguf_key_u32(&f, "", 1));
    REFUSED(PD_INVALID, "general.alignment|48 is not a power of two", f.alignment = 48);
    REFUSED(PD_INVALID, "general.alignment|not between", f.alignment = 4);
    REFUSED(PD_INVALID, "general.alignment|not between", f.alignment = 1u << 31);
    REFUSED(PD_INVALID, "general.alignment|string", gguf_key_string(&f, "general.alignment", "32"));
    REFUSED(PD_UNSUPPORTED, "split.count|one of 3 parts", gguf_key_u32(&f, "split.count", 3));
}

static void test_hostile_shapes(void **state)
{
    static const uint64_t huge[] = {1u << 31, 1u << 31, 1u << 31, 1u << 31};
    static const uint64_t wide[] = {(1u << 31) - 32, (1u << 31) - 1, (1u << 31) - 1, 1};
    static const uint64_t wrapping[] = {1u << 30, 1u << 30, 8, 1}; /* 2^65 bytes of F32 */
    static const uint64_t zero[] = {32, 0};
    static const uint64_t odd[] = {33, 4};
    static const uint64_t five[] = {2, 2, 2, 2, 2};

    (void)state;
    REFUSED(PD_INVALID, "tensor t|dimension", gguf_entry(&f, "t", 4, huge, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|64 bits", gguf_entry(&f, "t", 4, wide, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|address space", gguf_entry(&f, "t", 4, wrapping, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|dimension 0 is 0", gguf_entry(&f, "t", 2, zero, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|0 dimensions", gguf_entry(&f, "t", 0, zero, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|5 dimensions", gguf_entry(&f, "t", 5, five, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|whole blocks of Q8_0", gguf_entry(&f, "t", 2, odd, GGML_Q8_0, 0));
    REFUSED(PD_INVALID, "tensor t|type 99 does not exist", gguf_entry(&f, "t", 2, matrix, 99, 0));
    REFUSED(PD_INVALID, "tensor t|type 4 does not exist", gguf_entry(&f, "t", 2, matrix, 4, 0));
    REFUSED(PD_UNSUPPORTED, "tensor t|type Q5_K", gguf_entry(&f, "t", 2, matrix, 13, 0));
}

static void test_hostile_places(void **state)
{
    (void)state;
    REFUSED(PD_INVALID, "tensor t|cut short", gguf_entry(&f, "t", 2, matrix, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor t|alignment 32",
            gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512),
            gguf_entry(&f, "t", 1, vector, GGML_F16, 16));
    REFUSED(PD_INVALID, "tensor t|offset 18446744073709551584",
            gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512),
            gguf_entry(&f, "t", 1, vector, GGML_F16, UINT64_MAX - 31));
    REFUSED(PD_INVALID, "tensor t|overlaps tensor s",
            gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512),
            gguf_entry(&f, "t", 1, vector, GGML_F16, 448));
    REFUSED(PD_INVALID, "overlaps tensor", gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512),
            gguf_entry(&f, "t", 2, matrix, GGML_F32, 0));
    REFUSED(PD_INVALID, "tensor s|two of this name",
            gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512),
            gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512));
    REFUSED(PD_INVALID, "tensor entry 1|printable",
            gguf_tensor(&f, "s", 2, matrix, GGML_F32, NULL, 512),
            gguf_tensor(&f, "a\x1b[2J", 2, matrix, GGML_F32, NULL, 512));
    REFUSED(PD_INVALID, "tensor entry 0|printable",
            gguf_tensor(&f, "", 2, matrix, GGML_F32, NULL, 512));
}

static void test_swapped_offsets_are_refused_by_size(void **state)
{
    /* The larger tensor at the place of the smaller one, which lies last. */
    (void)state;
    REFUSED(PD_INVALID, "tensor large|cut short", gguf_entry(&f, "large", 2, matrix, GGML_F32, 512),
            gguf_tensor(&f, "filler", 2, matrix, GGML_F32, NULL, 512),
            gguf_tensor(&f, "small", 1, vector, GGML_F16, NULL, 64));
}

static void test_other_alignments(void **state)
{
    static const uint32_t alignments[] = {8, 64, 4096};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct gguf_file file = {.alignment = alignments[i]};
        struct parsed parsed;
        struct bytes out;

        gguf_tensor(&file, "a", 1, vector, GGML_F16, NULL, 64);
        gguf_tensor(&file, "b", 1, vector, GGML_F16, NULL, 64);
        gguf_finish(&file, &out);
        parsed = parse(out.data, out.size);
        assert_int_equal(parsed.status, PD_OK);
        assert_int_equal(parsed.tensors.tensors[1].data[0], 2);
        assert_ptr_equal(parsed.tensors.tensors[1].data + 64, parsed.copy + out.size);
        release(&parsed);
        bytes_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_file_is_read),
        cmocka_unit_test(test_metadata_is_typed),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_every_spoiled_byte_stays_inside),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_hostile_metadata),
        cmocka_unit_test(test_hostile_shapes),
        cmocka_unit_test(test_hostile_places),
        cmocka_unit_test(test_swapped_offsets_are_refused_by_size),
        cmocka_unit_test(test_other_alignments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
