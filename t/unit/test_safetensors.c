/* safetensors files and directories, good and hostile. Single files are parsed from a buffer of
 * exactly their size, so that the sanitizers see a read of one byte too many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "t/unit/gguf_file.h"
#include "worker/model/safetensors.h"

/* ---- one file ----------------------------------------------------------------------------------
 */

static struct bytes make_file(const char *header, size_t data)
{
    struct bytes file = {0};

    bytes_string(&file, header);
    for (size_t i = 0; i < data; i++) {
        uint8_t byte = (uint8_t)i;

        bytes_put(&file, &byte, 1);
    }
    return file;
}

static int parse(const void *data, size_t size, struct pd_tensor_table *tensors, uint8_t **copy,
                 struct pd_error *error)
{
    int status;

    memset(tensors, 0, sizeof(*tensors));
    *copy = malloc(size ? size : 1);
    assert_non_null(*copy);
    memcpy(*copy, data, size);
    status = pd_safetensors_parse("x.safetensors", *copy, size, tensors, error);
    return status == PD_OK ? pd_tensor_table_seal(tensors, error) : status;
}

/* Refused, with every one of `words` (separated by '|') in the message. */
static void assert_refused_bytes(struct bytes *file, int status, const char *words)
{
    struct pd_tensor_table tensors;
    struct pd_error error;
    char copy[256], *rest = copy, *word;
    uint8_t *data;

    assert_int_equal(parse(file->data, file->size, &tensors, &data, &error), status);
    snprintf(copy, sizeof(copy), "x.safetensors|%s", words);
    while ((word = strsep(&rest, "|")))
        if (!strstr(error.text, word))
            fail_msg("\"%s\" is not in \"%s\"", word, error.text);
    assert_null(strchr(error.text, '\n'));
    pd_tensor_table_free(&tensors);
    free(data);
    bytes_free(file);
}

static void assert_refused(const char *header, size_t data, int status, const char *words)
{
    struct bytes file = make_file(header, data);

    assert_refused_bytes(&file, status, words);
}

#define TENSOR(name, type, shape, begin, end)                                                      \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" #begin         \
    "," #end "]}"

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "BF16", "2,3", 16, 28) "," //
    TENSOR("a", "F32", "4", 0, 16) "}  ";

static void test_a_good_file_is_read(void **state)
{
    struct bytes file = make_file(good, 28);
    struct pd_tensor_table tensors;
    struct pd_error error;
    uint8_t *data;

    (void)state;
    assert_int_equal(parse(file.data, file.size, &tensors, &data, &error), PD_OK);
    assert_int_equal(tensors.count, 2);
    assert_string_equal(tensors.tensors[0].name, "a");
    assert_int_equal(tensors.tensors[0].type, PD_F32);
    assert_int_equal(tensors.tensors[0].data[5], 5);
    assert_int_equal(tensors.tensors[1].type, PD_BF16);
    assert_int_equal(tensors.tensors[1].rank, 2);
    assert_int_equal(tensors.tensors[1].shape[0], 2);
    assert_int_equal(tensors.tensors[1].shape[1], 3);
    assert_ptr_equal(tensors.tensors[1].data + 12, data + file.size);
    pd_tensor_table_free(&tensors);
    free(data);
    bytes_free(&file);
}

static void test_every_truncation_is_refused(void **state)
{
    struct bytes file = make_file(good, 28);

    (void)state;
    for (size_t size = 0; size < file.size; size++) {
        struct pd_tensor_table tensors;
        struct pd_error error;
        uint8_t *data;

        assert_int_equal(parse(file.data, size, &tensors, &data, &error), PD_INVALID);
        assert_memory_equal(error.text, "x.safetensors: ", 15);
        pd_tensor_table_free(&tensors);
        free(data);
    }
    bytes_free(&file);
}

static void test_every_spoiled_byte_stays_inside(void **state)
{
    static const uint8_t masks[] = {0x01, 0x04, 0x10, 0x80, 0xff};
    struct bytes file = make_file(good, 28);

    (void)state;
    for (size_t at = 0; at < file.size - 28; at++)
        for (size_t i = 0; i < sizeof(masks); i++) {
            struct pd_tensor_table tensors;
            struct pd_error error;
            uint8_t *data;

            file.data[at] ^= masks[i];
            if (parse(file.data, file.size, &tensors, &data, &error) == PD_OK)
                for (size_t t = 0; t < tensors.count; t++)
                    assert_true(tensors.tensors[t].data >= data &&
                                tensors.tensors[t].data + tensors.tensors[t].bytes <=
                                    data + file.size);
            pd_tensor_table_free(&tensors);
            free(data);
            file.data[at] ^= masks[i];
        }
    bytes_free(&file);
}

static void test_hostile_headers(void **state)
{
    struct bytes file = {0};

    (void)state;
    bytes_u64(&file, UINT64_MAX);
    assert_refused_bytes(&file, PD_INVALID, "header|18446744073709551615 bytes");
    bytes_u64(&file, 99);
    bytes_put(&file, "{}", 2);
    assert_refused_bytes(&file, PD_INVALID, "header|99 bytes are announced|after 2");
    assert_refused("[]", 0, PD_INVALID, "not an object");
    assert_refused("", 0, PD_INVALID, "JSON at line 1");
    assert_refused("{\"a\":", 0, PD_INVALID, "JSON at line 1");
    assert_refused("{} x", 0, PD_INVALID, "JSON at line 1");
    assert_refused("{\"a\":{},\"a\":{}}", 0, PD_INVALID, "JSON|duplicate");
    assert_refused("{\"\\u0000\":{}}", 0, PD_INVALID, "JSON");
    assert_refused("{\"a\\nb\":{}}", 0, PD_INVALID, "name is not");
    assert_refused("{\"\":{}}", 0, PD_INVALID, "name is not");
    assert_refused("{\"a\":7}", 0, PD_INVALID, "tensor a|not an object");
    assert_refused("{\"a\":{}}", 0, PD_INVALID, "tensor a|dtype");
}

static void test_deep_nesting_is_refused(void **state)
{
    enum { DEPTH = 200000 };
    char *header = malloc(DEPTH + 8);

    (void)state;
    assert_non_null(header);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = '\0';
    assert_refused(header, 0, PD_INVALID, "JSON|depth");
    free(header);
}

static void test_hostile_entries(void **state)
{
    (void)state;
    assert_refused("{" TENSOR("a", "F8_E4M3", "4", 0, 4) "}", 4, PD_UNSUPPORTED,
                   "tensor a|F8_E4M3");
    assert_refused("{\"a\":{\"dtype\":3,\"shape\":[],\"data_offsets\":[0,0]}}", 0, PD_INVALID,
                   "tensor a|dtype");
    assert_refused("{" TENSOR("a", "F32", "-4", 0, 16) "}", 16, PD_INVALID, "tensor a|shape");
    assert_refused("{" TENSOR("a", "F32", "4.0", 0, 16) "}", 16, PD_INVALID, "tensor a|shape");
    assert_refused("{" TENSOR("a", "F32", "", 0, 4) "}", 4, PD_INVALID, "tensor a|0 dimensions");
    assert_refused("{" TENSOR("a", "F32", "0", 0, 0) "}", 0, PD_INVALID,
                   "tensor a|dimension 0 is 0");
    assert_refused("{" TENSOR("a", "F32", "1,1,1,1,4", 0, 16) "}", 16, PD_INVALID,
                   "tensor a|shape");
    assert_refused("{" TENSOR("a", "F32", "4294967296,4294967296", 0, 16) "}", 16, PD_INVALID,
                   "tensor a|dimension");
    assert_refused("{" TENSOR("a", "F32", "2147483647,2147483647,2147483647", 0, 16) "}", 16,
                   PD_INVALID, "tensor a|64 bits");
    assert_refused("{" TENSOR("a", "F32", "1073741824,1073741824,8", 0, 16) "}", 16, PD_INVALID,
                   "tensor a|address space");
    assert_refused("{" TENSOR("a", "F32", "99999999999999999999", 0, 16) "}", 16, PD_INVALID,
                   "JSON");
    assert_refused("{" TENSOR("a", "F32", "4", 0, 15) "}", 16, PD_INVALID, "tensor a|need 16");
    assert_refused("{" TENSOR("a", "F32", "4", 16, 0) "}", 16, PD_INVALID, "tensor a|no range");
    assert_refused("{" TENSOR("a", "F32", "4", -16, 0) "}", 16, PD_INVALID, "tensor a|no range");
    assert_refused("{" TENSOR("a", "F32", "4", 16, 32) "}", 16, PD_INVALID, "tensor a|cut short");
    assert_refused("{" TENSOR("a", "F32", "4", 9223372036854775791, 9223372036854775807) "}", 16,
                   PD_INVALID, "tensor a|cut short");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]}}", 16,
                   PD_INVALID, "tensor a|data_offsets");
}

static void test_every_byte_has_one_owner(void **state)
{
    (void)state;
    assert_refused("{" TENSOR("a", "F32", "4", 0, 16) "}", 20, PD_INVALID, "4 of the 20 bytes");
    assert_refused("{}", 1, PD_INVALID, "1 of the 1 bytes");
    assert_refused("{" TENSOR("a", "F32", "4", 0, 16) "," TENSOR("b", "F32", "4", 0, 16) "}", 16,
                   PD_INVALID, "more than the 16 bytes");
    assert_refused("{" TENSOR("a", "F32", "4", 0, 16) "," TENSOR("b", "F32", "4", 12, 28) "}", 32,
                   PD_INVALID, "tensor b|overlaps tensor a");
}

/* ---- directories -------------------------------------------------------------------------------
 */

struct directory {
    char path[64];
};

static struct directory make_directory(void)
{
    struct directory directory = {"/tmp/pd-safetensors-XXXXXX"};

    assert_non_null(mkdtemp(directory.path));
    return directory;
}

static void write_file(const struct directory *directory, const char *name, const void *data,
                       size_t size)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", directory->path, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    fclose(file);
}

static void write_shard(const struct directory *directory, const char *name, const char *header,
                        size_t data)
{
    struct bytes file = make_file(header, data);

    write_file(directory, name, file.data, file.size);
    bytes_free(&file);
}

static void write_index(const struct directory *directory, const char *text)
{
    write_file(directory, "model.safetensors.index.json", text, strlen(text));
}

static void remove_directory(const struct directory *directory)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "one.safetensors", "two.safetensors"};
    char path[256];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", directory->path, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(directory->path), 0);
}

static int open_directory(const struct directory *directory, struct pd_error *error)
{
    struct pd_tensor_table tensors = {0};
    struct pd_shards shards;
    int status = pd_safetensors_open(directory->path, &shards, &tensors, error);

    if (status == PD_OK) {
        assert_int_equal(tensors.count, 2);
        assert_non_null(pd_tensor_table_find(&tensors, "a"));
        assert_non_null(pd_tensor_table_find(&tensors, "b"));
        pd_tensor_table_free(&tensors);
        pd_shards_close(&shards);
    }
    assert_null(tensors.tensors);
    assert_null(shards.files);
    return status;
}

static void assert_directory(const struct directory *directory, int status, const char *words)
{
    struct pd_error error = {PD_OK, ""};

    assert_int_equal(open_directory(directory, &error), status);
    if (!strstr(error.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, error.text);
}

static void test_single_file(void **state)
{
    struct directory directory = make_directory();

    (void)state;
    assert_directory(&directory, PD_NOT_FOUND, "model.safetensors");
    write_shard(&directory, "model.safetensors", good, 28);
    assert_directory(&directory, PD_OK, "");
    write_file(&directory, "model.safetensors", "", 0);
    assert_directory(&directory, PD_INVALID, "empty");
    remove_directory(&directory);
}

static void test_sharded_index(void **state)
{
    struct directory directory = make_directory();

    (void)state;
    write_shard(&directory, "one.safetensors", "{" TENSOR("a", "F32", "4", 0, 16) "}", 16);
    write_shard(&directory, "two.safetensors", "{" TENSOR("b", "F16", "2,3", 0, 12) "}", 12);
    write_index(&directory, "{\"metadata\":{},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":"
                            "\"two.safetensors\"}}");
    assert_directory(&directory, PD_OK, "");
    write_index(&directory,
                "{\"weight_map\":{\"b\":\"one.safetensors\",\"a\":\"two.safetensors\"}}");
    assert_directory(&directory, PD_INVALID, "expects it in");
    write_index(&directory, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\","
                            "\"c\":\"two.safetensors\"}}");
    assert_directory(&directory, PD_INVALID, "names 3 tensors, but the shards hold 2");
    write_index(&directory,
                "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    assert_directory(&directory, PD_INVALID, "tensor b");
    write_index(&directory, "{\"weight_map\":{\"a\":\"three.safetensors\"}}");
    assert_directory(&directory, PD_NOT_FOUND, "three.safetensors");
    write_index(&directory, "{\"weight_map\":[]}");
    assert_directory(&directory, PD_INVALID, "weight_map");
    write_shard(&directory, "two.safetensors", "{" TENSOR("a", "F32", "4", 0, 16) "}", 16);
    write_index(&directory,
                "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    assert_directory(&directory, PD_INVALID, "two of this name");
    remove_directory(&directory);
}

static void test_an_index_cannot_leave_its_directory(void **state)
{
    static const char *const names[] = {"../one.safetensors",
                                        "/etc/one.safetensors",
                                        ".hidden.safetensors",
                                        ".safetensors",
                                        "one.bin",
                                        "one\\n.safetensors",
                                        ""};
    struct directory directory = make_directory();
    char text[256];

    (void)state;
    write_shard(&directory, "one.safetensors", good, 28);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(text, sizeof(text), "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        write_index(&directory, text);
        assert_directory(&directory, PD_INVALID, "a shard's name");
    }
    write_index(&directory, "{\"weight_map\":{\"a\":7}}");
    assert_directory(&directory, PD_INVALID, "a shard's name");
    remove_directory(&directory);
}

/* Opening a FIFO for reading would wait for a writer for ever. */
static void test_a_fifo_is_no_model(void **state)
{
    struct directory directory = make_directory();
    char path[256];

    (void)state;
    snprintf(path, sizeof(path), "%s/model.safetensors", directory.path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_directory(&directory, PD_INVALID, "not a regular file");
    remove_directory(&directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_good_file_is_read),
        cmocka_unit_test(test_every_truncation_is_refused),
        cmocka_unit_test(test_every_spoiled_byte_stays_inside),
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_deep_nesting_is_refused),
        cmocka_unit_test(test_hostile_entries),
        cmocka_unit_test(test_every_byte_has_one_owner),
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_sharded_index),
        cmocka_unit_test(test_an_index_cannot_leave_its_directory),
        cmocka_unit_test(test_a_fifo_is_no_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
