#include "kernels/cpu/integer.h"

const struct pd_cpu_integer pd_cpu_integer_avx2 = {.round = round_row, .multiply = multiply_panel};
