#include "worker/model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- checks that both formats share ------------------------------------------------------------
 */

void pd_config_set_name(struct pd_model_config *config, const char *name, size_t length)
{
    size_t used = 0;

    for (size_t i = 0; i < length && used < sizeof(config->name) - 1; i++)
        config->name[used++] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    config->name[used] = '\0';
}

int pd_config_add_eos(struct pd_model_config *config, int64_t token, const char *file,
                      struct pd_error *error)
{
    if (token < 0)
        return PD_OK;
    if (token >= config->vocabulary)
        return pd_fail(error, PD_INVALID,
                       "%s: end token %" PRId64 " is not in the vocabulary of %d", file, token,
                       config->vocabulary);
    for (int i = 0; i < config->eos_count; i++)
        if (config->eos[i] == token)
            return PD_OK;
    if (config->eos_count == PD_MODEL_EOS_MAX)
        return pd_fail(error, PD_INVALID, "%s: more than %d end tokens", file, PD_MODEL_EOS_MAX);
    config->eos[config->eos_count++] = (int32_t)token;
    return PD_OK;
}

static int check_heads(const char *file, const struct pd_model_config *config,
                       struct pd_error *error)
{
    if (config->head_dim < 1 || config->head_dim > PD_HEAD_DIM_MAX)
        return pd_fail(error, PD_INVALID, "%s: heads of %d dimensions, not 1 to %d", file,
                       config->head_dim, PD_HEAD_DIM_MAX);
    if (config->heads % config->kv_heads != 0)
        return pd_fail(error, PD_INVALID, "%s: %d query heads cannot share %d KV heads evenly",
                       file, config->heads, config->kv_heads);
    if (config->head_dim % 2 != 0)
        return pd_fail(error, PD_INVALID, "%s: a head of %d dimensions has no pairs to rotate",
                       file, config->head_dim);
    if (config->rope_dim % 2 != 0 || config->rope_dim > config->head_dim)
        return pd_fail(error, PD_INVALID, "%s: %d rotated dimensions do not fit a head of %d", file,
                       config->rope_dim, config->head_dim);
    return PD_OK;
}

static int check_numbers(const char *file, const struct pd_model_config *config,
                         const struct pd_rope *rope, struct pd_error *error)
{
    if (!(config->norm_eps > 0 && config->norm_eps < 1))
        return pd_fail(error, PD_INVALID, "%s: RMS norm epsilon %g is not between 0 and 1", file,
                       (double)config->norm_eps);
    if (!(config->rope_base > 1 && config->rope_base < 1e12f))
        return pd_fail(error, PD_INVALID, "%s: rope base %g is not between 1 and 1e12", file,
                       (double)config->rope_base);
    if (rope->scaling != PD_ROPE_PLAIN && !(rope->factor >= 1 && rope->factor <= 1e6))
        return pd_fail(error, PD_INVALID, "%s: rope scaling factor %g is not between 1 and 1e6",
                       file, rope->factor);
    if (rope->scaling == PD_ROPE_LLAMA3 &&
        !(rope->low_frequency > 0 && rope->high_frequency > rope->low_frequency))
        return pd_fail(error, PD_INVALID,
                       "%s: llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor",
                       file);
    return PD_OK;
}

int pd_config_check(const char *file, const struct pd_model_config *config,
                    const struct pd_rope *rope, struct pd_error *error)
{
    int status = check_heads(file, config, error);

    return status == PD_OK ? check_numbers(file, config, rope, error) : status;
}

void pd_rope_frequencies(const struct pd_model_config *config, const struct pd_rope *rope,
                         const float *factors, float *out)
{
    for (int i = 0; i < config->rope_dim / 2; i++) {
        double frequency = pow((double)config->rope_base, -2.0 * i / config->rope_dim);

        if (rope->scaling == PD_ROPE_LINEAR) {
            frequency /= rope->factor;
        } else if (rope->scaling == PD_ROPE_LLAMA3) {
            /* Turns within the original context: many of them stay, few are stretched, between the
             * two limits it fades. */
            double turns = rope->original_context * frequency / (2 * M_PI);
            double keep =
                (turns - rope->low_frequency) / (rope->high_frequency - rope->low_frequency);

            keep = fmin(fmax(keep, 0), 1);
            frequency *= keep + (1 - keep) / rope->factor;
        }
        out[i] = (float)(factors ? frequency / (double)factors[i] : frequency);
    }
}
