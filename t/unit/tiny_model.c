#include "t/unit/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "t/unit/kernel_rig.h"

enum { LAYERS = 2, HIDDEN = 32, HEADS = 4, KV_HEADS = 2, FEED_FORWARD = 48 };
enum { HEAD_DIM_MOST = 32 };

int tiny_head_dim = 8;

static int qkv_columns(void)
{
    return (HEADS + 2 * KV_HEADS) * tiny_head_dim;
}

/* ---- weights --------------------------------------------------------------------------------- */

static struct pd_weight *weight_of(struct pd_model *model, enum pd_weight_layout layout,
                                   const float *values, int rows, int cols, bool embedding)
{
    struct pd_weight_source sources[2] = {{values, PD_F32, rows}, {0}};
    struct pd_weight *weight;
    int count = 1;

    if (layout == PD_WEIGHT_GATE_UP) {
        sources[0].rows /= 2;
        sources[1] =
            (struct pd_weight_source){values + (size_t)(rows / 2) * (size_t)cols, PD_F32, rows / 2};
        count = 2;
    }
    assert_int_equal(
        pd_weight_create(model->device, layout, cols, sources, count, embedding, &weight),
        PD_KERNEL_OK);
    return weight;
}

static struct pd_weight *random_weight(struct pd_model *model, enum pd_weight_layout layout,
                                       int rows, int cols, uint64_t seed)
{
    size_t count = (size_t)rows * (size_t)cols;
    float *values = malloc(count * sizeof(*values));
    struct pd_weight *weight;

    pd_rig_fill(values, count, 1 / sqrtf((float)cols), seed);
    weight = weight_of(model, layout, values, rows, cols, false);
    free(values);
    return weight;
}

static struct pd_weight *ones(struct pd_model *model)
{
    float values[HIDDEN];

    for (int i = 0; i < HIDDEN; i++)
        values[i] = 1;
    return weight_of(model, PD_WEIGHT_ROWS, values, 1, HIDDEN, false);
}

static struct pd_weight *embedding(struct pd_model *model)
{
    static float values[TINY_VOCABULARY * HIDDEN];

    pd_rig_fill(values, TINY_VOCABULARY * HIDDEN, 1, 1);
    for (int i = 0; i < HIDDEN; i++)
        values[TINY_NAN * HIDDEN + i] = NAN;
    return weight_of(model, PD_WEIGHT_ROWS, values, TINY_VOCABULARY, HIDDEN, true);
}

/* The head knows how to say every token but the poison. */
static struct pd_weight *head(struct pd_model *model)
{
    static float values[TINY_VOCABULARY * HIDDEN];

    pd_rig_fill(values, TINY_VOCABULARY * HIDDEN, 1, 2);
    memset(values + TINY_NAN * HIDDEN, 0, HIDDEN * sizeof(*values));
    return weight_of(model, PD_WEIGHT_ROWS, values, TINY_VOCABULARY, HIDDEN, false);
}

/* ---- graph ----------------------------------------------------------------------------------- */

static struct pd_tensor tensor(struct pd_model *model, int rows, int cols)
{
    struct pd_tensor out;

    assert_int_equal(pd_tensor_create(model->device, rows, cols, &out), PD_KERNEL_OK);
    return out;
}

struct stage {
    struct pd_tensor x, norm, qkv, mixed, hidden;
};

static void record_layer(struct pd_model *model, struct pd_graph *g, const struct stage *t,
                         int layer)
{
    static const float frequencies[HEAD_DIM_MOST / 2] = {1, 0.3f, 0.1f, 0.03f};
    struct pd_attention_shape shape = {
        .heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = tiny_head_dim,
        .rope_dim = tiny_head_dim,
        .rope_style = PD_ROPE_HALF,
        .inverse_frequency = frequencies,
        .attention_factor = 1,
        .scale = 1 / sqrtf((float)tiny_head_dim),
    };
    struct pd_weight *norm = ones(model);
    uint64_t seed = 10 * ((uint64_t)layer + 1);

    pd_op_rmsnorm(g, t->x, norm, 1e-5f, false, t->norm);
    pd_op_matmul(g, random_weight(model, PD_WEIGHT_ROWS, qkv_columns(), HIDDEN, seed), t->norm,
                 NULL, PD_EPILOGUE_NONE, false, t->qkv);
    pd_op_rope_store(g, t->qkv, &shape, &model->pool, layer);
    pd_op_attention(g, t->qkv, &shape, &model->pool, layer, t->mixed);
    pd_op_matmul(g, random_weight(model, PD_WEIGHT_ROWS, HIDDEN, HEADS * tiny_head_dim, seed + 1),
                 t->mixed, NULL, PD_EPILOGUE_ADD, false, t->x);
    pd_op_rmsnorm(g, t->x, norm, 1e-5f, false, t->norm);
    pd_op_matmul(g, random_weight(model, PD_WEIGHT_GATE_UP, 2 * FEED_FORWARD, HIDDEN, seed + 2),
                 t->norm, NULL, PD_EPILOGUE_SWIGLU, false, t->hidden);
    pd_op_matmul(g, random_weight(model, PD_WEIGHT_ROWS, HIDDEN, FEED_FORWARD, seed + 3), t->hidden,
                 NULL, PD_EPILOGUE_ADD, false, t->x);
    pd_op_publish(g, layer + 1);
}

static void record(struct pd_model *model, int tokens, int seqs)
{
    struct stage t = {
        .x = tensor(model, tokens, HIDDEN),
        .norm = tensor(model, tokens, HIDDEN),
        .qkv = tensor(model, tokens, qkv_columns()),
        .mixed = tensor(model, tokens, HEADS * tiny_head_dim),
        .hidden = tensor(model, tokens, FEED_FORWARD),
    };
    struct pd_tensor last = tensor(model, seqs, HIDDEN), normed = tensor(model, seqs, HIDDEN);
    struct pd_tensor logits = tensor(model, seqs, TINY_VOCABULARY);
    struct pd_graph *g;

    assert_int_equal(pd_graph_begin(model->device, &g), PD_KERNEL_OK);
    pd_op_embed(g, embedding(model), t.x);
    for (int layer = 0; layer < LAYERS; layer++)
        record_layer(model, g, &t, layer);
    pd_op_gather(g, t.x, last);
    pd_op_rmsnorm(g, last, ones(model), 1e-5f, true, normed);
    pd_op_matmul(g, head(model), normed, NULL, PD_EPILOGUE_NONE, true, logits);
    pd_op_sample(g, logits);
    if (pd_graph_end(g) != PD_KERNEL_OK)
        fail_msg("%s", pd_device_error(model->device));
    model->graph = g;
}

/* ---- tokenizer ------------------------------------------------------------------------------- */

/* The byte-map alphabet of GPT-2: printable bytes stand for themselves, the others for 256 and up.
 */
static size_t spell_byte(int byte, char *out)
{
    int code = byte, shifted = 0;

    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        if (b == byte && !printable)
            code = 256 + shifted;
        shifted += !printable;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

static struct pd_tokenizer *make_tokenizer(void)
{
    static const char *const specials[] = {"<eos>", "<bos>", "<nan>", "<spare>"};
    char bytes[256][2];
    struct pd_string tokens[TINY_VOCABULARY];
    uint8_t kinds[TINY_VOCABULARY];
    struct pd_tokenizer_spec spec = {
        .tokens = tokens,
        .kinds = kinds,
        .token_count = TINY_VOCABULARY,
        .bos_id = TINY_BOS,
        .eos_id = TINY_EOS,
    };
    struct pd_tokenizer *tokenizer;
    struct pd_error error;

    for (int i = 0; i < 256; i++) {
        tokens[i] = (struct pd_string){bytes[i], spell_byte(i, bytes[i])};
        kinds[i] = PD_TOKEN_NORMAL;
    }
    for (int i = 256; i < TINY_VOCABULARY; i++) {
        tokens[i] = (struct pd_string){specials[i - 256], strlen(specials[i - 256])};
        kinds[i] = PD_TOKEN_SPECIAL;
    }
    if (pd_tokenizer_create(&spec, &tokenizer, &error) != PD_OK)
        fail_msg("%s", error.text);
    return tokenizer;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void make_pool(struct pd_model *model, const struct tiny_options *options)
{
    size_t bytes;

    model->pool = (struct pd_kv_pool){
        .layers = LAYERS,
        .kv_heads = KV_HEADS,
        .block_size = options->block_size,
        .head_dim = tiny_head_dim,
        .blocks = options->kv_blocks,
        .type = PD_F32,
    };
    /* With room for the generation words behind it, as the hand-off wants it. */
    bytes = (pd_kv_pool_bytes(&model->pool) + 4095) / 4096 * 4096;
    bytes += (size_t)options->kv_blocks * sizeof(uint64_t);
    assert_int_equal(pd_buffer_create(model->device, PD_BUFFER_KV, bytes, &model->pool.buffer),
                     PD_KERNEL_OK);
}

struct pd_model *tiny_model_create(const struct tiny_options *options)
{
    struct pd_device_options device = {
        .kind = options->device ? options->device : "reference",
        .threads = 1,
        .isa = "auto",
        .max_tokens = options->max_tokens,
        .max_seqs = options->max_seqs,
        .max_model_len = options->max_model_len,
        .block_size = options->block_size,
        .vocabulary = TINY_VOCABULARY,
        .cuda_enable = "all",
    };
    struct pd_model *model = calloc(1, sizeof(*model));
    char error[256];

    if (pd_device_open(&device, &model->device, error, sizeof(error)) != PD_KERNEL_OK)
        fail_msg("%s", error);
    make_pool(model, options);
    record(model, options->max_tokens, options->max_seqs);
    memset(&model->fingerprint, 0x5a, sizeof(model->fingerprint));
    model->config = (struct pd_model_config){
        .architecture = "tiny",
        .layers = LAYERS,
        .kv_heads = KV_HEADS,
        .head_dim = tiny_head_dim,
        .vocabulary = TINY_VOCABULARY,
        .context = options->max_model_len,
        .eos = {options->eos ? options->eos : TINY_EOS},
        .eos_count = 1,
        .bos = TINY_BOS,
    };
    model->tokenizer = make_tokenizer();
    return model;
}

void tiny_model_destroy(struct pd_model *model)
{
    pd_tokenizer_destroy(model->tokenizer);
    pd_graph_destroy(model->graph);
    pd_device_close(model->device);
    free(model);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static void fill_alone(struct pd_step *step, const int32_t *tokens, int first, int count,
                       const struct pd_sample_params *params)
{
    step->tokens = count;
    step->sequences = step->samples = 1;
    step->slot[0] = step->first[0] = 0;
    step->length[0] = count;
    step->context[0] = first + count;
    for (int i = 0; i < step->max_blocks; i++)
        step->blocks[i] = i;
    for (int i = 0; i < count; i++) {
        step->token[i] = tokens[i];
        step->position[i] = step->kv_slot[i] = first + i;
        step->sequence[i] = 0;
    }
    step->sample_row[0] = count - 1;
    step->sample_slot[0] = 0;
    step->sample[0] = *params;
}

void tiny_model_answer(const int32_t *prompt, int count, struct pd_sample_params params,
                       int32_t *answer, float *logprobs, int length)
{
    struct tiny_options options = {
        .max_tokens = count + 1,
        .max_seqs = 1,
        .max_model_len = count + length,
        .block_size = 16,
        .kv_blocks = (count + length) / 16 + 1,
    };
    struct pd_model *model = tiny_model_create(&options);
    int position = 0;

    params.history = count;
    params.prompt = count;
    for (int i = 0; i < length; i++) {
        struct pd_step *step;

        assert_int_equal(pd_step_acquire(model->device, &step), PD_KERNEL_OK);
        fill_alone(step, i ? &answer[i - 1] : prompt, position, i ? 1 : count, &params);
        position += i ? 1 : count;
        if (pd_graph_launch(model->graph, step) != PD_KERNEL_OK)
            fail_msg("%s", pd_device_error(model->device));
        assert_int_equal(pd_step_wait(model->device, step->number, 10000), PD_KERNEL_OK);
        assert_int_equal(step->sample_fault[0], 0);
        answer[i] = step->sampled[0];
        if (logprobs)
            logprobs[i] = step->sampled_logprob[0];
        params.draw++;
        params.history++;
    }
    tiny_model_destroy(model);
}
