#include "kernels/cpu/integer.h"

const struct pd_cpu_narrow pd_cpu_integer_vnni = INTEGER_KERNELS(multiply_panel);
