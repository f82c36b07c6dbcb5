/* What frontends tell of how their requests end, and what each is told of the others.
 *
 *     frontend A ──Heartbeat: 97 of 100──▶ worker ──Frontends: A has 97 of 100──▶ frontend B
 *
 * A frontend whose requests fail cannot know by itself whether that is its own fault; the workers
 * are what it shares with the others. A worker judges nothing: it passes on what it has heard in
 * the last seconds. The processes of one frontend tell the same and are one entry, which lives as
 * long as one of their streams. Belongs to the link's thread. */
#ifndef PD_FRONTENDS_H
#define PD_FRONTENDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/pd.pb-c.h"
#include "worker/link/scratch.h"

enum {
    PD_FRONTENDS_MAX = 256, /* one for each Attach stream at most */
    PD_FRONTEND_BYTES_MAX = 64,
};

struct pd_frontend {
    char id[PD_FRONTEND_BYTES_MAX + 1]; /* whole UTF-8 */
    size_t streams;                     /* 0: the entry is free */
    uint32_t requests, finished;        /* of its window, as it last told */
    bool away;
    uint64_t told_ns; /* 0: never */
};

struct pd_frontends {
    struct pd_frontend entries[PD_FRONTENDS_MAX];
};

/* The entry of this id for one more stream; `id` is at most PD_FRONTEND_BYTES_MAX long. NULL: it is
 * empty, and its stream neither tells nor hears anything. */
struct pd_frontend *pd_frontends_join(struct pd_frontends *frontends, const char *id);

/* The stream has ended. NULL is no stream's. */
void pd_frontends_leave(struct pd_frontend *frontend);

/* What it tells of itself: numbers that cannot be are cut to what can. */
void pd_frontends_tell(struct pd_frontend *frontend, const Pd__V1__FrontendHealth *health,
                       uint64_t now_ns);

/* What is to be told to `reader`, out of `scratch`; NULL: nothing, or no memory. */
Pd__V1__Frontends *pd_frontends_others(struct pd_frontends *frontends,
                                       const struct pd_frontend *reader, struct pd_scratch *scratch,
                                       uint64_t now_ns);

#endif
