/* Exponentials, and the SwiGLU that is made of them, beside double; the same bits wherever there is FMA. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/path.h"
#include "t/unit/kernel_rig.h"

enum { VALUES = 96 * 32, STEPS = 64 };

/* How many last places `got` is from `exact`. */
static double places(float got, double exact)
{
    int exponent;

    frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1, exponent - 24);
}

static const struct pd_cpu_path *path_of(const char *name)
{
    if (strcmp(name, "baseline") == 0)
        return &pd_cpu_path_baseline;
    return strcmp(name, "avx2") == 0 ? &pd_cpu_path_avx2 : &pd_cpu_path_avx512;
}

/* Of every size and either sign, up to `most`. */
static void fill(float *values, int count, float most, uint64_t seed)
{
    for (int i = 0; i < count; i++) {
        float size = ldexpf(most, -(int)(pd_rig_random(&seed) % 30));

        values[i] = size * ((float)(pd_rig_random(&seed) % 2000001) * 1e-6f - 1);
    }
}

static void test_exponentials(void **state)
{
    float *values = malloc(VALUES * sizeof(float)), *out = malloc(VALUES * sizeof(float)),
          *first = malloc(VALUES * sizeof(float)), sums[VALUES / PD_CPU_RUN + 1];
    float *const strange = values; /* five of them */

    (void)state;
    for (uint64_t seed = 0; seed < STEPS; seed++) {
        bool known = false;

        fill(values, VALUES, 86.9f, seed);
        memcpy(strange, (float[]){-INFINITY, NAN, -87.5f, INFINITY, 0}, 5 * sizeof(float));
        for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
            path_of(*path)->exponentials(values, VALUES, 0, 1, out, sums);
            assert_true(out[0] == 0 && isnan(out[1]) && out[2] == 0);
            assert_true(isinf(out[3]) && out[4] == 1);
            for (int i = 4; i < VALUES; i++) {
                if (places(out[i], exp((double)values[i])) > 2)
                    fail_msg("%s: e^%.9g is not %.9g", *path, (double)values[i], (double)out[i]);
            }
            if (strcmp(path_of(*path)->numerics, "fma") != 0)
                continue;
            if (known)
                assert_memory_equal(out, first, VALUES * sizeof(float));
            memcpy(first, out, VALUES * sizeof(float));
            known = true;
        }
    }
    free(values);
    free(out);
    free(first);
}

/* Gate and up are x itself: with f32 products of a unit matrix, silu(x) x comes out. */
static void swiglu(const char *path, const float *x, float *out)
{
    enum { COLS = 32, ROWS = 96 };
    struct pd_device_options options = pd_rig_options("cpu", path, 1);
    float unit[COLS * COLS] = {0};
    struct pd_weight_source sources[2] = {{unit, PD_F32, COLS}, {unit, PD_F32, COLS}};
    struct pd_weight *weight;
    struct pd_tensor in, result;
    struct pd_buffer *pinned;
    struct pd_graph *graph;
    struct pd_rig rig;
    int32_t token[ROWS];

    options.precision = PD_PRECISION_F32;
    pd_rig_open(&rig, &options);
    for (int i = 0; i < COLS; i++)
        unit[i * COLS + i] = 1;
    for (int i = 0; i < ROWS; i++)
        token[i] = i;
    assert_int_equal(
        pd_weight_create(rig.device, PD_WEIGHT_GATE_UP, COLS, sources, 2, false, &weight),
        PD_KERNEL_OK);
    in = pd_rig_tensor(&rig, ROWS, COLS);
    result = pd_rig_tensor(&rig, ROWS, COLS);
    pinned = pd_rig_pinned(&rig, ROWS * COLS * sizeof(float));
    graph = pd_rig_begin(&rig);
    pd_op_embed(graph, pd_rig_input(&rig, x, ROWS, COLS), in);
    pd_op_matmul(graph, weight, in, NULL, PD_EPILOGUE_SWIGLU, false, result);
    pd_op_read(graph, result, false, pinned);
    pd_rig_end(graph);
    pd_rig_run(&rig, graph, pd_rig_step(&rig, 0, token, ROWS, 0, 0));
    memcpy(out, pd_buffer_host(pinned), ROWS * COLS * sizeof(float));
    pd_rig_close(&rig);
}

static void test_swiglu(void **state)
{
    float *x = malloc(VALUES * sizeof(float)), *out = malloc(VALUES * sizeof(float));

    (void)state;
    for (const char *const *path = pd_rig_paths(); *path != NULL; path++) {
        for (uint64_t seed = 0; seed < 4; seed++) {
            fill(x, VALUES, seed % 2 == 0 ? 40 : 3e4f, seed);
            swiglu(*path, x, out);
            for (int i = 0; i < VALUES; i++) {
                double exact = (double)x[i] * (double)x[i] / (1 + exp(-(double)x[i]));

                /* below -80 it comes to nothing, and need only come near it */
                if (x[i] > -80 ? places(out[i], exact) > 5 : fabs((double)out[i]) > 1e-25)
                    fail_msg("%s: silu(x) x of %.9g is not %.9g", *path, (double)x[i],
                             (double)out[i]);
            }
        }
    }
    free(x);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exponentials),
        cmocka_unit_test(test_swiglu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
