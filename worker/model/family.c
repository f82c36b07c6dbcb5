#include "worker/model/family.h"

#include <stdio.h>
#include <string.h>

/* Two classes may share a GGUF name: the first of them is what a GGUF file means. */
static const struct pd_family families[] = {
    /* GGUF, config.json, QKV bias, Q and K norm, rotation in GGUF, window */
    {"llama", "LlamaForCausalLM", false, false, PD_ROPE_INTERLEAVED, PD_WINDOW_NEVER},
    {"llama", "MistralForCausalLM", false, false, PD_ROPE_INTERLEAVED, PD_WINDOW_ALWAYS},
    {"qwen2", "Qwen2ForCausalLM", true, false, PD_ROPE_HALF, PD_WINDOW_BY_SWITCH},
    {"qwen3", "Qwen3ForCausalLM", false, true, PD_ROPE_HALF, PD_WINDOW_BY_SWITCH},
};

enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

static const char *spell(const struct pd_family *family, enum pd_family_spelling spelling)
{
    return spelling == PD_FAMILY_GGUF ? family->name : family->class_name;
}

const struct pd_family *pd_family_find(enum pd_family_spelling spelling, const char *name,
                                       size_t length)
{
    for (int i = 0; i < FAMILIES; i++) {
        const char *known = spell(&families[i], spelling);

        if (strlen(known) == length && memcmp(known, name, length) == 0)
            return &families[i];
    }
    return NULL;
}

const char *pd_family_list(enum pd_family_spelling spelling, char text[PD_FAMILY_LIST])
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < FAMILIES && used < PD_FAMILY_LIST; i++) {
        const char *name = spell(&families[i], spelling);

        if (pd_family_find(spelling, name, strlen(name)) == &families[i])
            used += (size_t)snprintf(text + used, PD_FAMILY_LIST - used, "%s%s", used ? ", " : "",
                                     name);
    }
    return text;
}

void pd_family_apply(const struct pd_family *family, struct pd_model_config *config)
{
    snprintf(config->architecture, sizeof(config->architecture), "%s", family->name);
    config->qkv_bias = family->qkv_bias;
    config->qk_norm = family->qk_norm;
}
