/* Stands in for the model room: the two functions by which an engine looks into a model, for the tiny
 * one that tests make. */
#include "t/unit/tiny_model.h"

struct pd_graph *pd_model_graph(struct pd_model *model)
{
    return model->graph;
}

const struct pd_fingerprint *pd_model_fingerprint(const struct pd_model *model)
{
    return &model->fingerprint;
}
