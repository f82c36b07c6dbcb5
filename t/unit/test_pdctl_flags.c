/* pdctl's flags: what is taken, what is refused, and that nothing is guessed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "pdctl/flags.h"

static const char *text;
static uint32_t milliseconds;
static bool on;

static const struct pd_flag flags[] = {
    {"name", "NAME", PD_FLAG_TEXT, &text, 0, 0, "a name"},
    {"wait", "SECONDS", PD_FLAG_SECONDS, &milliseconds, 100, 60000, "a time"},
    {"on", NULL, PD_FLAG_SWITCH, &on, 0, 0, "a switch"},
    {.name = NULL},
};

static char *operands[2];

static int parse(const char *const *words, struct pd_arguments *arguments, struct pd_error *error)
{
    char *argv[8];
    int argc = 0;

    for (; words[argc]; argc++)
        argv[argc] = (char *)words[argc];
    *arguments = (struct pd_arguments){operands, 0, 2, false};
    text = "";
    milliseconds = 7;
    on = false;
    return pd_flags_parse(argc, argv, flags, arguments, error);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_flags_and_operands_in_any_order(void **state)
{
    struct pd_arguments arguments;
    struct pd_error error;

    (void)state;
    assert_int_equal(
        parse(WORDS("a", "--wait", "1.5", "b", "--on", "--name=x=y"), &arguments, &error), PD_OK);
    assert_int_equal(arguments.count, 2);
    assert_string_equal(operands[0], "a");
    assert_string_equal(operands[1], "b");
    assert_int_equal(milliseconds, 1500);
    assert_true(on);
    assert_string_equal(text, "x=y");

    assert_int_equal(parse(WORDS("--", "--on", "--"), &arguments, &error), PD_OK);
    assert_int_equal(arguments.count, 2);
    assert_string_equal(operands[0], "--on");
    assert_false(on);
    assert_int_equal(milliseconds, 7);
}

static void test_help_ends_the_reading(void **state)
{
    struct pd_arguments arguments;
    struct pd_error error;

    (void)state;
    assert_int_equal(parse(WORDS("--help", "--nonsense"), &arguments, &error), PD_OK);
    assert_true(arguments.help);
}

static void test_refusals_say_what_to_write(void **state)
{
    static const struct {
        const char *words[4], *says;
    } cases[] = {
        {{"--wait", "0.09"}, "--wait 0.09: write seconds from 0.1 to 60"},
        {{"--wait", "60.1"}, "write seconds"},
        {{"--wait", "1s"}, "write seconds"},
        {{"--wait", "nan"}, "write seconds"},
        {{"--wait=", NULL}, "write seconds"},
        {{"--wait", NULL}, "--wait needs a value: write --wait SECONDS"},
        {{"--name=", NULL}, "--name is empty"},
        {{"--on=1", NULL}, "--on takes no value"},
        {{"--wai", "1"}, "no flag --wai"},
        {{"--waiting", "1"}, "no flag --waiting"},
        {{"-w", NULL}, "\"-w\" is no flag"},
        {{"a", "b", "c"}, "\"c\" is one argument too many"},
    };
    struct pd_arguments arguments;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct pd_error error = {0};

        assert_int_equal(parse(cases[i].words, &arguments, &error), PD_INVALID);
        assert_non_null(strstr(error.text, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags_and_operands_in_any_order),
        cmocka_unit_test(test_help_ends_the_reading),
        cmocka_unit_test(test_refusals_say_what_to_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
