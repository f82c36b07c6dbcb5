#include "worker/kvx/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "worker/kvx/source_state.h"

/* ---- life ------------------------------------------------------------------------------------ */

int pd_source_create(const struct pd_source_options *options, const struct pd_source_world *world,
                     struct pd_source **out)
{
    struct pd_source *source = calloc(1, sizeof(*source));

    if (!source)
        return PD_NO_MEMORY;
    source->options = *options;
    pd_kv_cut(source->instance, sizeof(source->instance), options->instance);
    source->world = *world;
    pd_list_init(&source->tickets);
    pd_list_init(&source->links);
    pd_list_init(&source->work);
    if (pd_idmap_init(&source->by_generation, options->max_tickets) != PD_OK ||
        pd_idmap_init(&source->by_link, options->max_links) != PD_OK) {
        pd_source_destroy(source);
        return PD_NO_MEMORY;
    }
    *out = source;
    return PD_OK;
}

void pd_source_destroy(struct pd_source *source)
{
    pd_idmap_free(&source->by_generation);
    pd_idmap_free(&source->by_link);
    free(source);
}

/* ---- tickets --------------------------------------------------------------------------------- */

/* The only place where blocks become free: nobody reads them any more and nobody can. */
static void release(struct pd_source *source, struct pd_source_ticket *ticket)
{
    pd_idmap_remove(&source->by_generation, ticket->generation);
    pd_list_remove(&ticket->in_source);
    pd_list_remove(&ticket->in_link);
    pd_list_remove(&ticket->in_work);
    source->counters.releases++;
    source->world.released(source->world.context, ticket->generation);
    pd_source_ticket_free(ticket);
}

int pd_source_offer(struct pd_source *source, uint64_t now, struct pd_source_ticket *ticket)
{
    int status = pd_idmap_put(&source->by_generation, ticket->generation, ticket);

    if (status != PD_OK)
        return status;
    ticket->deadline = now + source->options.claim_ns;
    pd_list_append(&source->tickets, &ticket->in_source);
    source->counters.offers++;
    return PD_OK;
}

/* ---- what goes to a reader ------------------------------------------------------------------- */

static void send(struct pd_source *source, uint64_t now, struct link *link,
                 const struct pd_from_source *message)
{
    link->spoke = now;
    source->world.send(source->world.context, link->id, message);
}

/* Where the ticket stands, with the sums of what the last message did not tell of yet. */
static struct pd_chunk_ready standing(const struct pd_source *source,
                                      struct pd_source_ticket *ticket)
{
    uint32_t end = pd_ticket_ready_blocks(source, ticket);
    struct pd_chunk_ready ready = ticket->ready;

    if (ticket->sums) {
        ready.sums_from = ticket->told;
        ready.sums = ticket->sums + ticket->told;
        ready.sum_count = end - ticket->told;
    }
    ticket->told = end;
    return ready;
}

static void send_ending(struct pd_source *source, uint64_t now, struct link *link,
                        enum pd_from_source_kind kind, uint64_t generation, const char *why)
{
    struct pd_from_source message = {.kind = kind, .gone.generation = generation};

    pd_kv_cut(message.gone.why, sizeof(message.gone.why), why);
    send(source, now, link, &message);
}

/* A claimed ticket that will not be completed: its reader is told (3, 4). */
static void give_up(struct pd_source *source, uint64_t now, struct pd_source_ticket *ticket,
                    const char *why)
{
    ticket->revoked = true;
    pd_list_remove(&ticket->in_work);
    ticket->deadline = now + source->options.release_ns;
    send_ending(source, now, ticket->link, PD_FROM_SOURCE_REVOKED, ticket->generation, why);
}

static void send_ready(struct pd_source *source, uint64_t now, struct pd_source_ticket *ticket)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_READY,
                                     .ready = standing(source, ticket)};

    send(source, now, ticket->link, &message);
}

/* More of a ticket is ready: its reader is told, now or once that is prepared. */
static void go_on(struct pd_source *source, uint64_t now, struct pd_source_ticket *ticket)
{
    if (!ticket->link || ticket->revoked || !pd_list_empty(&ticket->in_work))
        return;
    if (pd_ticket_wants_preparing(ticket) &&
        ticket->prepared < pd_ticket_ready_blocks(source, ticket))
        pd_list_append(&source->work, &ticket->in_work);
    else
        send_ready(source, now, ticket);
}

/* A few blocks of the ticket that has waited longest, so that nothing else waits for all of a chunk. */
bool pd_source_work(struct pd_source *source, uint64_t now)
{
    struct pd_source_ticket *ticket;

    if (pd_list_empty(&source->work))
        return false;
    ticket = PD_OWNER(source->work.next, struct pd_source_ticket, in_work);
    pd_list_remove(&ticket->in_work);
    if (pd_ticket_prepare(source, ticket))
        go_on(source, now, ticket);
    else
        give_up(source, now, ticket, "the source's device has lost the blocks");
    return !pd_list_empty(&source->work);
}

/* ---- what the engine says -------------------------------------------------------------------- */

/* Counts only rise: a message is the whole truth, and a repeated one changes nothing (5). */
void pd_source_ready(struct pd_source *source, uint64_t now, uint64_t generation, uint32_t tokens)
{
    struct pd_source_ticket *ticket = pd_idmap_get(&source->by_generation, generation);

    if (!ticket || tokens <= ticket->ready.tokens || tokens > ticket->tokens)
        return;
    ticket->ready.tokens = tokens;
    go_on(source, now, ticket);
}

/* The first token rides in the last ChunkReady (13). */
void pd_source_complete(struct pd_source *source, uint64_t now, uint64_t generation,
                        const struct pd_kvx_first *first)
{
    struct pd_source_ticket *ticket = pd_idmap_get(&source->by_generation, generation);

    if (!ticket || ticket->ready.complete)
        return;
    ticket->ready.tokens = ticket->tokens;
    ticket->ready.complete = true;
    ticket->ready.first = *first;
    if (ticket->link)
        ticket->deadline = now + source->options.release_ns;
    go_on(source, now, ticket);
}

/* An unclaimed ticket has no reader: free at once (1). A claimed one only tells its reader (3,
 * 4). */
void pd_source_revoke(struct pd_source *source, uint64_t now, uint64_t generation, const char *why)
{
    struct pd_source_ticket *ticket = pd_idmap_get(&source->by_generation, generation);

    if (!ticket || ticket->revoked)
        return;
    source->counters.revocations++;
    if (!ticket->link) {
        release(source, ticket);
        return;
    }
    give_up(source, now, ticket, why);
}

/* (1) for the loss of the stream that an offer came by. Claimed tickets go on: once a reader has
 * one, the reader alone judges it (18). */
void pd_source_forget_owner(struct pd_source *source, uint64_t owner)
{
    struct pd_list *at = source->tickets.next, *next;

    for (; at != &source->tickets; at = next) {
        struct pd_source_ticket *ticket = PD_OWNER(at, struct pd_source_ticket, in_source);

        next = at->next;
        if (!ticket->link && ticket->owner == owner)
            release(source, ticket);
    }
}

/* ---- links ----------------------------------------------------------------------------------- */

void pd_source_link_up(struct pd_source *source, uint64_t now, uint64_t id)
{
    struct link *link = calloc(1, sizeof(*link));

    if (!link || pd_idmap_put(&source->by_link, id, link) != PD_OK) {
        free(link);
        source->world.close(source->world.context, id, "too many KV links to this source");
        return;
    }
    link->id = id;
    link->heard = link->spoke = now;
    pd_list_init(&link->tickets);
    pd_list_append(&source->links, &link->in_source);
}

/* The fence of a claimed ticket without a release: first this end is destroyed, all of its
 * connections, then the blocks are free (3, 9). */
static void lose(struct pd_source *source, struct link *link, const char *why)
{
    pd_idmap_remove(&source->by_link, link->id);
    pd_list_remove(&link->in_source);
    source->counters.links_lost += link->state == LIVE;
    if (link->path.end)
        source->world.withdraw(source->world.context, link->path.end);
    while (!pd_list_empty(&link->tickets))
        release(source, PD_OWNER(link->tickets.next, struct pd_source_ticket, in_link));
    source->world.link_changed(source->world.context, link->reader, false, link->transport, why);
    free(link);
}

void pd_source_link_down(struct pd_source *source, uint64_t id, const char *why)
{
    struct link *link = pd_idmap_get(&source->by_link, id);

    if (link)
        lose(source, link, why);
}

static void fail(struct pd_source *source, struct link *link, const char *why)
{
    uint64_t id = link->id;

    lose(source, link, why);
    source->world.close(source->world.context, id, why);
}

void pd_source_link_fail(struct pd_source *source, uint64_t id, const char *why)
{
    struct link *link = pd_idmap_get(&source->by_link, id);

    if (link)
        fail(source, link, why);
}

static void fill_hello(const struct pd_source *source, struct pd_source_hello *hello)
{
    hello->protocol = PD_KV_PROTOCOL;
    pd_kv_cut(hello->instance, sizeof(hello->instance), source->instance);
    hello->boot = source->options.boot;
    hello->epoch = source->options.epoch;
    hello->fingerprint = source->options.fingerprint;
    hello->pool = source->options.layout;
}

/* A hello without a transport says why the link is refused; then the stream ends. */
static void refuse(struct pd_source *source, uint64_t now, struct link *link, const char *why)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_HELLO};

    fill_hello(source, &message.hello);
    pd_kv_cut(message.hello.why, sizeof(message.hello.why), why);
    send(source, now, link, &message);
    fail(source, link, why);
}

static struct link *link_of_reader(struct pd_source *source, const char *reader)
{
    for (struct pd_list *at = source->links.next; at != &source->links; at = at->next) {
        struct link *link = PD_OWNER(at, struct link, in_source);

        if (link->state == LIVE && strcmp(link->reader, reader) == 0)
            return link;
    }
    return NULL;
}

/* Boot and fingerprint before anything else (12); the error names both sides. */
static int check_hello(const struct pd_source *source, const struct pd_reader_hello *hello,
                       struct pd_error *error)
{
    if (hello->protocol < PD_KV_PROTOCOL)
        return pd_fail(error, PD_INVALID, "reader speaks KV protocol %u, source needs %d",
                       hello->protocol, PD_KV_PROTOCOL);
    if (hello->instance[0] == '\0')
        return pd_fail(error, PD_INVALID, "the reader gives no name");
    if (hello->source_boot != source->options.boot)
        return pd_fail(error, PD_INVALID,
                       "the reader means boot %016llx of %s, which now runs boot %016llx: tickets "
                       "from before its restart are gone",
                       (unsigned long long)hello->source_boot, source->instance,
                       (unsigned long long)source->options.boot);
    return pd_fingerprint_match(&source->options.fingerprint, &hello->fingerprint, error);
}

/* A reader has one link. Accepting a newer one first does all that the loss of the older one would
 * (11): it may be half open, and nobody else would notice. */
static int supersede(struct pd_source *source, const struct pd_reader_hello *hello,
                     struct pd_error *error)
{
    struct link *older = link_of_reader(source, hello->instance);

    if (!older)
        return PD_OK;
    if (older->reader_boot == hello->boot && older->reader_epoch >= hello->epoch)
        return pd_fail(error, PD_INVALID, "a newer link of %s is up (epoch %llu, this one %llu)",
                       hello->instance, (unsigned long long)older->reader_epoch,
                       (unsigned long long)hello->epoch);
    fail(source, older, "the reader has opened a newer link");
    return PD_OK;
}

static void on_hello(struct pd_source *source, uint64_t now, struct link *link,
                     const struct pd_reader_hello *hello)
{
    struct pd_from_source answer = {.kind = PD_FROM_SOURCE_HELLO};
    struct pd_error error;

    if (link->state != GREETING) {
        fail(source, link, "a second hello");
        return;
    }
    memcpy(link->reader, hello->instance, sizeof(link->reader));
    fill_hello(source, &answer.hello);
    if (check_hello(source, hello, &error) != PD_OK || supersede(source, hello, &error) != PD_OK ||
        source->world.serve(source->world.context, link->id, hello, &answer.hello, &link->path,
                            &error) != PD_OK) {
        refuse(source, now, link, error.text);
        return;
    }
    link->state = LIVE;
    link->checksum = answer.hello.checksum = hello->checksum && link->path.sums;
    link->reader_boot = hello->boot;
    link->reader_epoch = hello->epoch;
    memcpy(link->transport, answer.hello.transport, sizeof(link->transport));
    source->world.link_changed(source->world.context, link->reader, true, link->transport,
                               answer.hello.why);
    send(source, now, link, &answer);
}

/* ---- claims and releases --------------------------------------------------------------------- */

/* The words of the ticket's blocks as they are now: they move only once the blocks have been freed
 * (15). NULL if there is no memory. */
static uint64_t *read_words(const struct pd_source *source, const struct pd_source_ticket *ticket)
{
    uint64_t *words = calloc(ticket->blocks, sizeof(*words)), *to = words;

    if (!words)
        return NULL;
    for (size_t i = 0; i < ticket->extent_count; i++)
        for (uint32_t n = 0; n < ticket->extents[i].count; n++)
            *to++ = atomic_load_explicit(&source->options.words[ticket->extents[i].first + n],
                                         memory_order_acquire);
    return words;
}

/* The answer carries the current count: a chunk that was ready before the claim is not lost (5). Where blocks
 * are to be prepared none is yet, and the count follows. */
static void send_claimed(struct pd_source *source, uint64_t now, struct pd_source_ticket *ticket,
                         uint64_t *words)
{
    struct pd_from_source message = {.kind = PD_FROM_SOURCE_CLAIMED};
    bool prepares = pd_ticket_wants_preparing(ticket);

    message.claimed.generation = ticket->generation;
    message.claimed.extents = ticket->extents;
    message.claimed.extent_count = ticket->extent_count;
    message.claimed.prompt = ticket->prompt;
    message.claimed.prompt_count = ticket->tokens;
    message.claimed.words = words;
    message.claimed.word_count = words ? ticket->blocks : 0;
    message.claimed.ready = (struct pd_chunk_ready){.generation = ticket->generation};
    if (!prepares)
        message.claimed.ready = standing(source, ticket);
    send(source, now, ticket->link, &message);
    if (prepares && pd_ticket_ready_blocks(source, ticket) > 0)
        go_on(source, now, ticket);
}

/* Why this claim is not accepted; NULL if it is. Only the first one is (6). */
static const char *refusal(const struct pd_source *source, const struct pd_source_ticket *ticket,
                           const struct pd_claim *claim)
{
    if (claim->epoch != source->options.epoch)
        return "the ticket is of another epoch of the pool";
    if (!ticket)
        return "no such ticket: it was released, withdrawn or never offered";
    if (CRYPTO_memcmp(claim->secret, ticket->secret, PD_KVX_SECRET) != 0)
        return "the claim's secret is not the ticket's";
    if (ticket->link)
        return "the ticket was claimed before";
    return NULL;
}

static void on_claim(struct pd_source *source, uint64_t now, struct link *link,
                     const struct pd_claim *claim)
{
    struct pd_source_ticket *ticket = pd_idmap_get(&source->by_generation, claim->generation);
    const char *why = refusal(source, ticket, claim);
    uint64_t *words = NULL;

    if (!why && link->path.words) {
        words = read_words(source, ticket);
        if (!words)
            why = "no memory";
    }
    if (!why && link->checksum) {
        ticket->sums = calloc(ticket->blocks, sizeof(*ticket->sums));
        if (!ticket->sums)
            why = "no memory";
    }
    if (why) {
        source->counters.refusals++;
        send_ending(source, now, link, PD_FROM_SOURCE_GONE, claim->generation, why);
        free(words);
        return;
    }
    source->counters.claims++;
    ticket->link = link;
    ticket->deadline = ticket->ready.complete ? now + source->options.release_ns : 0;
    pd_list_append(&link->tickets, &ticket->in_link);
    send_claimed(source, now, ticket, words);
    free(words);
}

/* Counts from the owner only (6); unknown tickets are ignored (7). */
static void on_release(struct pd_source *source, struct link *link, uint64_t generation)
{
    struct pd_source_ticket *ticket = pd_idmap_get(&source->by_generation, generation);

    if (ticket && ticket->link == link)
        release(source, ticket);
}

bool pd_source_has_link(const struct pd_source *source, uint64_t id)
{
    return pd_idmap_get(&source->by_link, id) != NULL;
}

void pd_source_message(struct pd_source *source, uint64_t now, uint64_t id,
                       const struct pd_to_source *message)
{
    struct link *link = pd_idmap_get(&source->by_link, id);

    if (!link)
        return;
    link->heard = now;
    if (message->kind == PD_TO_SOURCE_HELLO) {
        on_hello(source, now, link, &message->hello);
        return;
    }
    if (link->state != LIVE) {
        fail(source, link, "the first message is not a hello");
        return;
    }
    if (message->kind == PD_TO_SOURCE_CLAIM)
        on_claim(source, now, link, &message->claim);
    else if (message->kind == PD_TO_SOURCE_RELEASE)
        on_release(source, link, message->generation);
}

/* A range of one plane is blocks [first, first + count): all in one run of the ticket, all
 * ready and told of. */
bool pd_source_may_read(const struct pd_source *source, uint64_t id, uint64_t generation,
                        uint32_t first, uint32_t count)
{
    const struct pd_source_ticket *ticket = pd_idmap_get(&source->by_generation, generation);
    uint32_t into;
    size_t low = 0, high;

    if (!ticket || !ticket->link || ticket->link->id != id)
        return false;
    high = ticket->extent_count;
    while (high - low > 1) { /* the last run that begins at or before `first` */
        size_t middle = low + (high - low) / 2;

        if (ticket->runs[middle].first <= first)
            low = middle;
        else
            high = middle;
    }
    if (ticket->runs[low].first > first)
        return false;
    into = first - ticket->runs[low].first;
    if (into >= ticket->runs[low].count || count > ticket->runs[low].count - into)
        return false;
    return ticket->runs[low].index + into + count <= ticket->told;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Silence of the link is judged first; it takes no ticket's word for it (21). */
static void tick_links(struct pd_source *source, uint64_t now)
{
    struct pd_list *at = source->links.next, *next;

    for (; at != &source->links; at = next) {
        struct link *link = PD_OWNER(at, struct link, in_source);

        next = at->next;
        if (now - link->heard >= source->options.silence_ns) {
            source->counters.silences++;
            fail(source, link, "the reader has been silent past the deadline");
        } else if (link->state == LIVE && now - link->spoke >= source->options.silence_ns / 3) {
            struct pd_from_source message = {.kind = PD_FROM_SOURCE_HEARTBEAT,
                                             .heartbeat = ++link->heartbeats};

            send(source, now, link, &message);
        }
    }
}

/* No deadline frees what a reader has claimed: the one of a release ends the link, whose destroyed
 * end then is the fence. It takes the link's other tickets along, so it is long and counted
 * (21). */
static void tick_tickets(struct pd_source *source, uint64_t now)
{
    struct pd_list *at = source->tickets.next;

    while (at != &source->tickets) {
        struct pd_source_ticket *ticket = PD_OWNER(at, struct pd_source_ticket, in_source);
        char why[PD_KV_WHY];

        at = at->next;
        if (ticket->deadline == 0 || now < ticket->deadline)
            continue;
        if (!ticket->link) {
            source->counters.claim_deadlines++;
            release(source, ticket);
            continue;
        }
        source->counters.release_deadlines++;
        snprintf(why, sizeof(why), "ticket %llu was not released within %llu s of its end",
                 (unsigned long long)ticket->generation,
                 (unsigned long long)(source->options.release_ns / 1000000000u));
        fail(source, ticket->link, why);
        at = source->tickets.next; /* any ticket may have gone with the link */
    }
}

void pd_source_tick(struct pd_source *source, uint64_t now)
{
    tick_links(source, now);
    tick_tickets(source, now);
}

void pd_source_shutdown(struct pd_source *source)
{
    while (!pd_list_empty(&source->links))
        fail(source, PD_OWNER(source->links.next, struct link, in_source),
             "the source is shutting down");
    while (!pd_list_empty(&source->tickets))
        release(source, PD_OWNER(source->tickets.next, struct pd_source_ticket, in_source));
}

size_t pd_source_tickets(const struct pd_source *source)
{
    return source->by_generation.count;
}

const struct pd_source_counters *pd_source_counters(const struct pd_source *source)
{
    return &source->counters;
}
