/* Number formats: dequantisers against the gguf package, conversions over every 16-bit pattern. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/dtype.h"
#include "t/unit/dequant_vectors.h"

#define VECTOR(type, name)                                                                         \
    {                                                                                              \
        type, name##_bytes, sizeof(name##_bytes), name##_floats, sizeof(name##_floats) / 4         \
    }

static void test_dequantize_as_gguf_does(void **state)
{
    static const struct {
        enum pd_dtype type;
        const uint8_t *bytes;
        size_t size;
        const uint32_t *floats;
        size_t count;
    } vectors[] = {
        VECTOR(PD_F16, f16),   VECTOR(PD_BF16, bf16), VECTOR(PD_Q4_0, q4_0), VECTOR(PD_Q4_1, q4_1),
        VECTOR(PD_Q5_0, q5_0), VECTOR(PD_Q8_0, q8_0), VECTOR(PD_Q4_K, q4_k), VECTOR(PD_Q6_K, q6_k),
    };

    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        float *out = malloc(vectors[i].count * sizeof(*out));
        size_t per_block = (size_t)pd_dtype_block(vectors[i].type);

        assert_int_equal(vectors[i].size / (size_t)pd_dtype_bytes(vectors[i].type) * per_block,
                         vectors[i].count);
        assert_int_equal(pd_dequantize(vectors[i].type, vectors[i].bytes, out, vectors[i].count),
                         0);
        for (size_t j = 0; j < vectors[i].count; j++) {
            if (pd_bits_of_float(out[j]) != vectors[i].floats[j])
                fail_msg("%s, value %zu: %a, not %a", pd_dtype_name(vectors[i].type), j,
                         (double)out[j], (double)pd_float_of_bits(vectors[i].floats[j]));
        }
        free(out);
    }
}

static void test_sizes(void **state)
{
    float out[64];

    (void)state;
    assert_int_equal(pd_dtype_block(PD_Q6_K), 256);
    assert_int_equal(pd_dtype_bytes(PD_Q6_K), 210);
    assert_int_equal(pd_dtype_block(PD_DTYPE_COUNT), 0);
    assert_string_equal(pd_dtype_name(PD_Q4_1), "Q4_1");
    assert_int_equal(pd_dequantize(PD_Q4_1, q4_1_bytes, out, 33), PD_KERNEL_INVALID);
    assert_int_equal(pd_dequantize(PD_DTYPE_COUNT, q4_1_bytes, out, 32), PD_KERNEL_INVALID);
}

/* There and back is the identity, and a number rounds to the nearest of its neighbours, ties to even. */
static void test_half_conversions(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits;
        float value = pd_float_of_f16(half), brain = pd_float_of_bf16(half);

        if (!isnan(value))
            assert_int_equal(pd_f16_of_float(value), half);
        else
            assert_true(isnan(pd_float_of_f16(pd_f16_of_float(value))));
        if (!isnan(brain))
            assert_int_equal(pd_bf16_of_float(brain), half);
        else
            assert_true(isnan(pd_float_of_bf16(pd_bf16_of_float(brain))));
    }
    for (uint32_t bits = 0; bits < 0x7bff; bits++) { /* positive, finite neighbours */
        float low = pd_float_of_f16((uint16_t)bits), high = pd_float_of_f16((uint16_t)(bits + 1));
        float middle = (low + high) / 2;

        assert_int_equal(pd_f16_of_float(middle), bits + (bits & 1));
        assert_int_equal(pd_f16_of_float(nextafterf(middle, 0)), bits);
        assert_int_equal(pd_f16_of_float(-nextafterf(middle, high)), (bits + 1) | 0x8000);
    }
    assert_int_equal(pd_f16_of_float(65519.9f), 0x7bff);
    assert_int_equal(pd_f16_of_float(65520.0f), 0x7c00);
    assert_int_equal(pd_bf16_of_float(1.00390625f), 0x3f80); /* 1 + 2^-8: a tie, to even */
    assert_int_equal(pd_bf16_of_float(1.01171875f), 0x3f82);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dequantize_as_gguf_does),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_half_conversions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
