/* Paths through libraries that nothing but a GPU can show: each is off, and something that the host's
 * shim has run serves in its place, until t/device/results has a run of these very sources. The file
 * `paths` beside this one has the table: names, sources, the stages that show them. */
#ifndef PD_CUDA_PATHS_H
#define PD_CUDA_PATHS_H

#include <stdbool.h>
#include <stddef.h>

enum pd_cuda_path {
    PD_CUDA_CUBLASLT,  /* else pd_cuda_matmul_fixed */
    PD_CUDA_GRAPHS,    /* else every step launch by launch */
    PD_CUDA_GPUDIRECT, /* else network cards see the pool's stage in pinned memory */
    PD_CUDA_LENT,      /* else processes of one host hand KV over through stages */
    PD_CUDA_NCCL,      /* else pd_cuda_allreduce for every size */
    PD_CUDA_PATHS
};

const char *pd_cuda_path_name(enum pd_cuda_path path);

/* Whether a GPU has shown it, as this program was built. */
bool pd_cuda_path_shown(enum pd_cuda_path path);

/* What is on, one bit a path: what was shown, and what `enable` names besides: names separated by
 * commas, or "all"; NULL: none. False for a name that there is not: a line for people. */
bool pd_cuda_paths_on(const char *enable, unsigned *on, char *error, size_t size);

static inline bool pd_cuda_path_on(unsigned on, enum pd_cuda_path path)
{
    return on >> path & 1;
}

#endif
