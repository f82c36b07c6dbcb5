#include "kernels/cpu/integer.h"

const struct pd_cpu_narrow pd_cpu_integer_baseline = INTEGER_KERNELS(multiply_panel);
