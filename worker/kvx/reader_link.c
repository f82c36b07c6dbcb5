/* The links of the reader: one per source, opened when a ticket needs it. See reader.h.
 *
 * A link that was lost is opened again without a ticket, so that it is there when the next one comes: a path
 * between two hosts that was cut and heals is in use again within a second.
 *
 *     lost ── pause ──▶ try, 0.5 s to be answered ──▶ up
 *       ▲                        │ no answer
 *       └────────────────────────┘  for 5 minutes; then by the next ticket. Not if the source says that it is
 *                                   another one, or will not have us. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/kvx/reader_state.h"

/* After a try that failed: the pause before the next one, doubled each time. A link that was up is
 * tried again at once. */
static const uint64_t pause_first_ns = 100 * 1000000u, pause_longest_ns = 400 * 1000000u;

/* How long a lost link is opened again without a ticket; how long the source has for its hello then. */
static const uint64_t probe_ns = 300 * 1000000000ull, probe_answer_ns = 500 * 1000000u;

/* How long a transport that did not lead to a source is not offered to it again. */
static const uint64_t avoid_ns = 60 * 1000000000ull;

/* ---- the table ------------------------------------------------------------------------------- */

static struct reader_link *link_at(struct pd_list *node)
{
    return PD_OWNER(node, struct reader_link, in_reader);
}

static void forget(struct pd_reader *reader, struct reader_link *link)
{
    pd_list_remove(&link->in_reader);
    reader->link_count--;
    free(link->slots);
    free(link);
}

/* Room for a new link: the oldest one that is down gives way, else the oldest without a fetch. */
static bool make_room(struct pd_reader *reader, uint64_t now)
{
    struct reader_link *idle = NULL;

    if (reader->link_count < reader->options.max_links)
        return true;
    for (struct pd_list *at = reader->links.previous; at != &reader->links; at = at->previous) {
        struct reader_link *link = link_at(at);

        if (link->state == LINK_DOWN) {
            forget(reader, link);
            return true;
        }
        if (!idle && pd_list_empty(&link->fetches))
            idle = link;
    }
    if (!idle)
        return false;
    pd_link_fail(reader, now, idle, "another source needs the room");
    forget(reader, idle);
    return true;
}

static struct reader_link *add_link(struct pd_reader *reader, const struct pd_ticket *ticket)
{
    struct reader_link *link = calloc(1, sizeof(*link));

    if (!link)
        return NULL;
    pd_kv_cut(link->instance, sizeof(link->instance), ticket->instance);
    link->boot = ticket->boot;
    pd_list_init(&link->fetches);
    pd_list_init(&link->work);
    pd_list_prepend(&reader->links, &link->in_reader);
    reader->link_count++;
    return link;
}

static struct reader_link *find_link(struct pd_reader *reader, const char *instance, uint64_t boot)
{
    for (struct pd_list *at = reader->links.next; at != &reader->links; at = at->next) {
        struct reader_link *link = link_at(at);

        if (link->boot == boot && strcmp(link->instance, instance) == 0)
            return link;
    }
    return NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int begin_opening(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                         uint64_t patience, struct pd_error *error)
{
    link->id = reader->world.next_link(reader->world.context);
    if (pd_idmap_put(&reader->by_link, link->id, link) != PD_OK)
        return pd_fail(error, PD_FULL, "no room for a KV link to %s", link->instance);
    link->state = OPENING;
    link->deadline = now + patience;
    link->transport[0] = link->why[0] = '\0';
    reader->world.open(reader->world.context, link->id, link->address);
    return PD_OK;
}

static void offer_all_again(uint64_t now, struct reader_link *link)
{
    if (now < link->avoided_until)
        return;
    link->avoided = 0;
    link->avoided_why[0] = '\0';
}

static int open_link(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                     const char *address, struct pd_error *error)
{
    if (now < link->retry_at)
        return pd_fail(error, PD_IO, "no KV link to %s; next try in %llu ms; last: %s",
                       link->instance, (unsigned long long)((link->retry_at - now) / 1000000 + 1),
                       link->why);
    pd_kv_cut(link->address, sizeof(link->address), address);
    link->probe_until = 0; /* a ticket is a reason to begin anew */
    offer_all_again(now, link);
    return begin_opening(reader, now, link, reader->options.silence_ns, error);
}

/* A lost link whose pause is over. Fails only where the tables are full: then a ticket will try. */
static void probe(struct pd_reader *reader, uint64_t now, struct reader_link *link)
{
    uint64_t patience =
        reader->options.silence_ns < probe_answer_ns ? reader->options.silence_ns : probe_answer_ns;
    struct pd_error error;

    if (now < link->retry_at || now >= link->probe_until)
        return;
    offer_all_again(now, link);
    link->probing = begin_opening(reader, now, link, patience, &error) == PD_OK;
}

/* A link is for one boot of one source: a ticket of another boot gets a link of its own, whose
 * hello shows which of the two is alive (12). */
struct reader_link *pd_link_for(struct pd_reader *reader, uint64_t now,
                                const struct pd_ticket *ticket, struct pd_error *error)
{
    struct reader_link *link = find_link(reader, ticket->instance, ticket->boot);

    if (!link) {
        if (!make_room(reader, now)) {
            pd_fail(error, PD_FULL, "all %zu KV links are in use", reader->options.max_links);
            return NULL;
        }
        link = add_link(reader, ticket);
        if (!link) {
            pd_fail(error, PD_NO_MEMORY, "no memory for a KV link");
            return NULL;
        }
    }
    if (link->state == LINK_DOWN && open_link(reader, now, link, ticket->address, error) != PD_OK)
        return NULL;
    if (link->probing) {
        link->deadline = now + reader->options.silence_ns;
        link->probing = false;
    }
    return link;
}

void pd_link_send(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                  const struct pd_to_source *message)
{
    link->spoke = now;
    reader->world.send(reader->world.context, link->id, message);
}

void pd_reader_link_up(struct pd_reader *reader, uint64_t now, uint64_t id)
{
    struct reader_link *link = pd_idmap_get(&reader->by_link, id);
    struct pd_to_source message = {.kind = PD_TO_SOURCE_HELLO};
    struct pd_reader_hello *hello = &message.hello;

    if (!link || link->state != OPENING)
        return;
    hello->protocol = PD_KV_PROTOCOL;
    memcpy(hello->instance, reader->instance, sizeof(hello->instance));
    memcpy(hello->host_id, reader->host_id, sizeof(hello->host_id));
    hello->boot = reader->options.boot;
    hello->epoch = ++reader->epoch;
    hello->source_boot = link->boot;
    hello->fingerprint = reader->options.fingerprint;
    for (size_t i = 0; i < reader->transport_count; i++)
        if (!(link->avoided & 1u << i))
            memcpy(hello->transports[hello->transport_count++], reader->transports[i],
                   sizeof(*hello->transports));
    hello->checksum = reader->options.checksum;
    hello->tls = reader->options.tls;
    link->state = GREETING;
    link->heard = now;
    pd_link_send(reader, now, link, &message);
}

/* ---- the end of a link ----------------------------------------------------------------------- */

/* Destroys this end and forgets what was agreed on. */
static void undo(struct pd_reader *reader, struct reader_link *link)
{
    if (link->data.end)
        reader->world.disconnect(reader->world.context, link->data.end);
    pd_idmap_remove(&reader->by_link, link->id);
    free(link->slots);
    link->slots = NULL;
    link->data = (struct pd_data_path){0};
    link->in_flight = 0;
}

/* Up to a quarter of the pause: readers that have lost the same source do not come back in step. */
static uint64_t jitter(const struct pd_reader *reader, const struct reader_link *link)
{
    uint64_t mixed = (reader->options.boot ^ link->id) * 0x9e3779b97f4a7c15u;

    return link->pause / 4 * (mixed >> 56) / 256;
}

/* The order is the fence: first this end is destroyed, all of its connections, so that nothing
 * lands any more; then the fetches are closed and their blocks are the engine's (8, 9). */
static void lose(struct pd_reader *reader, uint64_t now, struct reader_link *link, const char *why)
{
    bool was_up = link->state == UP;

    undo(reader, link);
    link->state = LINK_DOWN;
    pd_kv_cut(link->why, sizeof(link->why), why);
    reader->counters.links_lost += was_up;
    if (was_up)
        link->pause = 0;
    else
        link->pause = link->pause == 0                     ? pause_first_ns
                      : 2 * link->pause < pause_longest_ns ? 2 * link->pause
                                                           : pause_longest_ns;
    link->retry_at = now + link->pause - jitter(reader, link);
    if (was_up || link->probe_until == 0)
        link->probe_until = now + probe_ns;
    if (!link->probing) /* else it was down before, as everybody knows */
        reader->world.link_changed(reader->world.context, link->instance, false, link->transport,
                                   why);
    link->probing = false;
    while (!pd_list_empty(&link->fetches))
        pd_fetch_lost(reader, now, PD_OWNER(link->fetches.next, struct fetch, in_link), link->why);
}

static void add_reason(char why[PD_KV_WHY], const char *more)
{
    size_t used = strlen(why);

    if (used > 0 && used + 2 < PD_KV_WHY && more[0]) {
        memcpy(why + used, "; ", 3);
        used += 2;
    }
    pd_kv_cut(why + used, PD_KV_WHY - used, more);
}

/* The transport that both ends agreed on does not lead from here to there, and another one may: the link is
 * opened anew without it, and the fetches that wait for it, none of which has claimed yet, wait on. False if
 * there is no other. */
static bool fall_back(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                      const char *why)
{
    unsigned all = (1u << reader->transport_count) - 1;
    uint64_t id = link->id;
    char reason[PD_KV_WHY];
    struct pd_error error;

    if (link->state != CONNECTING)
        return false;
    for (size_t i = 0; i < reader->transport_count; i++)
        if (strcmp(reader->transports[i], link->transport) == 0)
            link->avoided |= 1u << i;
    link->avoided_until = now + avoid_ns;
    if ((link->avoided & all) == all) { /* the next link begins anew */
        link->avoided = 0;
        link->avoided_why[0] = '\0';
        return false;
    }
    snprintf(reason, sizeof(reason), "no %s: %.*s", link->transport, PD_KV_WHY / 2, why);
    add_reason(link->avoided_why, reason);
    reader->counters.fallbacks++;
    undo(reader, link);
    reader->world.close(reader->world.context, id, why);
    return begin_opening(reader, now, link, reader->options.silence_ns, &error) ==
           PD_OK; /* its old place is free */
}

void pd_link_fail(struct pd_reader *reader, uint64_t now, struct reader_link *link, const char *why)
{
    uint64_t id = link->id;

    lose(reader, now, link, why);
    reader->world.close(reader->world.context, id, why);
}

void pd_reader_link_down(struct pd_reader *reader, uint64_t now, uint64_t id, const char *why)
{
    struct reader_link *link = pd_idmap_get(&reader->by_link, id);

    if (link)
        lose(reader, now, link, why);
}

void pd_reader_link_fail(struct pd_reader *reader, uint64_t now, uint64_t id, const char *why)
{
    struct reader_link *link = pd_idmap_get(&reader->by_link, id);
    char reason[PD_KV_WHY]; /* `why` may lie in the end that is destroyed now */

    pd_kv_cut(reason, sizeof(reason), why);
    if (link && !fall_back(reader, now, link, reason))
        pd_link_fail(reader, now, link, reason);
}

void pd_reader_shutdown(struct pd_reader *reader, uint64_t now)
{
    for (struct pd_list *at = reader->links.next; at != &reader->links; at = at->next)
        if (link_at(at)->state != LINK_DOWN)
            pd_link_fail(reader, now, link_at(at), "the reader is shutting down");
}

void pd_reader_destroy(struct pd_reader *reader)
{
    while (!pd_list_empty(&reader->links))
        forget(reader, link_at(reader->links.next));
    pd_idmap_free(&reader->by_fetch);
    pd_idmap_free(&reader->by_link);
    free(reader);
}

/* ---- the source's hello ---------------------------------------------------------------------- */

static bool wanted(const struct pd_reader *reader, const char *transport)
{
    for (size_t i = 0; i < reader->transport_count; i++)
        if (strcmp(reader->transports[i], transport) == 0)
            return true;
    return false;
}

/* Name, boot, fingerprint and shape, before a byte of that pool means anything here (12). */
static int check_hello(const struct pd_reader *reader, const struct reader_link *link,
                       const struct pd_source_hello *hello, struct pd_error *error)
{
    if (hello->transport[0] == '\0')
        return pd_fail(error, PD_INVALID, "refused by %s: %s", hello->instance, hello->why);
    if (hello->protocol < PD_KV_PROTOCOL)
        return pd_fail(error, PD_INVALID, "source speaks KV protocol %u, reader needs %d",
                       hello->protocol, PD_KV_PROTOCOL);
    if (strcmp(hello->instance, link->instance) != 0)
        return pd_fail(error, PD_INVALID, "%s answers as %s, the ticket is of %s", link->address,
                       hello->instance, link->instance);
    if (hello->boot != link->boot)
        return pd_fail(error, PD_INVALID, "the ticket is of boot %016llx of %s, which runs %016llx",
                       (unsigned long long)link->boot, link->instance,
                       (unsigned long long)hello->boot);
    if (!wanted(reader, hello->transport))
        return pd_fail(error, PD_INVALID, "the source chose transport '%s', which was not offered",
                       hello->transport);
    if (pd_fingerprint_match(&hello->fingerprint, &reader->options.fingerprint, error) != PD_OK)
        return PD_INVALID;
    if (reader->options.checksum && !hello->checksum)
        return pd_fail(error, PD_INVALID,
                       "%s gives no checksums of its KV, and --kv-checksum is set here",
                       hello->instance);
    return pd_layout_match(&hello->pool, &reader->options.layout, error);
}

/* The source lives under this boot now: what is left of its older ones is dead, noticed or not
 * (11). */
static void supersede(struct pd_reader *reader, uint64_t now, const struct reader_link *link)
{
    struct pd_list *at = reader->links.next, *next;

    for (; at != &reader->links; at = next) {
        struct reader_link *older = link_at(at);

        next = at->next;
        if (older == link || strcmp(older->instance, link->instance) != 0)
            continue;
        if (older->state != LINK_DOWN)
            pd_link_fail(reader, now, older, "the source has restarted");
        forget(reader, older);
    }
}

static void on_hello(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                     const struct pd_source_hello *hello)
{
    struct pd_error error;

    if (link->state != GREETING) {
        pd_link_fail(reader, now, link, "a second hello");
        return;
    }
    if (check_hello(reader, link, hello, &error) != PD_OK) {
        link->probe_until = now + 1; /* that will not change by itself */
        pd_link_fail(reader, now, link, error.text);
        return;
    }
    supersede(reader, now, link);
    link->source = hello->pool;
    link->source_epoch = hello->epoch;
    memcpy(link->transport, hello->transport, sizeof(link->transport));
    pd_kv_cut(link->why, sizeof(link->why), link->avoided_why);
    add_reason(link->why, hello->why);
    link->state = CONNECTING;
    link->deadline = now + reader->options.silence_ns;
    if (reader->world.connect(reader->world.context, link->id, hello, &link->data, &error) !=
        PD_OK) {
        pd_reader_link_fail(reader, now, link->id, error.text);
        return;
    }
    link->slots = calloc(link->data.window, sizeof(*link->slots));
    if (!link->slots) {
        pd_link_fail(reader, now, link, "no memory for reads");
        return;
    }
}

void pd_reader_connected(struct pd_reader *reader, uint64_t now, uint64_t id)
{
    struct reader_link *link = pd_idmap_get(&reader->by_link, id);
    struct pd_list *at, *next;

    if (!link || link->state != CONNECTING)
        return;
    link->state = UP;
    link->heard = now;
    link->pause = 0;
    link->probing = false;
    reader->world.link_changed(reader->world.context, link->instance, true, link->transport,
                               link->why);
    for (at = link->fetches.next; at != &link->fetches; at = next) {
        struct fetch *fetch = PD_OWNER(at, struct fetch, in_link);

        next = at->next;
        pd_fetch_linked(reader, now, fetch);
    }
}

bool pd_reader_has_link(const struct pd_reader *reader, uint64_t id)
{
    return pd_idmap_get(&reader->by_link, id) != NULL;
}

void pd_reader_message(struct pd_reader *reader, uint64_t now, uint64_t id,
                       const struct pd_from_source *message)
{
    struct reader_link *link = pd_idmap_get(&reader->by_link, id);

    if (!link || link->state == OPENING)
        return;
    link->heard = now;
    if (message->kind == PD_FROM_SOURCE_HELLO)
        on_hello(reader, now, link, &message->hello);
    else if (link->state == GREETING)
        pd_link_fail(reader, now, link, "the source's first message is not a hello");
    else if (message->kind != PD_FROM_SOURCE_UNKNOWN && message->kind != PD_FROM_SOURCE_HEARTBEAT)
        pd_fetch_message(reader, now, link, message);
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool claim_overdue(const struct reader_link *link, uint64_t now)
{
    for (const struct pd_list *at = link->fetches.next; at != &link->fetches; at = at->next) {
        const struct fetch *fetch = PD_OWNER(at, struct fetch, in_link);

        if ((fetch->state == CLAIMING || fetch->state == ABANDONED) && now >= fetch->claim_deadline)
            return true;
    }
    return false;
}

/* What time has to say against a link that is not down; NULL if nothing. */
static const char *overdue(struct pd_reader *reader, const struct reader_link *link, uint64_t now)
{
    if (link->state != UP)
        return now >= link->deadline ? "the source did not answer in time" : NULL;
    if (now - link->heard >= reader->options.silence_ns) {
        reader->counters.silences++;
        return "the source has been silent past the deadline";
    }
    if (link->in_flight > 0 && now - link->progress >= reader->options.stall_ns) {
        reader->counters.stalls++;
        return "reads make no progress";
    }
    if (claim_overdue(link, now)) {
        reader->counters.stalls++;
        return "the source answers no claims";
    }
    return NULL;
}

void pd_reader_tick(struct pd_reader *reader, uint64_t now)
{
    for (struct pd_list *at = reader->links.next; at != &reader->links; at = at->next) {
        struct reader_link *link = link_at(at);
        const char *why;

        if (link->state == LINK_DOWN) {
            probe(reader, now, link);
            continue;
        }
        why = overdue(reader, link, now);
        if (why) {
            pd_reader_link_fail(reader, now, link->id, why);
        } else if (link->state >= GREETING && now - link->spoke >= reader->options.silence_ns / 3) {
            struct pd_to_source message = {.kind = PD_TO_SOURCE_HEARTBEAT,
                                           .heartbeat = ++link->heartbeats};

            pd_link_send(reader, now, link, &message);
        }
    }
}

size_t pd_reader_links(const struct pd_reader *reader, struct pd_kvx_link_state *states,
                       size_t capacity)
{
    size_t n = 0;

    for (struct pd_list *at = reader->links.next; at != &reader->links && n < capacity;
         at = at->next) {
        const struct reader_link *link = link_at(at);
        struct pd_kvx_link_state *state = &states[n++];

        pd_kv_cut(state->peer, sizeof(state->peer), link->instance);
        state->up = link->state == UP;
        pd_kv_cut(state->transport, sizeof(state->transport), link->transport);
        pd_kv_cut(state->why, sizeof(state->why), link->why);
        state->bytes = link->bytes;
        state->transfers = link->transfers;
        state->failures = link->failures;
    }
    return n;
}
