/* The key file: what is taken, what is refused at which line, who has which key. The hashes are
 * sha256sum's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_http_pd_key.h"
#include "ngx_shim.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* printf %s test | sha256sum, and of "abc" (FIPS 180-4) and of "" */
#define SHA_TEST  "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
#define SHA_ABC   "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD"
#define SHA_EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static ngx_str_t string(const char *text)
{
    return (ngx_str_t){.len = strlen(text), .data = (u_char *)text};
}

/* From a copy that ends where the text does, so that a sanitizer sees who reads beyond. */
static ngx_int_t parse(ngx_http_pd_keys_t *keys, ngx_pool_t *pool, const char *text)
{
    size_t size = strlen(text);
    u_char *copy = malloc(size ? size : 1);
    ngx_int_t rc;

    memcpy(copy, text, size);
    rc = ngx_http_pd_key_parse(keys, pool, copy, copy + size);
    free(copy);
    return rc;
}

static const char *owner(ngx_http_pd_keys_t *keys, const char *key)
{
    static char name[NGX_HTTP_PD_TENANT_NAME + 1];
    ngx_str_t wanted = string(key);
    ngx_http_pd_tenant_t *tenant = ngx_http_pd_key_find(keys, &wanted);

    if (!tenant)
        return "nobody";
    snprintf(name, sizeof name, "%.*s", (int)tenant->name.len, (char *)tenant->name.data);
    return name;
}

static ngx_http_pd_tenant_t *named(ngx_http_pd_keys_t *keys, const char *name)
{
    ngx_str_t wanted = string(name);

    return ngx_http_pd_key_tenant(keys, &wanted);
}

static void knows_keys_by_their_hash(void **state)
{
    ngx_pool_t *pool = shim_pool_create();
    ngx_http_pd_keys_t keys;

    (void)state;
    assert_int_equal(parse(&keys, pool,
                           "# all of them\n\n"
                           "tenant acme\r\n"
                           "tenant\tother\n"
                           "key acme " SHA_TEST "   # the old one\n"
                           "key other " SHA_ABC "\n"
                           "key acme " SHA_EMPTY),
                     NGX_OK);
    assert_string_equal(owner(&keys, "test"), "acme");
    assert_string_equal(owner(&keys, "abc"), "other");
    assert_string_equal(owner(&keys, "abd"), "nobody");
    assert_string_equal(owner(&keys, "tes"), "nobody");
    assert_string_equal(owner(&keys, SHA_TEST), "nobody"); /* a hash opens nothing */
    assert_string_equal(owner(&keys, ""), "nobody");
    shim_pool_destroy(pool);
}

static void knows_many_keys(void **state)
{
    ngx_pool_t *pool = shim_pool_create();
    ngx_http_pd_keys_t keys;
    char *text = malloc(1 << 20), *end = text;
    u_char *digest;
    size_t stride;

    (void)state;
    for (int i = 0; i < 3000; i++)
        end += sprintf(end, "tenant t%d\nkey t%d %064x\n", i, i, i * 7919);
    end += sprintf(end, "key t77 " SHA_TEST "\n");
    assert_int_equal(parse(&keys, pool, text), NGX_OK);
    assert_string_equal(owner(&keys, "test"), "t77");
    assert_string_equal(owner(&keys, "abc"), "nobody");
    for (int i = 0; i < 3000; i++) {
        char name[16];

        sprintf(name, "t%d", i);
        assert_non_null(named(&keys, name));
    }
    assert_null(named(&keys, "t3000"));

    /* every key lies where its first byte says */
    digest = keys.keys.elts;
    stride = keys.keys.size;
    for (size_t i = 0; i < keys.keys.nelts; i++)
        assert_in_range(i, keys.first[digest[i * stride]], keys.first[digest[i * stride] + 1] - 1);
    free(text);
    shim_pool_destroy(pool);
}

static void reads_what_a_tenant_may(void **state)
{
    ngx_pool_t *pool = shim_pool_create();
    ngx_http_pd_keys_t keys;
    ngx_http_pd_model_limits_t *others;
    ngx_http_pd_tenant_t *acme;
    ngx_str_t small = string("small"), large = string("large"), huge = string("huge");

    (void)state;
    assert_int_equal(parse(&keys, pool,
                           "tenant acme models=small,large requests=600 tokens=1000000000 "
                           "max_output=off class=interactive weight=3\n"
                           "tenant free\n"
                           "limit acme large tokens=50000 concurrent=2 max_prompt=8000\n"),
                     NGX_OK);
    acme = named(&keys, "acme");
    assert_int_equal(acme->limits.requests, 600);
    assert_int_equal(acme->limits.tokens, 1000000000);
    assert_int_equal(acme->limits.output, 0);
    assert_int_equal(acme->limits.prompt, NGX_CONF_UNSET_UINT);
    assert_int_equal(acme->class, NGX_HTTP_PD_CLASS_INTERACTIVE);
    assert_int_equal(acme->weight, 3);
    assert_true(ngx_http_pd_key_allows(acme, &small));
    assert_true(ngx_http_pd_key_allows(acme, &large));
    assert_false(ngx_http_pd_key_allows(acme, &huge));
    assert_true(ngx_http_pd_key_allows(named(&keys, "free"), &huge));
    assert_int_equal(named(&keys, "free")->class, NGX_CONF_UNSET_UINT);

    assert_int_equal(acme->others.nelts, 1);
    others = acme->others.elts;
    ngx_http_pd_limits_merge(&others->limits, &acme->limits);
    assert_int_equal(others->limits.requests, 600);
    assert_int_equal(others->limits.tokens, 50000);
    assert_int_equal(others->limits.concurrent, 2);
    assert_int_equal(others->limits.prompt, 8000);
    shim_pool_destroy(pool);
}

/* With the line, and a part of the cure. */
static const struct {
    const char *text;
    unsigned line;
    const char *error;
} bad[] = {
    {"acme\n", 1, "begins with"},
    {"\n\ntenants acme\n", 3, "begins with"},
    {"tenant", 1, "write a name"},
    {"tenant # acme", 1, "write a name"},
    {"tenant \x01x", 1, "write a name"},
    {"tenant caf\xc3\xa9", 1, "write a name"},
    {"tenant a\ntenant b\ntenant a\ntenant c", 3, "already"},
    {"tenant a speed=9", 1, "come models="},
    {"tenant a models=", 1, "come models="},
    {"tenant a models=x,,y", 1, "models=A,B,C"},
    {"tenant a models=x,", 1, "models=A,B,C"},
    {"tenant a class=fast", 1, "class=interactive"},
    {"tenant a weight=0", 1, "weight=1"},
    {"tenant a weight=1001", 1, "weight=1"},
    {"tenant a requests=0", 1, "number from 1"},
    {"tenant a requests=", 1, "number from 1"},
    {"tenant a tokens=-1", 1, "number from 1"},
    {"tenant a tokens=1000000001", 1, "number from 1"},
    {"tenant a tokens=99999999999999999999", 1, "number from 1"},
    {"tenant a tokens=10k", 1, "number from 1"},
    {"tenant a\nlimit b m tokens=1", 2, "no tenant of this name"},
    {"limit", 1, "name is missing"},
    {"tenant a\nlimit a", 2, "limit TENANT MODEL"},
    {"tenant a\nlimit a m weight=2", 2, "behind a model's name"},
    {"tenant a\nlimit a m tokens=1\nlimit a m tokens=2", 3, "keep one"},
    {"tenant a\nkey a", 2, "64 hexadecimal"},
    {"tenant a\nkey a sk-secret", 2, "64 hexadecimal"},
    {"tenant a\nkey " SHA_TEST " a", 2, "no tenant of this name"},
    {"tenant a\nkey a " SHA_TEST "0", 2, "64 hexadecimal"},
    {"tenant a\nkey a " SHA_TEST " x", 2, "64 hexadecimal"},
    {"tenant a\nkey a \x19"
     "f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
     2, "64 hexadecimal"},
    {"tenant a\ntenant b\nkey a " SHA_TEST "\nkey b " SHA_ABC "\nkey b " SHA_TEST "\n# end\n", 5,
     "given twice"},
};

static void refuses_with_line_and_cure(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        ngx_pool_t *pool = shim_pool_create();
        ngx_http_pd_keys_t keys;

        if (parse(&keys, pool, bad[i].text) == NGX_OK)
            fail_msg("taken: %s", bad[i].text);
        if (keys.line != bad[i].line || !strstr(keys.error, bad[i].error))
            fail_msg("%s: line %u, \"%s\"", bad[i].text, (unsigned)keys.line, keys.error);
        assert_null(strstr(keys.error, "sk-secret"));
        shim_pool_destroy(pool);
    }
}

static void has_room_for_so_many(void **state)
{
    static const struct {
        const char *head, *line, *error;
        int fit;
    } cases[] = {
        {"", "tenant t%d\n", "4096 tenants", NGX_HTTP_PD_TENANTS_MAX},
        {"tenant a\n", "key a %064d\n", "16384 keys", NGX_HTTP_PD_KEYS_MAX},
        {"tenant a\n", "limit a m%d tokens=1\n", "64 lines", NGX_HTTP_PD_TENANT_MODELS},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int more = 0; more < 2; more++) {
            ngx_pool_t *pool = shim_pool_create();
            ngx_http_pd_keys_t keys;
            char *text = malloc(2 << 20), *end = text;

            end += sprintf(end, "%s", cases[i].head);
            for (int n = 0; n < cases[i].fit + more; n++)
                end += sprintf(end, cases[i].line, n);
            assert_int_equal(parse(&keys, pool, text), more ? NGX_ERROR : NGX_OK);
            if (more)
                assert_non_null(strstr(keys.error, cases[i].error));
            free(text);
            shim_pool_destroy(pool);
        }
}

static void says_when_memory_is_out(void **state)
{
    (void)state;
    for (long n = 0;; n++) {
        ngx_pool_t *pool = shim_pool_create();
        ngx_http_pd_keys_t keys;
        ngx_int_t rc;

        shim_fail_after(n);
        rc = parse(&keys, pool,
                   "tenant acme models=small,large\nlimit acme small tokens=1\n"
                   "key acme " SHA_TEST "\n");
        shim_fail_after(-1);
        shim_pool_destroy(pool);
        if (rc == NGX_OK) {
            assert_true(n > 5);
            return;
        }
        assert_string_equal(keys.error, "no memory is left");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_keys_by_their_hash), cmocka_unit_test(knows_many_keys),
        cmocka_unit_test(reads_what_a_tenant_may),  cmocka_unit_test(refuses_with_line_and_cure),
        cmocka_unit_test(has_room_for_so_many),     cmocka_unit_test(says_when_memory_is_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
