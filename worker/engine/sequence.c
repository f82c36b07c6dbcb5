#include "worker/engine/sequence.h"

#include <stdlib.h>

struct pd_sequence *pd_sequence_create(struct pd_request *request, uint64_t number, int max_tokens,
                                       int block_size)
{
    struct pd_sequence *sequence = calloc(1, sizeof(*sequence));
    size_t blocks = ((size_t)max_tokens + (size_t)block_size - 1) / (size_t)block_size;

    if (!sequence)
        return NULL;
    sequence->tokens = malloc((size_t)max_tokens * sizeof(*sequence->tokens));
    sequence->blocks = malloc(blocks * sizeof(*sequence->blocks));
    if (!sequence->tokens || !sequence->blocks) {
        pd_sequence_free(sequence);
        return NULL;
    }
    sequence->request = request;
    sequence->number = number;
    sequence->slot = -1;
    return sequence;
}

void pd_sequence_free(struct pd_sequence *sequence)
{
    pd_request_free(sequence->request);
    free(sequence->tokens);
    free(sequence->blocks);
    free(sequence);
}

bool pd_sequence_decodes(const struct pd_sequence *sequence)
{
    return sequence->request->route != PD_ROUTE_PREFILL && !pd_sequence_prefills(sequence) &&
           sequence->launched < sequence->count + sequence->pending &&
           pd_sequence_answer(sequence) + sequence->pending < sequence->max_answer;
}

/* ---- table ----------------------------------------------------------------------------------- */

static size_t attempt_bucket(const struct pd_attempt *id)
{
    uint64_t hash = id->attach * UINT64_C(0x9e3779b97f4a7c15) ^ id->request;

    hash = (hash ^ id->attempt) * UINT64_C(0xd6e8feb86659fd93);
    return (size_t)(hash >> 32) % PD_SEQUENCE_BUCKETS;
}

void pd_sequence_table_init(struct pd_sequence_table *table)
{
    TAILQ_INIT(&table->all);
    for (int i = 0; i < PD_SEQUENCE_BUCKETS; i++) {
        LIST_INIT(&table->by_attempt[i]);
        LIST_INIT(&table->by_number[i]);
    }
    table->count = 0;
}

void pd_sequence_table_add(struct pd_sequence_table *table, struct pd_sequence *sequence)
{
    size_t bucket = attempt_bucket(&sequence->request->id);

    TAILQ_INSERT_TAIL(&table->all, sequence, all);
    LIST_INSERT_HEAD(&table->by_attempt[bucket], sequence, by_attempt);
    LIST_INSERT_HEAD(&table->by_number[sequence->number % PD_SEQUENCE_BUCKETS], sequence,
                     by_number);
    table->count++;
}

void pd_sequence_table_remove(struct pd_sequence_table *table, struct pd_sequence *sequence)
{
    TAILQ_REMOVE(&table->all, sequence, all);
    LIST_REMOVE(sequence, by_attempt);
    LIST_REMOVE(sequence, by_number);
    table->count--;
}

struct pd_sequence *pd_sequence_by_attempt(const struct pd_sequence_table *table,
                                           const struct pd_attempt *id)
{
    struct pd_sequence *sequence;

    LIST_FOREACH (sequence, &table->by_attempt[attempt_bucket(id)], by_attempt) {
        const struct pd_attempt *other = &sequence->request->id;

        if (other->attach == id->attach && other->request == id->request &&
            other->attempt == id->attempt)
            return sequence;
    }
    return NULL;
}

struct pd_sequence *pd_sequence_by_number(const struct pd_sequence_table *table, uint64_t number)
{
    struct pd_sequence *sequence;

    LIST_FOREACH (sequence, &table->by_number[number % PD_SEQUENCE_BUCKETS], by_number) {
        if (sequence->number == number)
            return sequence;
    }
    return NULL;
}
