#include "kernels/cpu/attend.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rowwise.h"

const struct pd_cpu_path pd_cpu_path_avx2 = {
    .numerics = "fma",
    .direct_rows = DIRECT_ROWS,
    .tile_rows = ROWS,
    .sum_blocks = sum_blocks,
    .pack_tile = pack_tile,
    .multiply = multiply_panels,
    .attend = attend,
    .merge = merge,
    .rmsnorm = rmsnorm,
    .rotate = rotate,
    .store_kv = store_kv,
    .greatest = greatest,
    .exponentials = exponentials,
    .at_least = at_least,
};
