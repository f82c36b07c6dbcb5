#include "worker/link/frontends.h"

#include <stdio.h>
#include <string.h>

#include "worker/link/clean.h"

/* Each process of a frontend tells it each second: who is silent for so long is not known. */
static const uint64_t told_age_ns = 5u * 1000000000ull;

struct pd_frontend *pd_frontends_join(struct pd_frontends *frontends, const char *id)
{
    struct pd_frontend *spare = NULL;
    char name[sizeof(spare->id)];

    snprintf(name, sizeof(name), "%s", id);
    pd_clean_text(name);
    if (!name[0])
        return NULL;
    for (size_t i = 0; i < PD_FRONTENDS_MAX; i++) {
        struct pd_frontend *frontend = &frontends->entries[i];

        if (!frontend->streams) {
            if (!spare)
                spare = frontend;
        } else if (!strcmp(frontend->id, name)) {
            frontend->streams++;
            return frontend;
        }
    }
    if (!spare)
        return NULL;
    *spare = (struct pd_frontend){.streams = 1};
    memcpy(spare->id, name, sizeof(name));
    return spare;
}

void pd_frontends_leave(struct pd_frontend *frontend)
{
    if (frontend)
        frontend->streams--;
}

void pd_frontends_tell(struct pd_frontend *frontend, const Pd__V1__FrontendHealth *health,
                       uint64_t now_ns)
{
    if (!frontend || !health)
        return;
    frontend->requests = health->requests;
    frontend->finished = health->finished < health->requests ? health->finished : health->requests;
    frontend->away = health->away;
    frontend->told_ns = now_ns;
}

Pd__V1__Frontends *pd_frontends_others(struct pd_frontends *frontends,
                                       const struct pd_frontend *reader, struct pd_scratch *scratch,
                                       uint64_t now_ns)
{
    Pd__V1__Frontends *out = NULL;

    for (size_t i = 0; reader && i < PD_FRONTENDS_MAX; i++) {
        struct pd_frontend *other = &frontends->entries[i];
        Pd__V1__FrontendHealth *health;

        if (other == reader || !other->streams || !other->told_ns ||
            now_ns - other->told_ns > told_age_ns)
            continue;
        if (!out) {
            out = pd_scratch_alloc(scratch, sizeof(*out));
            if (!out)
                return NULL;
            pd__v1__frontends__init(out);
            out->others = pd_scratch_array(scratch, PD_FRONTENDS_MAX, sizeof(*out->others));
        }
        health = pd_scratch_alloc(scratch, sizeof(*health));
        if (!out->others || !health)
            return NULL;
        pd__v1__frontend_health__init(health);
        health->frontend_id = other->id;
        health->requests = other->requests;
        health->finished = other->finished;
        health->away = other->away;
        out->others[out->n_others++] = health;
    }
    return out;
}
