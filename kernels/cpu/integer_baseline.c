#include "kernels/cpu/integer.h"

const struct pd_cpu_integer pd_cpu_integer_baseline = {.round = round_row,
                                                       .multiply = multiply_panel};
