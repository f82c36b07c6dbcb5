#include "worker/engine/pace.h"

void pd_pace_init(struct pd_pace *pace, int most)
{
    *pace = (struct pd_pace){.most = most};
}

int pd_pace_rows(const struct pd_pace *pace)
{
    uint64_t rows = PD_PACE_FIRST;

    if (pace->quiet_ns && pace->row_ns)
        rows = (PD_PACE_STRETCH - 1) * pace->quiet_ns / pace->row_ns;
    if (rows < PD_PACE_LEAST)
        rows = PD_PACE_LEAST;
    return rows < (uint64_t)pace->most ? (int)rows : pace->most;
}

/* Three parts of what was known, one of what is new. */
static uint64_t blend(uint64_t known, uint64_t sample)
{
    return known ? (3 * known + sample) / 4 : sample;
}

void pd_pace_learn(struct pd_pace *pace, int rows, uint64_t ns)
{
    uint64_t added = ns > pace->quiet_ns ? ns - pace->quiet_ns : 0;
    uint64_t row = added / (uint64_t)(rows > 0 ? rows : 1);

    if (rows == 0)
        pace->quiet_ns = blend(pace->quiet_ns, ns ? ns : 1);
    else if (pace->quiet_ns)
        pace->row_ns = blend(pace->row_ns, row ? row : 1);
}
