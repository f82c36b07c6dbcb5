/* Scores of a row and a split become weights: e^(score - greatest).
 *
 * Included by attend.h and attend_few.h only. */
#ifndef PD_WEIGH_H
#define PD_WEIGH_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/path.h"

/* Of the query's token number `token`, with keys first .. first + count - 1, in runs of PANEL that lie `stride`
 * apart. *greatest: score; *total: of the weights. */
static void weigh(const struct pd_cpu_query *query, int token, int first, int count, float *scores,
                  ptrdiff_t stride, float *greatest, float *total)
{
    int high = query->position + token, window = query->shape->window;
    int low = window > 0 ? high - window + 1 : 0;
    lanes most = lanes_set(-INFINITY), sum = lanes_set(0);

    for (int j = 0; j < count; j += LANES) {
        float *at = scores + j / PANEL * stride + j % PANEL;
        lanes seen = lanes_within(lanes_load(at), low - first - j, high - first - j, -INFINITY);

        lanes_store(at, seen);
        most = lanes_max(most, seen);
    }
    *greatest = lanes_greatest(most);
    most = lanes_set(*greatest == -INFINITY ? 0 : *greatest);
    for (int j = 0; j < count; j += LANES) {
        float *at = scores + j / PANEL * stride + j % PANEL;
        lanes weight = lanes_exp(lanes_sub(lanes_load(at), most));

        lanes_store(at, weight);
        sum = lanes_add(sum, weight);
    }
    *total = lanes_sum(sum);
}

#endif
