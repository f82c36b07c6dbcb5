/* Ranks of a group on the CUDA backend: what their kernels add and gather when they meet, whole models on
 * several ranks, and ranks that fail. A rank's pilot is a thread; the shim's launches run in it. */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/cuda.h"
#include "t/simt/control.h"
#include "t/unit/dummy_models.h"
#include "t/unit/kernel_rig.h"

/* Under ThreadSanitizer, which PD_SIMT_SHAPES tells of: the kernels alone, on few ranks, and only those that
 * meet. */
static bool is_small(void)
{
    return getenv("PD_SIMT_SHAPES") != NULL;
}

static int most_ranks(void)
{
    return is_small() ? 3 : PD_RANKS_MAX;
}

static int rounds(void)
{
    return is_small() ? 1 : 3;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

enum { MOST = PD_CUDA_MEETING_VALUES + 77, ROWS = 3, COLS = 53, GUARD = 16 };

struct meeters {
    int ranks;
    struct pd_cuda_meeting meeting[PD_RANKS_MAX];
    uint64_t abandoned;
    float *in[PD_RANKS_MAX], *out[PD_RANKS_MAX];
    uint64_t seed;
};

struct meeter {
    struct meeters *all;
    int rank, error;
};

static void open_meeters(struct meeters *all, int ranks)
{
    memset(all, 0, sizeof(*all));
    all->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        struct pd_cuda_meeting *meeting = &all->meeting[r];

        meeting->values[r] = calloc(2 * (size_t)PD_CUDA_MEETING_VALUES, sizeof(float));
        meeting->flags[r] = calloc((size_t)PD_RANKS_MAX * PD_CUDA_MEETING_BLOCKS, sizeof(uint64_t));
        meeting->calls = calloc(PD_CUDA_MEETING_BLOCKS, sizeof(uint64_t));
        all->in[r] = malloc(MOST * sizeof(float));
        all->out[r] = malloc((MOST + GUARD) * sizeof(float));
        pd_rig_fill(all->in[r], MOST, 1, (uint64_t)r + 1);
    }
    for (int r = 0; r < ranks; r++) {
        all->meeting[r].rank = r;
        all->meeting[r].ranks = ranks;
        all->meeting[r].abandoned = &all->abandoned;
        for (int peer = 0; peer < ranks; peer++) {
            all->meeting[r].values[peer] = all->meeting[peer].values[peer];
            all->meeting[r].flags[peer] = all->meeting[peer].flags[peer];
        }
    }
}

static void close_meeters(struct meeters *all)
{
    for (int r = 0; r < all->ranks; r++) {
        free(all->meeting[r].values[r]);
        free(all->meeting[r].flags[r]);
        free(all->meeting[r].calls);
        free(all->in[r]);
        free(all->out[r]);
    }
}

static void run_meeters(struct meeters *all, int first, int end, void *(*work)(void *argument))
{
    struct meeter meeters[PD_RANKS_MAX];
    pthread_t threads[PD_RANKS_MAX];

    for (int r = first; r < end; r++) {
        meeters[r] = (struct meeter){all, r, 0};
        assert_int_equal(pthread_create(&threads[r], NULL, work, &meeters[r]), 0);
    }
    for (int r = first; r < end; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(meeters[r].error, 0);
    }
}

/* ((0 + 1) + (2 + 3)) + ...: the left part is the largest power of two below their number. */
static float tree(const struct meeters *all, int first, int ranks, size_t at)
{
    int half = 1;

    if (ranks == 1)
        return all->in[first][at];
    while (2 * half < ranks)
        half *= 2;
    return tree(all, first, half, at) + tree(all, first + half, ranks - half, at);
}

/* False: what rank `self` has got is not the sum, or there is more of it. */
static bool reduce(const struct meeter *self, int count, bool add)
{
    const struct meeters *all = self->all;
    float *out = all->out[self->rank];
    bool right;

    for (int k = 0; k < count + GUARD; k++)
        out[k] = 0.5f;
    right = pd_cuda_allreduce((void *)(uintptr_t)(all->seed + (uint64_t)self->rank),
                              &all->meeting[self->rank], all->in[self->rank], (size_t)count, add,
                              out) == 0;
    for (int k = 0; k < count && right; k++)
        right = out[k] == (add ? 0.5f : 0) + tree(all, 0, all->ranks, (size_t)k);
    for (int k = 0; k < GUARD && right; k++)
        right = out[count + k] == 0.5f;
    return right;
}

/* One after the other: the calls go on counting, and halves are written again and again. */
static void *reduce_small(void *argument)
{
    static const int counts[] = {1, 15, 16, 17, 1000};
    struct meeter *self = argument;

    for (int i = 0; i < 5 && self->error == 0; i++)
        self->error = reduce(self, counts[i], i % 2 == 1) ? 0 : 1 + i;
    return NULL;
}

static void *reduce_large(void *argument)
{
    struct meeter *self = argument;

    self->error = reduce(self, MOST, true) ? 0 : 1;
    return NULL;
}

static void test_sums_are_the_tree_over_the_ranks(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= most_ranks(); ranks++) {
        static struct meeters all;

        open_meeters(&all, ranks);
        for (all.seed = 1; all.seed <= (uint64_t)rounds(); all.seed++)
            run_meeters(&all, 0, ranks, reduce_small);
        if (ranks == 3 && !is_small()) /* more values than one launch takes */
            run_meeters(&all, 0, ranks, reduce_large);
        close_meeters(&all);
    }
}

static void *gather(void *argument)
{
    struct meeter *self = argument;
    struct meeters *all = self->all;
    float *out = all->out[self->rank];

    for (int k = 0; k < ROWS * COLS + GUARD; k++)
        out[k] = 0.5f;
    self->error = pd_cuda_allgather((void *)(uintptr_t)(self->rank + 1), &all->meeting[self->rank],
                                    all->in[self->rank], ROWS, COLS, out);
    for (int r = 0; r < all->ranks; r++) {
        int left = pd_share_first(COLS, r, all->ranks);
        int width = pd_share_first(COLS, r + 1, all->ranks) - left;

        for (int i = 0; i < ROWS * width; i++)
            if (out[i / width * COLS + left + i % width] != all->in[r][i])
                self->error = 1000 + r;
    }
    for (int k = 0; k < GUARD; k++)
        if (out[ROWS * COLS + k] != 0.5f)
            self->error = 2000;
    return NULL;
}

/* Columns that do not divide, among sums: they count as one kind of meeting. */
static void test_columns_of_all_ranks_side_by_side(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= most_ranks(); ranks++) {
        static struct meeters all;

        open_meeters(&all, ranks);
        for (int i = 0; i < rounds(); i++) {
            run_meeters(&all, 0, ranks, gather);
            run_meeters(&all, 0, ranks, reduce_small);
        }
        close_meeters(&all);
    }
}

static void *come_alone(void *argument)
{
    struct meeter *self = argument;

    self->error =
        pd_cuda_allreduce((void *)1, &self->all->meeting[self->rank], self->all->in[self->rank],
                          100, false, self->all->out[self->rank]);
    return NULL;
}

/* Two of three come, and end once the group is given up. */
static void test_an_abandoned_meeting_ends(void **state)
{
    static struct meeters all;

    (void)state;
    if (is_small())
        skip();
    open_meeters(&all, 3);
    all.abandoned = 1;
    run_meeters(&all, 0, 2, come_alone);
    close_meeters(&all);
}

/* ---- whole models ---------------------------------------------------------------------------- */

enum { COUNT = 12, VALUES = COUNT * 256 };

static void model_logits(int family, const char *kind, int ranks, float *logits)
{
    struct model_run run;
    char directory[64];

    dummy_model_write(family, directory);
    model_run_make_ranks(&run, directory, 5, kind, 1, ranks);
    dummy_model_logits(&run, COUNT, logits);
    model_run_close(&run);
    dummy_model_remove(directory);
}

/* A prompt in one chunk, then tokens one by one, recorded and replayed by every rank's pilot. */
static void test_ranks_compute_the_model(void **state)
{
    static float expected[VALUES], logits[VALUES];

    (void)state;
    if (is_small())
        skip();
    for (int family = 0; dummy_families[family] != NULL; family++) {
        int ranks = family % 2 == 0 ? 2 : 4;
        long before = pd_simt_replays();
        double error;

        model_logits(family, "reference", 1, expected);
        model_logits(family, "cuda", ranks, logits);
        error = pd_rig_error(logits, expected, VALUES);
        if (!(error < 1e-2))
            fail_msg("family %d on %d ranks: error %g", family, ranks, error);
        assert_int_equal(pd_simt_replays() - before, ranks * (COUNT / 2 - 1));
    }
}

/* ---- ranks that fail ------------------------------------------------------------------------- */

static void open_model(struct model_run *run, char directory[64])
{
    dummy_model_write(0, directory);
    model_run_make_ranks(run, directory, 5, "cuda", 1, 2);
}

/* False: no call failed. */
static bool run_until_fault(long calls)
{
    struct pd_step *step;
    struct model_run run;
    char directory[64];
    int status;

    open_model(&run, directory);
    assert_int_equal(pd_step_acquire(run.device, &step), PD_KERNEL_OK);
    step->tokens = step->sequences = step->length[0] = step->context[0] = 1;
    pd_simt_fail_after(calls, 700);
    status = pd_graph_launch(pd_model_graph(run.model), step);
    if (status == PD_KERNEL_OK)
        status = pd_step_wait(run.device, step->number, 60000);
    pd_simt_fail_after(-1, 0);
    if (status != PD_KERNEL_OK) {
        assert_int_equal(status, PD_KERNEL_LOST);
        if (strstr(pd_device_error(run.device), "rank ") == NULL ||
            strstr(pd_device_error(run.device), "illegal memory access") == NULL)
            fail_msg("after %ld calls: %s", calls, pd_device_error(run.device));
        assert_int_equal(pd_step_acquire(run.device, &step), PD_KERNEL_OK);
        step->tokens = step->sequences = step->length[0] = step->context[0] = 1;
        assert_int_equal(pd_graph_launch(pd_model_graph(run.model), step), PD_KERNEL_LOST);
    }
    model_run_close(&run);
    dummy_model_remove(directory);
    return status != PD_KERNEL_OK;
}

/* Every call, also those between which the other rank waits in a kernel. */
static void test_a_rank_that_fails_loses_the_group_and_lets_the_other_go(void **state)
{
    long calls = 0;

    (void)state;
    if (is_small())
        skip();
    while (run_until_fault(calls))
        calls += 1 + calls / 4;
    assert_true(calls > 30);
}

/* ---- NCCL, or what stands in for it ----------------------------------------------------------- */

static struct {
    void *library;
    const char *before; /* what stood in for it */
    void (*fail_after)(long calls, int error);
    void (*fail_late)(int error);
    long (*sums)(void);
    long (*alive)(void);
} nccl;

/* Its folder is beside this program. */
static int open_standin(void **state)
{
    static char folder[PATH_MAX + 8];
    char program[PATH_MAX] = "", path[PATH_MAX + 32];

    (void)state;
    assert_true(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    snprintf(folder, sizeof(folder), "%s/nccl", dirname(program));
    snprintf(path, sizeof(path), "%s/libnccl.so.2", folder);
    nccl.library = dlopen(path, RTLD_NOW);
    if (nccl.library == NULL)
        fail_msg("%s", dlerror());
    *(void **)&nccl.fail_after = dlsym(nccl.library, "nccl_standin_fail_after");
    *(void **)&nccl.fail_late = dlsym(nccl.library, "nccl_standin_fail_late");
    *(void **)&nccl.sums = dlsym(nccl.library, "nccl_standin_sums");
    *(void **)&nccl.alive = dlsym(nccl.library, "nccl_standin_alive");
    nccl.before = pd_simt_library_file(PD_CUDA_LIBRARY_NCCL, "libnccl.so.2");
    model_run_cuda_libraries = folder;
    pd_cuda_one_shot_bytes = 1024; /* four rows of the dummy models */
    return 0;
}

static int close_standin(void **state)
{
    (void)state;
    nccl.fail_after(-1, 0);
    nccl.fail_late(0);
    assert_int_equal(nccl.alive(), 0);
    pd_simt_library_file(PD_CUDA_LIBRARY_NCCL, nccl.before);
    model_run_cuda_libraries = NULL;
    pd_cuda_one_shot_bytes = 1 << 20;
    dlclose(nccl.library);
    return 0;
}

/* Six rows at a time are more than the own way takes, single ones are less: these are recorded and replayed. */
static void test_large_sums_go_through_nccl(void **state)
{
    static float expected[VALUES], logits[VALUES];

    (void)state;
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        long sums = nccl.sums();
        double error;

        model_logits(0, "reference", 1, expected);
        model_logits(0, "cuda", ranks, logits);
        error = pd_rig_error(logits, expected, VALUES);
        if (!(error < 1e-2))
            fail_msg("%d ranks: error %g", ranks, error);
        /* the embedding, and two products of each of two layers */
        assert_int_equal(nccl.sums() - sums, ranks * 5);
        assert_int_equal(nccl.alive(), 0);
    }
}

/* One token of each of `count` sequences, sampled. */
static void decode(struct model_run *run, int count)
{
    struct pd_step *step;

    assert_int_equal(pd_step_acquire(run->device, &step), PD_KERNEL_OK);
    step->tokens = step->sequences = step->samples = count;
    for (int i = 0; i < count; i++) {
        step->sequence[i] = step->slot[i] = step->sample_slot[i] = i;
        step->first[i] = step->sample_row[i] = step->kv_slot[i] = i;
        step->length[i] = step->context[i] = 1;
        step->sample[i] = (struct pd_sample_params){.top_p = 1, .typical_p = 1, .repetition = 1};
    }
    assert_int_equal(pd_graph_launch(pd_model_graph(run->model), step), PD_KERNEL_OK);
    assert_int_equal(pd_step_wait(run->device, step->number, 60000), PD_KERNEL_OK);
}

/* A communicator ends when no recording has a sum of its, and this one ends first. */
static void test_what_goes_through_nccl_is_not_recorded(void **state)
{
    long sums = nccl.sums(), replays = pd_simt_replays();
    struct model_run run;
    char directory[64];

    (void)state;
    if (is_small())
        skip();
    open_model(&run, directory);
    for (int i = 0; i < 3; i++)
        decode(&run, 6);
    assert_int_equal(nccl.sums() - sums, 3 * 2 * 5);
    assert_int_equal(pd_simt_replays() - replays, 0);
    for (int i = 0; i < 3; i++)
        decode(&run, 4);
    assert_int_equal(nccl.sums() - sums, 3 * 2 * 5);
    assert_int_equal(pd_simt_replays() - replays, 2 * 2);
    model_run_close(&run);
    dummy_model_remove(directory);
}

static void expect_told(const char *libraries, const char *numerics)
{
    struct pd_device_info info;
    struct model_run run;
    char directory[64];

    open_model(&run, directory);
    pd_device_describe(run.device, &info);
    if (strstr(info.libraries, libraries) == NULL)
        fail_msg("'%s' does not say '%s'", info.libraries, libraries);
    assert_true((strstr(info.numerics, "nccl") != NULL) == (numerics != NULL));
    if (numerics != NULL)
        assert_non_null(strstr(info.numerics, numerics));
    assert_int_equal(info.ranks_are_exact, model_run_deterministic);
    assert_int_equal(nccl.alive(), numerics != NULL ? 2 : 0);
    model_run_close(&run);
    dummy_model_remove(directory);
}

static void test_the_line_at_start_says_what_adds(void **state)
{
    (void)state;
    expect_told("; all-reduce by NCCL 2.27.3 beyond 1 KiB", "nccl>1024");
    model_run_deterministic = true;
    expect_told("; all-reduce of every size by own kernels: --deterministic", NULL);
    model_run_deterministic = false;
    nccl.fail_after(0, 2);
    expect_told("; all-reduce of every size by own kernels: ncclCommInitAll of 2 GPUs: unhandled "
                "system error",
                NULL);
    nccl.fail_after(-1, 0);
}

/* A step of six rows; what the group says of it. */
static int step_of_six(struct model_run *run)
{
    struct pd_step *step;
    int status;

    assert_int_equal(pd_step_acquire(run->device, &step), PD_KERNEL_OK);
    step->tokens = step->length[0] = step->context[0] = 6;
    step->sequences = 1;
    for (int i = 0; i < 6; i++)
        step->position[i] = step->kv_slot[i] = i;
    status = pd_graph_launch(pd_model_graph(run->model), step);
    return status == PD_KERNEL_OK ? pd_step_wait(run->device, step->number, 60000) : status;
}

/* Of the one rank at the call, while the other waits for it in its own; or of both, later. */
static void test_errors_of_nccl_lose_the_group_by_name(void **state)
{
    (void)state;
    for (long calls = 0; calls <= 10; calls++) {
        struct model_run run;
        char directory[64];
        int status;

        open_model(&run, directory);
        if (calls < 10)
            nccl.fail_after(calls, 2);
        else
            nccl.fail_late(2);
        status = step_of_six(&run);
        nccl.fail_after(-1, 0);
        nccl.fail_late(0);
        assert_int_equal(status, PD_KERNEL_LOST);
        if (strstr(pd_device_error(run.device), calls < 10
                                                    ? ": allreduce of 8 rows, 64 -> 64 "
                                                    : ": the sums of a step: NCCL") == NULL &&
            strstr(pd_device_error(run.device), "given up") == NULL)
            fail_msg("after %ld calls: %s", calls, pd_device_error(run.device));
        model_run_close(&run);
        dummy_model_remove(directory);
        assert_int_equal(nccl.alive(), 0);
    }
}

static void test_which_gpus_a_group_takes(void **state)
{
    struct pd_device_options options = pd_rig_options("cuda", NULL, 1);
    struct pd_device *device;
    char error[256];

    (void)state;
    options.ranks = 2;
    options.ordinal = 7;
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)),
                     PD_KERNEL_UNSUPPORTED);
    assert_non_null(strstr(error, "there is no GPU 8"));
    options.one_gpu = true;
    assert_int_equal(pd_device_open(&options, &device, error, sizeof(error)), PD_KERNEL_OK);
    assert_int_equal(pd_device_ranks(device), 2);
    pd_device_close(device);
    for (long calls = 0;; calls++) {
        int status;

        pd_simt_fail_after(calls, 2);
        status = pd_device_open(&options, &device, error, sizeof(error));
        pd_simt_fail_after(-1, 0);
        if (status == PD_KERNEL_OK)
            break;
        assert_non_null(strstr(error, "GPU 7"));
    }
    pd_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_the_tree_over_the_ranks),
        cmocka_unit_test(test_columns_of_all_ranks_side_by_side),
        cmocka_unit_test(test_an_abandoned_meeting_ends),
        cmocka_unit_test(test_ranks_compute_the_model),
        cmocka_unit_test(test_a_rank_that_fails_loses_the_group_and_lets_the_other_go),
        cmocka_unit_test(test_which_gpus_a_group_takes),
        cmocka_unit_test_setup_teardown(test_large_sums_go_through_nccl, open_standin,
                                        close_standin),
        cmocka_unit_test_setup_teardown(test_what_goes_through_nccl_is_not_recorded, open_standin,
                                        close_standin),
        cmocka_unit_test_setup_teardown(test_the_line_at_start_says_what_adds, open_standin,
                                        close_standin),
        cmocka_unit_test_setup_teardown(test_errors_of_nccl_lose_the_group_by_name, open_standin,
                                        close_standin),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
