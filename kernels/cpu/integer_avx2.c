#include "kernels/cpu/int12.h"
#include "kernels/cpu/int8.h"

const struct pd_cpu_narrow pd_cpu_int12_avx2 = INT12_KERNELS(multiply_panel);
const struct pd_cpu_narrow pd_cpu_int8_avx2 = INT8_KERNELS;
