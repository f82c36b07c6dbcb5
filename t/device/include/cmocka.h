/* The words of cmocka that the suites use, for a program that is linked with libc alone. A failure
 * ends the process: each stage is a process of its own. */
#ifndef PD_DEVICE_CMOCKA_H
#define PD_DEVICE_CMOCKA_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail_msg(...)                                                                              \
    (fprintf(stderr, __VA_ARGS__), fprintf(stderr, " (%s:%d)\n", __FILE__, __LINE__), exit(1))

#define assert_true(what)                                                                          \
    do {                                                                                           \
        if (!(what))                                                                               \
            fail_msg("not so: %s", #what);                                                         \
    } while (0)

#define assert_int_equal(a, b)                                                                     \
    do {                                                                                           \
        long long left = (long long)(a), right = (long long)(b);                                   \
        if (left != right)                                                                         \
            fail_msg("%s is %lld, not %lld", #a, left, right);                                     \
    } while (0)

#define assert_false(what)              assert_true(!(what))
#define assert_null(what)               assert_true((what) == NULL)
#define assert_non_null(what)           assert_true((what) != NULL)
#define assert_int_not_equal(a, b)      assert_true((a) != (b))
#define assert_in_range(v, low, high)   assert_true((v) >= (low) && (v) <= (high))
#define assert_string_equal(a, b)       assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, size) assert_true(memcmp(a, b, size) == 0)

#define assert_float_equal(a, b, epsilon) assert_true(fabs((double)(a) - (double)(b)) <= (epsilon))

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
};

#define cmocka_unit_test(test)                                                                     \
    {                                                                                              \
#test, test                                                                                \
    }

static inline int pd_device_run(const struct CMUnitTest *tests, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *state = NULL;

        fprintf(stderr, "# %s\n", tests[i].name);
        tests[i].test(&state);
    }
    return 0;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    pd_device_run(tests, sizeof(tests) / sizeof((tests)[0]))

#endif
