#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/runtime.h"
#include "t/device/stage.h"

static const struct {
    const char *name;
    int (*run)(const struct pd_stage_options *options);
} stages[] = {
    {"gpu", pd_stage_gpu},           {"ceilings", pd_stage_ceilings},
    {"wrappers", pd_stage_wrappers}, {"operators", pd_stage_operators},
    {"forward", pd_stage_forward},   {"rows", pd_stage_rows},
    {"shapes", pd_stage_shapes},     {"kernels", pd_stage_kernels},
    {"collect", pd_stage_collect},
};

void pd_stage_figure(const char *name, const char *unit, double value, double ceiling)
{
    pd_stage_figure_to_reach(name, unit, value, ceiling, 0);
}

void pd_stage_figure_to_reach(const char *name, const char *unit, double value, double ceiling,
                              double goal)
{
    printf("{\"name\": \"%s\", \"unit\": \"%s\", \"value\": %.6g", name, unit, value);
    if (ceiling > 0)
        printf(", \"ceiling\": %.6g, \"share\": %.4f", ceiling, value / ceiling);
    if (goal > 0)
        printf(", \"goal\": %.6g", goal);
    puts("}");
    fflush(stdout);
}

double pd_stage_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Every stage asks: without a GPU there is nothing to be wrong. */
int pd_stage_gpu(const struct pd_stage_options *options)
{
    struct pd_cuda_runtime *runtime;
    char error[256];
    int status = pd_cuda_open(0, NULL, &runtime, error, sizeof(error));

    (void)options;
    if (status == 0)
        pd_cuda_close(runtime);
    else if (status == PD_CUDA_NO_DEVICE || status == PD_CUDA_NO_DRIVER)
        printf("%s\n", error);
    else
        fprintf(stderr, "%s\n", error);
    return status == 0                                                  ? 0
           : status == PD_CUDA_NO_DEVICE || status == PD_CUDA_NO_DRIVER ? PD_STAGE_SKIPPED
                                                                        : 1;
}

int main(int argc, char **argv)
{
    struct pd_stage_options options = {.seed = 1};

    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            options.small = true;
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            options.seed = strtoull(argv[++i], NULL, 10);
        else
            argc = 0;
    }
    for (size_t i = 0; argc > 1 && i < sizeof(stages) / sizeof(stages[0]); i++) {
        int status;

        if (strcmp(argv[1], stages[i].name) != 0)
            continue;
        /* Two ranks on one GPU wait for each other: loading what one is to launch may wait for the other's end. */
        if (stages[i].run == pd_stage_collect)
            setenv("CUDA_MODULE_LOADING", "EAGER", 1);
        status = pd_stage_gpu(&options);
        return status != 0 ? status : stages[i].run(&options);
    }
    fprintf(stderr, "usage: pd-kernel-test STAGE [--small] [--seed N]; stages:");
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        fprintf(stderr, " %s", stages[i].name);
    fputc('\n', stderr);
    return 2;
}
