#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "t/unit/kernel_answers.h"

const struct pd_small_shape pd_answering = {
    4, 2, 32, 32, 0, 8, PD_ROPE_HALF, PD_F16, PD_Q8_0, false, PD_PRECISION_F32};

void pd_answers_add(struct pd_small_model *model, struct pd_step *step, int slot, int position)
{
    int32_t tokens[PD_ANSWER_PROMPT], count = position == 0 ? PD_ANSWER_PROMPT : 1;
    int blocks = model->rig.options.max_model_len / model->rig.options.block_size + 1;
    struct pd_sample_params *sample = &step->sample[step->samples];

    for (int i = 0; i < count; i++)
        tokens[i] = position == 0 ? 10 * slot + i : PD_TOKEN_OF_SLOT(slot);
    pd_rig_add(&model->rig, step, slot, tokens, count, position, slot * blocks);
    sample->temperature = slot % 2 == 0 ? 0.0f : 1.0f;
    sample->seed = (uint64_t)slot;
    sample->draw = (uint32_t)position;
    sample->repetition = 1.3f;
    sample->logprobs = 2;
    sample->prompt = PD_ANSWER_PROMPT;
}

static void collect_answers(struct pd_small_model *model, const struct pd_step *step, int *out)
{
    assert_int_equal(pd_step_wait(model->rig.device, step->number, 60000), PD_KERNEL_OK);
    for (int i = 0; i < step->samples; i++) {
        int slot = step->sample_slot[i];

        out[((int)step->number - 1) * PD_ANSWERS + slot] = step->sampled[i] + 1;
        assert_true(step->sampled_logprob[i] <= 0 && step->top_logprob[i * PD_TOP_MAX] <= 0);
    }
}

void pd_answers_generate(struct pd_small_model *model, int out[PD_ANSWER_TOKENS])
{
    struct pd_step *before = NULL;
    int position[PD_ANSWERS] = {0};

    for (int n = 0; n < PD_ANSWER_STEPS; n++) {
        struct pd_step *step;

        assert_int_equal(pd_step_acquire(model->rig.device, &step), PD_KERNEL_OK);
        for (int slot = 0; slot < PD_ANSWERS && 3 * slot <= n; slot++) {
            pd_answers_add(model, step, slot, position[slot]);
            position[slot] += position[slot] == 0 ? PD_ANSWER_PROMPT : 1;
        }
        assert_int_equal(pd_graph_launch(model->graph, step), PD_KERNEL_OK);
        if (before != NULL)
            collect_answers(model, before, out);
        before = step;
    }
    collect_answers(model, before, out);
}
