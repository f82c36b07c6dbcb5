#include "kernels/cpu/integer.h"

const struct pd_cpu_narrow pd_cpu_integer_avx512 = INTEGER_KERNELS(multiply_panel);
