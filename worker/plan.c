#include "worker/plan.h"

#include <string.h>

#include "worker/model/ranks.h"
#include "worker/sizing.h"

static void print_model(const struct pd_options *options, const struct pd_model_config *config,
                        FILE *out)
{
    char size[32];

    fprintf(out, "model            %s: its configuration alone\n", options->model);
    fprintf(out, "architecture     %s\n", config->architecture);
    fprintf(out,
            "shape            %d layers, hidden %d, feed forward %d, %d heads, %d KV heads of %d, "
            "vocabulary %d\n",
            config->layers, config->hidden, config->feed_forward, config->heads, config->kv_heads,
            config->head_dim, config->vocabulary);
    fprintf(out, "weights          %s\n", pd_size_text(config->weight_bytes, size));
}

/* In bytes too: sums are checked against them. */
static void print_ranks(const struct pd_options *options, const struct pd_model_files *files,
                        int ranks, FILE *out)
{
    const struct pd_model_config *config = pd_model_files_config(files);
    uint64_t token = pd_sizing_token(options, config, ranks);
    uint64_t scratch = pd_sizing_scratch(options, config, ranks);
    uint64_t length = (uint64_t)pd_sizing_longest(options, config);
    char size[3][32];

    for (int r = 0; r < ranks; r++) {
        struct pd_model_share share = pd_model_share_of(config, r, ranks);
        uint64_t weights = pd_model_files_gpu_bytes(files, r, ranks);

        fprintf(out,
                "rank %d           weights %s (%llu bytes), steps up to %s, KV %llu bytes a token, "
                "heads %d to %d, KV heads %d to %d; with one sequence of %llu tokens %s\n",
                r, pd_size_text(weights, size[0]), (unsigned long long)weights,
                pd_size_text(scratch, size[1]), (unsigned long long)token, share.first_head,
                share.first_head + share.heads - 1, share.first_kv_head,
                share.first_kv_head + share.kv_heads - 1, (unsigned long long)length,
                pd_size_text(weights + scratch + length * token, size[2]));
    }
}

static int print_pool(const struct pd_options *options, const struct pd_model_files *files,
                      FILE *out, struct pd_error *error)
{
    struct pd_sizing_room room;
    struct pd_sizing sizing;
    struct pd_error why = {0};
    char size[2][32];
    int status = pd_sizing_measure(options, files, &room, &why);

    if (status != PD_OK) {
        fprintf(out, "GPU              not measured: %s\n", why.text);
        return PD_OK;
    }
    if (!room.gpu_total)
        return PD_OK;
    fprintf(out, "GPU              %s, of which %s are free\n",
            pd_size_text(room.gpu_total, size[0]), pd_size_text(room.gpu_free, size[1]));
    status = pd_sizing_decide(options, pd_model_files_config(files), &room, &sizing, error);
    if (status == PD_OK)
        fprintf(out, "KV pool          %s on each rank: %lld blocks of %lld tokens\n",
                pd_size_text(sizing.kv_bytes / (uint64_t)sizing.ranks, size[0]),
                (long long)sizing.pool.blocks, (long long)options->block_size);
    return status;
}

int pd_plan_print(const struct pd_options *options, FILE *out, struct pd_error *error)
{
    int ranks = pd_sizing_ranks(options);
    struct pd_model_files *files;
    struct pd_error why;
    int status = pd_model_files_plan(options->model, &files, error);

    if (status != PD_OK)
        return status;
    if (pd_model_ranks_check(pd_model_files_config(files), ranks, &why) != PD_OK) {
        pd_model_files_close(files);
        return pd_fail(error, why.status, "--tensor-parallel-size %d: %s", ranks, why.text);
    }
    print_model(options, pd_model_files_config(files), out);
    print_ranks(options, files, ranks, out);
    status = print_pool(options, files, out, error);
    pd_model_files_close(files);
    return status;
}
