#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "t/device/stage.h"

static const struct {
    const char *name;
    int (*run)(const struct pd_stage_options *options);
} stages[] = {
    {"ceilings", pd_stage_ceilings},   {"wrappers", pd_stage_wrappers},
    {"operators", pd_stage_operators}, {"forward", pd_stage_forward},
    {"rows", pd_stage_rows},           {"shapes", pd_stage_shapes},
};

void pd_stage_figure(const char *name, const char *unit, double value, double ceiling)
{
    printf("{\"name\": \"%s\", \"unit\": \"%s\", \"value\": %.6g", name, unit, value);
    if (ceiling > 0)
        printf(", \"ceiling\": %.6g, \"share\": %.4f", ceiling, value / ceiling);
    puts("}");
    fflush(stdout);
}

double pd_stage_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
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
    for (size_t i = 0; argc > 1 && i < sizeof(stages) / sizeof(stages[0]); i++)
        if (strcmp(argv[1], stages[i].name) == 0)
            return stages[i].run(&options);
    fprintf(stderr, "usage: pd-kernel-test STAGE [--small] [--seed N]; stages:");
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        fprintf(stderr, " %s", stages[i].name);
    fputc('\n', stderr);
    return 2;
}
