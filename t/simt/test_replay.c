/* A whole real model, its steps replayed and its steps launched one by one: the same bits of every logit, not only the
 * same tokens. Asks for PD_MODEL; a token is a second of fibers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "t/simt/control.h"
#include "t/unit/model_run.h"

/* The first runs launch by launch on either device, the second is recorded. */
enum { TOKENS = 4, LENGTH = 64 };

static const int32_t ids[TOKENS] = {504, 3362, 314, 253};

struct answers {
    float *logits; /* [TOKENS][vocabulary] */
    int32_t sampled[TOKENS];
    size_t count; /* of logits */
    long replays;
};

static void answer(const char *path, bool eager, struct answers *answers)
{
    long before = pd_simt_replays();
    struct model_run run;
    size_t vocabulary;

    model_run_eager = eager;
    model_run_open(&run, path, "cuda", PD_PRECISION_F32, 2, LENGTH);
    vocabulary = (size_t)run.config->vocabulary;
    answers->count = TOKENS * vocabulary;
    answers->logits = calloc(answers->count, sizeof(float));
    assert_non_null(answers->logits);
    for (int i = 0; i < TOKENS; i++)
        model_run_step(&run, ids, i, 1, &i, 1, answers->logits + (size_t)i * vocabulary,
                       &answers->sampled[i]);
    model_run_close(&run);
    answers->replays = pd_simt_replays() - before;
}

static void test_a_replayed_model_has_the_bits_of_direct_launches(void **state)
{
    const char *path = getenv("PD_MODEL");
    struct answers replayed, direct;

    (void)state;
    if (path == NULL)
        skip();
    answer(path, false, &replayed);
    answer(path, true, &direct);
    assert_int_equal(replayed.replays, TOKENS - 1);
    assert_int_equal(direct.replays, 0);
    assert_memory_equal(replayed.sampled, direct.sampled, sizeof(direct.sampled));
    for (size_t i = 0; i < direct.count; i++)
        if (memcmp(&replayed.logits[i], &direct.logits[i], sizeof(float)) != 0)
            fail_msg("token %zu, logit %zu: %.9g replayed, %.9g launched directly",
                     i / (direct.count / TOKENS), i % (direct.count / TOKENS),
                     (double)replayed.logits[i], (double)direct.logits[i]);
    free(replayed.logits);
    free(direct.logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_replayed_model_has_the_bits_of_direct_launches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
