#include "worker/link/attempts.h"

#include <stdlib.h>

static struct pd_attempt_entry **bucket_of(struct pd_attempts *attempts, uint64_t request,
                                           uint32_t attempt)
{
    uint64_t hash = (request ^ ((uint64_t)attempt << 48)) * 0x9e3779b97f4a7c15u;

    return &attempts->buckets[hash >> 54]; /* the upper 10 bits: 1024 buckets */
}

static void append(struct pd_attempt_list *list, struct pd_attempt_entry *entry)
{
    entry->next = NULL;
    entry->previous = list->last;
    *(list->last ? &list->last->next : &list->first) = entry;
    list->last = entry;
    list->count++;
}

static void unlink_from(struct pd_attempt_list *list, struct pd_attempt_entry *entry)
{
    *(entry->previous ? &entry->previous->next : &list->first) = entry->next;
    *(entry->next ? &entry->next->previous : &list->last) = entry->previous;
    list->count--;
}

static struct pd_attempt_list *list_of(struct pd_attempts *attempts,
                                       const struct pd_attempt_entry *entry)
{
    if (entry->state == PD_ATTEMPT_HANDED)
        return &attempts->handed;
    return entry->seen ? &attempts->seen : &attempts->unseen;
}

struct pd_attempt_entry *pd_attempts_find(struct pd_attempts *attempts, uint64_t request,
                                          uint32_t attempt)
{
    struct pd_attempt_entry *entry = *bucket_of(attempts, request, attempt);

    while (entry && (entry->request != request || entry->attempt != attempt))
        entry = entry->chain;
    return entry;
}

struct pd_attempt_entry *pd_attempts_add(struct pd_attempts *attempts, struct pd_job *job)
{
    struct pd_attempt_entry *entry, **bucket;

    attempts->submissions++;
    if (!job || pd_attempts_running(attempts) >= PD_ATTEMPTS_MAX)
        return NULL;
    entry = calloc(1, sizeof(*entry));
    if (!entry)
        return NULL;
    entry->request = job->id.request;
    entry->attempt = job->id.attempt;
    entry->state = PD_ATTEMPT_ASSEMBLING;
    entry->number = attempts->submissions;
    entry->job = job;
    bucket = bucket_of(attempts, entry->request, entry->attempt);
    entry->chain = *bucket;
    *bucket = entry;
    append(&attempts->unseen, entry);
    return entry;
}

void pd_attempts_seen(struct pd_attempts *attempts, struct pd_attempt_entry *entry)
{
    if (entry->seen || entry->state == PD_ATTEMPT_HANDED)
        return;
    unlink_from(&attempts->unseen, entry);
    entry->seen = true;
    append(&attempts->seen, entry);
}

void pd_attempts_handed(struct pd_attempts *attempts, struct pd_attempt_entry *entry)
{
    unlink_from(list_of(attempts, entry), entry);
    entry->state = PD_ATTEMPT_HANDED;
    append(&attempts->handed, entry);
    if (entry->job)
        pd_job_release(entry->job);
    entry->job = NULL;
    if (attempts->handed.count > PD_ATTEMPTS_HANDED_MAX)
        pd_attempts_remove(attempts, attempts->handed.first);
}

void pd_attempts_remove(struct pd_attempts *attempts, struct pd_attempt_entry *entry)
{
    struct pd_attempt_entry **link = bucket_of(attempts, entry->request, entry->attempt);

    while (*link != entry)
        link = &(*link)->chain;
    *link = entry->chain;
    unlink_from(list_of(attempts, entry), entry);
    if (entry->job)
        pd_job_release(entry->job);
    free(entry);
}

void pd_attempts_clear(struct pd_attempts *attempts)
{
    while (attempts->unseen.first)
        pd_attempts_remove(attempts, attempts->unseen.first);
    while (attempts->seen.first)
        pd_attempts_remove(attempts, attempts->seen.first);
    while (attempts->handed.first)
        pd_attempts_remove(attempts, attempts->handed.first);
}

size_t pd_attempts_running(const struct pd_attempts *attempts)
{
    return attempts->unseen.count + attempts->seen.count;
}

uint64_t pd_attempts_last_submission(const struct pd_attempts *attempts)
{
    return attempts->unseen.first ? attempts->unseen.first->number - 1 : attempts->submissions;
}
