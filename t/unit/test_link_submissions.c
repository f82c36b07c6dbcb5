/* How long a submission may take to come, part by part. The stream behind it is a double: it notes
 * what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "worker/link/submissions.h"

static const uint64_t second_ns = 1000000000;

static struct pd_link link_room;
static struct pd_link_identity identity = {.max_submit_bytes = 1 << 20};
static struct pd_attach attach;
static uint64_t refused; /* the last one, 0: none */
static int refused_code;

/* ---- the double --------------------------------------------------------------------------------- */

void pd_attach_running(struct pd_link *link, long by)
{
    atomic_fetch_add(&link->running, (size_t)by);
}

void pd_attach_attempt_over(struct pd_attach *one, struct pd_attempt_entry *entry)
{
    one->assembling--;
    pd_attempts_remove(&one->attempts, entry);
}

bool pd_attach_send_failed(struct pd_attach *one, uint64_t request, uint32_t attempt,
                           const struct pd_refusal *refusal)
{
    (void)one;
    (void)attempt;
    refused = request;
    refused_code = refusal->code;
    return true;
}

bool pd_attach_refuse(struct pd_attach *one, struct pd_attempt_entry *entry,
                      const struct pd_refusal *refusal)
{
    uint64_t request = entry->request;

    pd_attach_attempt_over(one, entry);
    return pd_attach_send_failed(one, request, 1, refusal);
}

void pd_attach_report_soon(struct pd_attach *one)
{
    (void)one;
}

void pd_attach_close_bad(struct pd_attach *one, grpc_status_code code, const char *why)
{
    (void)one;
    (void)code;
    fail_msg("%s", why);
}

/* ---- tests -------------------------------------------------------------------------------------- */

static int begin(void **state)
{
    (void)state;
    link_room.identity = &identity;
    link_room.budget.limit = 1 << 20;
    link_room.loop.tick_at_ns = UINT64_MAX;
    attach.link = &link_room;
    refused = 0;
    return 0;
}

static int end(void **state)
{
    (void)state;
    pd_attempts_clear(&attach.attempts);
    attach.assembling = 0;
    return 0;
}

static struct pd_attempt_entry *send_part(uint64_t request, uint64_t total)
{
    Pd__V1__SubmitPart part = PD__V1__SUBMIT_PART__INIT;

    part.request = request;
    part.attempt = 1;
    part.total = total;
    part.data.data = (uint8_t *)"x";
    part.data.len = 1;
    pd_submissions_part(&attach, &part);
    return pd_attempts_find(&attach.attempts, request, 1);
}

/* A part now and then does not keep a submission, and its share of the budget, alive. */
static void test_the_whole_of_a_submission_has_its_time(void **state)
{
    struct pd_attempt_entry *entry = send_part(1, 1000);
    uint64_t until_ns = entry->until_ns;

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_ptr_equal(send_part(1, 0), entry);
    assert_true(atomic_load(&link_room.budget.used) > 0);
    assert_true(pd_submissions_tick(&attach, until_ns - 1));
    assert_int_equal(refused, 0);
    assert_true(pd_submissions_tick(&attach, until_ns));
    assert_int_equal(refused, 1);
    assert_int_equal(refused_code, PD__V1__FAILED__CODE__DEADLINE);
    assert_int_equal(atomic_load(&link_room.budget.used), 0);
}

static void test_the_wake_is_for_the_first_one_due(void **state)
{
    uint64_t first_ns = send_part(1, 1000)->until_ns;

    (void)state;
    assert_int_equal(link_room.loop.tick_at_ns, first_ns);
    send_part(2, 1000)->until_ns += second_ns;
    assert_int_equal(link_room.loop.tick_at_ns, first_ns);
    link_room.loop.tick_at_ns = UINT64_MAX;
    assert_true(pd_submissions_tick(&attach, first_ns));
    assert_int_equal(refused, 1);
    assert_int_equal(link_room.loop.tick_at_ns, pd_attempts_find(&attach.attempts, 2, 1)->until_ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_whole_of_a_submission_has_its_time, begin, end),
        cmocka_unit_test_setup_teardown(test_the_wake_is_for_the_first_one_due, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
