#include "worker/engine/pace.h"

static const uint64_t MS = 1000000;

void pd_pace_init(struct pd_pace *pace, int most, int chunk_ms, bool cuts)
{
    *pace = (struct pd_pace){
        .most = most,
        .cuts = cuts,
        .chunk_ns = (uint64_t)(chunk_ms ? chunk_ms : PD_PACE_CHUNK_MS) * MS,
    };
}

static bool is_calm(const struct pd_pace *pace)
{
    return pace->cuts && pace->alert_ns == 0;
}

int pd_pace_rows(const struct pd_pace *pace, bool answers)
{
    uint64_t least = answers ? PD_PACE_LEAST : PD_PACE_LEAST_ALONE, rows = PD_PACE_FIRST;

    if (answers && (pace->quiet_ns == 0 || pace->shared >= PD_PACE_TRUST))
        return 0;
    if (answers && pace->row_ns)
        rows = (PD_PACE_STRETCH - 1) * pace->quiet_ns / pace->row_ns;
    else if (!answers && pace->alone_ns)
        rows = pace->chunk_ns * (is_calm(pace) ? PD_PACE_CALM : 1) / pace->alone_ns / PD_PACE_UNIT *
               PD_PACE_UNIT;
    if (rows < least)
        rows = least;
    return rows < (uint64_t)pace->most ? (int)rows : pace->most;
}

bool pd_pace_is_long(const struct pd_pace *pace, bool answers, int rows)
{
    return (uint64_t)rows * (answers ? pace->row_ns : pace->alone_ns) >= PD_PACE_LONG_MS * MS;
}

bool pd_pace_leaves(const struct pd_pace *pace, int rows, uint64_t ran_ns, int waiting)
{
    uint64_t takes_ns = (uint64_t)rows * pace->alone_ns;
    uint64_t left_ns = takes_ns > ran_ns ? takes_ns - ran_ns : 0;

    return is_calm(pace) && left_ns > pace->chunk_ns / 2 &&
           (uint64_t)waiting * pace->alone_ns < left_ns;
}

void pd_pace_left(struct pd_pace *pace, uint64_t ran_ns)
{
    pace->alert_ns = ran_ns * PD_PACE_ALERT;
}

/* Three parts of what was known, one of what is new. */
static void blend(uint64_t *known, uint64_t sample)
{
    if (sample == 0)
        sample = 1; /* it has been measured */
    *known = *known ? (3 * *known + sample) / 4 : sample;
}

void pd_pace_learn(struct pd_pace *pace, bool answers, int rows, uint64_t ns)
{
    uint64_t added = ns > pace->quiet_ns ? ns - pace->quiet_ns : 0;

    if (!answers)
        pace->alert_ns -= ns < pace->alert_ns ? ns : pace->alert_ns;
    if (answers && rows == 0 && pace->shared >= PD_PACE_TRUST)
        pace->quiet_ns = 0; /* what was known is of long ago */
    if (answers)
        pace->shared = rows == 0 ? 0 : pace->shared + 1;
    if (answers && rows == 0)
        blend(&pace->quiet_ns, ns);
    else if (answers && pace->quiet_ns)
        blend(&pace->row_ns, added / (uint64_t)rows);
    else if (!answers && rows >= PD_PACE_LEAST) /* a few rows cost what the weights cost */
        blend(&pace->alone_ns, ns / (uint64_t)rows);
}
