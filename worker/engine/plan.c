/* Whose rows the next step computes.
 *
 *   rows of a step  │ a a a a │ p p p p p p p p p p · · · │ --max-num-batched-tokens
 *                     │         └ prompts, the most urgent first, no more than the pace allows
 *                     └ one of every answer
 *
 * Prompts go by what is left of them, the shortest first, so that a short one does not stand behind
 * a long one. Nobody starves: every row of a younger prompt that goes before an older one makes the
 * older one as much shorter in this count (`passed`). So a prompt waits, for those that came after
 * it, at most for as many rows as it has itself.
 *
 * Where a prompt takes several steps of prompts alone, these are of equal length, so that no short one is left over: each
 * reads all weights, however few its rows are. A step may be a quarter longer if there is one fewer then.
 *
 * A prompt that ends in this step samples its token behind all of the step's rows. Where the rest of
 * the room would take long, it is therefore not filled with a prompt that goes on anyway.
 *
 * A step has at least one row for each slot, so answers and prompts cannot starve each other. */
#include "worker/engine/internal.h"

#include <stdlib.h>

static int rows_left(const struct pd_sequence *s)
{
    return s->target - s->launched;
}

/* One row of every answer, with the block that it needs. False: there is none. */
static bool plan_answers(struct pd_engine *engine, int *answers)
{
    struct pd_sequence *s;

    *answers = 0;
    TAILQ_FOREACH (s, &engine->running, queue) {
        s->planned = pd_sequence_decodes(s);
        if (s->planned == 0)
            continue;
        if (pd_engine_blocks_for(engine, s->launched + 1) > s->block_count &&
            !pd_admit_blocks(engine, s, 1))
            return false;
        ++*answers;
    }
    return true;
}

static int by_urgency(const void *left, const void *right)
{
    const struct pd_sequence *a = *(struct pd_sequence *const *)left;
    const struct pd_sequence *b = *(struct pd_sequence *const *)right;
    int64_t urgency_a = rows_left(a) - a->passed, urgency_b = rows_left(b) - b->passed;

    if (urgency_a != urgency_b)
        return urgency_a < urgency_b ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

/* Rows of a prompt that are planned where `room` is left beside `used`, of prompts of which some end. */
static int rows_for(const struct pd_sequence *s, int room, int used, bool slow)
{
    int spare = PD_PACE_LEAST_ALONE - used;

    if (rows_left(s) <= room)
        return rows_left(s);
    if (slow && spare < room)
        return spare > 0 ? spare : 0;
    return room;
}

/* The length of a step of prompts alone, of which the first has `left` rows to go, when the pace allows `room` and
 * the step holds `most`. */
static int even_room(int left, int room, int most)
{
    int longest = room + room / 4, steps, rows;

    if (longest > most)
        longest = most;
    if (left <= room)
        return room;
    steps = (left + longest - 1) / longest;
    rows = (left + steps - 1) / steps;
    rows = (rows + PD_PACE_UNIT - 1) / PD_PACE_UNIT * PD_PACE_UNIT;
    return rows < longest ? rows : longest;
}

static void plan_prompts(struct pd_engine *engine, int room, int most, bool answers)
{
    struct pd_sequence *s, **prompts = engine->prompts;
    int count = 0, used = 0;
    bool slow, one_ends = false;

    TAILQ_FOREACH (s, &engine->running, queue) {
        if (pd_sequence_prefills(s))
            prompts[count++] = s;
    }
    qsort(prompts, (size_t)count, sizeof(*prompts), by_urgency);
    if (!answers && count > 0)
        room = even_room(rows_left(prompts[0]), room, most);
    slow = pd_pace_is_long(&engine->pace, answers, room);
    for (int i = 0; i < count && room > 0; i++) {
        s = prompts[i];
        s->planned = rows_for(s, room, used, slow && one_ends);
        one_ends = one_ends || s->planned == rows_left(s);
        room -= s->planned;
        used += s->planned;
        for (int j = i + 1; j < count; j++)
            if (prompts[j]->number < s->number)
                prompts[j]->passed += s->planned;
    }
}

static void add_shares(struct pd_engine *engine)
{
    struct pd_sequence *s;

    engine->plan_count = 0;
    TAILQ_FOREACH (s, &engine->running, queue) {
        if (s->planned > 0)
            engine->plan[engine->plan_count++] = (struct pd_share){
                .sequence = s,
                .rows = s->planned,
                .end = s->launched + s->planned,
                .prefill = pd_sequence_prefills(s),
                .sample = -1,
            };
    }
}

bool pd_plan_make(struct pd_engine *engine)
{
    int answers, most, paced;

    engine->plan_count = 0;
    if (!plan_answers(engine, &answers))
        return false;
    most = engine->options.max_tokens - answers;
    paced = pd_pace_rows(&engine->pace, answers > 0);
    plan_prompts(engine, paced < most ? paced : most, most, answers > 0);
    add_shares(engine);
    return true;
}
