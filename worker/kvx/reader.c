#include "worker/kvx/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/kvx/reader_state.h"

enum { ABANDONED_MAX = 1024 }; /* cancelled claims of one link that the source has not answered */

/* ---- life ------------------------------------------------------------------------------------ */

int pd_reader_create(const struct pd_reader_options *options, const struct pd_reader_world *world,
                     struct pd_reader **out)
{
    struct pd_reader *reader = calloc(1, sizeof(*reader));

    if (!reader)
        return PD_NO_MEMORY;
    reader->options = *options;
    reader->world = *world;
    pd_kv_cut(reader->instance, sizeof(reader->instance), options->instance);
    pd_kv_cut(reader->host_id, sizeof(reader->host_id), options->host_id);
    while (reader->transport_count < PD_KV_TRANSPORTS &&
           options->transports[reader->transport_count]) {
        pd_kv_cut(reader->transports[reader->transport_count], PD_KV_TRANSPORT,
                  options->transports[reader->transport_count]);
        reader->transport_count++;
    }
    pd_list_init(&reader->links);
    if (pd_idmap_init(&reader->by_fetch, options->max_fetches) != PD_OK ||
        pd_idmap_init(&reader->by_link, options->max_links) != PD_OK) {
        pd_reader_destroy(reader);
        return PD_NO_MEMORY;
    }
    *out = reader;
    return PD_OK;
}

static void free_fetch(struct fetch *fetch)
{
    pd_list_remove(&fetch->in_link);
    pd_list_remove(&fetch->in_work);
    free(fetch->source_blocks);
    free(fetch->words);
    free(fetch->sums);
    free(fetch->landed_sums);
    free(fetch->destination);
    free(fetch);
}

/* ---- the end of a fetch ---------------------------------------------------------------------- */

/* Tells the engine that the destination blocks are its own again. Every read has ended, or its end
 * was destroyed: the callers see to that (8). */
static void tell_closed(struct pd_reader *reader, struct fetch *fetch, bool cancelled,
                        const char *why)
{
    pd_idmap_remove(&reader->by_fetch, fetch->id);
    if (cancelled)
        reader->counters.cancelled++;
    else
        reader->counters.failed++;
    if (fetch->link)
        fetch->link->failures += !cancelled;
    reader->world.closed(reader->world.context, fetch->id, cancelled, why);
}

static void send_release(struct pd_reader *reader, uint64_t now, struct fetch *fetch)
{
    struct pd_to_source message = {.kind = PD_TO_SOURCE_RELEASE,
                                   .generation = fetch->ticket.generation};

    pd_link_send(reader, now, fetch->link, &message);
}

static void release_and_close(struct pd_reader *reader, uint64_t now, struct fetch *fetch)
{
    send_release(reader, now, fetch);
    tell_closed(reader, fetch, fetch->cancelled, fetch->why);
    free_fetch(fetch);
}

/* Time since the last change goes to whatever the fetch was doing. */
static void account(struct fetch *fetch, uint64_t now)
{
    uint64_t passed = now - fetch->mark;

    fetch->mark = now;
    if (fetch->outstanding > 0)
        fetch->wire_ns += passed;
    else if (fetch->state == READING && !fetch->ready.complete && !pd_plan_more(&fetch->plan))
        fetch->wait_ns += passed;
}

/* Ends a fetch on a living link, whatever it is doing. A read that is under way is waited for: only
 * then is its destination free and the source told (8). A claim that is under way is released
 * without waiting for the answer, which is then ignored (7). */
static void leave(struct pd_reader *reader, uint64_t now, struct fetch *fetch, bool cancelled,
                  const char *why)
{
    fetch->cancelled = cancelled;
    pd_kv_cut(fetch->why, sizeof(fetch->why), why);
    switch (fetch->state) {
    case LINKING:
        tell_closed(reader, fetch, cancelled, why);
        free_fetch(fetch);
        break;
    case CLAIMING:
        send_release(reader, now, fetch);
        tell_closed(reader, fetch, cancelled, fetch->why);
        fetch->state = ABANDONED;
        fetch->link->abandoned++;
        break;
    case CLAIMED:
    case READING:
        account(fetch, now);
        pd_list_remove(&fetch->in_work);
        fetch->state = DRAINING;
        if (fetch->outstanding == 0)
            release_and_close(reader, now, fetch);
        break;
    case DRAINING:
    case ABANDONED:
        break;
    }
}

/* A claim dies with its link and is never taken over to another one (10); no Release follows
 * (7). */
void pd_fetch_lost(struct pd_reader *reader, uint64_t now, struct fetch *fetch, const char *why)
{
    (void)now;
    if (fetch->state == ABANDONED)
        fetch->link->abandoned--;
    else if (fetch->state == DRAINING)
        tell_closed(reader, fetch, fetch->cancelled, fetch->why);
    else
        tell_closed(reader, fetch, false, why);
    free_fetch(fetch);
}

/* Shared memory has no fence on the source: its words, read again after the last byte, say whether
 * a block was freed meanwhile. They only rise, so one look at the end is as good as many (15). */
static bool words_moved(struct pd_reader *reader, const struct fetch *fetch)
{
    if (!fetch->words)
        return false;
    for (size_t i = fetch->from; i < fetch->blocks; i++)
        if (reader->world.word(reader->world.context, fetch->link->data.end,
                               fetch->source_blocks[i]) != fetch->words[i])
            return true;
    return false;
}

static void fail_for_moved_words(struct pd_reader *reader, uint64_t now, struct reader_link *link)
{
    reader->counters.words_moved++;
    pd_link_fail(reader, now, link, "the source has reused blocks while they were being copied");
}

/* Every read of the blocks before `scheduled` has landed: they are as the source had them, or the link is
 * not to be trusted with any. False: it has failed, and the fetch is gone. */
static bool verify(struct pd_reader *reader, uint64_t now, struct fetch *fetch)
{
    uint64_t copies = pd_layout_copies(&reader->options.layout); /* each head landed so often */
    char why[PD_KV_WHY];

    if (!fetch->sums)
        return true;
    while (fetch->verified < fetch->scheduled &&
           copies * fetch->sums[fetch->verified] == fetch->landed_sums[fetch->verified])
        fetch->verified++;
    if (fetch->verified == fetch->scheduled)
        return true;
    if (words_moved(reader, fetch)) {
        fail_for_moved_words(reader, now, fetch->link);
        return false;
    }
    reader->counters.wrong_sums++;
    snprintf(why, sizeof(why),
             "block %zu of ticket %llu did not arrive as the source had it: checksum %016llx, the "
             "source's is %016llx",
             fetch->verified, (unsigned long long)fetch->ticket.generation,
             (unsigned long long)fetch->landed_sums[fetch->verified],
             (unsigned long long)(copies * fetch->sums[fetch->verified]));
    pd_link_fail(reader, now, fetch->link, why);
    return false;
}

/* All has landed and may be trusted: the release goes out before the engine hears of it. */
static void finish(struct pd_reader *reader, uint64_t now, struct fetch *fetch)
{
    struct reader_link *link = fetch->link;

    if (words_moved(reader, fetch)) {
        fail_for_moved_words(reader, now, link);
        return;
    }
    send_release(reader, now, fetch);
    fetch->stats.wait_us = fetch->wait_ns / 1000;
    fetch->stats.wire_us = fetch->wire_ns / 1000;
    fetch->stats.exposed_us = (now - fetch->sampled_at) / 1000;
    memcpy(fetch->stats.transport, link->transport, sizeof(fetch->stats.transport));
    fetch->stats.rails = link->data.rails;
    link->transfers++;
    reader->counters.completed++;
    pd_idmap_remove(&reader->by_fetch, fetch->id);
    reader->world.complete(reader->world.context, fetch->id, &fetch->ready.first, &fetch->stats);
    free_fetch(fetch);
}

/* ---- reads ----------------------------------------------------------------------------------- */

/* Blocks that are ready as a whole; the last one may be in part once the prompt is complete. */
static size_t ready_blocks(const struct fetch *fetch, const struct pd_layout *layout)
{
    return fetch->ready.complete ? fetch->blocks : fetch->ready.tokens / layout->block_size;
}

/* Whether the fetch has reads to post; plans the next chunk when the last one is planned
 * through. */
static bool refill(struct pd_reader *reader, struct fetch *fetch)
{
    size_t ready = ready_blocks(fetch, &reader->options.layout);

    if (pd_plan_more(&fetch->plan))
        return true;
    if (ready <= fetch->scheduled)
        return false;
    pd_plan_begin(&fetch->plan, &fetch->link->source, fetch->source_blocks, &reader->options.layout,
                  fetch->destination, fetch->scheduled, ready);
    fetch->scheduled = ready;
    fetch->stats.chunks++;
    return true;
}

/* After anything that may have given a fetch work, or ended it. */
static void advance(struct pd_reader *reader, uint64_t now, struct fetch *fetch)
{
    struct reader_link *link = fetch->link;

    if (fetch->state == DRAINING && fetch->outstanding == 0)
        release_and_close(reader, now, fetch);
    else if (fetch->state == READING) {
        if (refill(reader, fetch)) {
            if (pd_list_empty(&fetch->in_work))
                pd_list_append(&link->work, &fetch->in_work);
        } else if (fetch->outstanding == 0 && verify(reader, now, fetch) && fetch->ready.complete)
            finish(reader, now, fetch);
    }
    pd_link_pump(reader, now, link);
}

/* While the bytes are still in the processor's cache. */
static void add_to_sums(struct pd_reader *reader, struct fetch *fetch, const struct pd_read *read)
{
    const struct pd_layout *layout = &reader->options.layout;
    uint64_t block_bytes = layout->block_bytes;

    if (!fetch->sums || fetch->state != READING)
        return;
    for (size_t i = 0; i < read->count; i++) {
        const struct pd_range *range = &read->ranges[i];
        uint64_t *sum = fetch->landed_sums + range->block;
        uint32_t plane = pd_layout_plane_number(layout, range->destination);

        for (uint64_t at = 0; at < range->length; at += block_bytes)
            *sum++ += reader->world.sum(reader->world.context, range->destination + at, plane);
    }
}

static struct read_slot *free_slot(struct reader_link *link)
{
    for (unsigned i = 0; i < link->data.window; i++)
        if (!link->slots[i].fetch)
            return &link->slots[i];
    return NULL;
}

/* The first read of a fetch that measures one rail only shows how long a small one takes, alone: one block
 * of one plane, which comes again with the rest. */
static bool measures_round_trip(const struct fetch *fetch)
{
    return fetch->ticket.rail > 0 && fetch->stats.round_trip_ns == 0;
}

/* Fills the next read of a fetch; false if it has none, or may not have one now. A rail has room for its share
 * of the window. */
static bool next_read(struct fetch *fetch, struct pd_read *read)
{
    const struct pd_data_path *data = &fetch->link->data;
    unsigned room = measures_round_trip(fetch) ? 1
                    : fetch->ticket.rail > 0   ? data->window / data->rails
                                               : data->window;

    if (fetch->outstanding >= room)
        return false;
    if (measures_round_trip(fetch)) {
        struct pd_plan plan = fetch->plan;

        if (!pd_plan_next(&plan, read))
            return false;
        read->count = 1;
        read->bytes = read->ranges[0].length = (uint32_t)fetch->link->source.block_bytes;
    } else if (!pd_plan_next(&fetch->plan, read)) {
        return false;
    }
    read->generation = fetch->ticket.generation;
    read->rail = fetch->ticket.rail;
    return true;
}

/* One read of each fetch in turn. A read that cannot be posted is no read in flight: the link
 * fails, and with it all that waits for it. */
void pd_link_pump(struct pd_reader *reader, uint64_t now, struct reader_link *link)
{
    struct read_slot *slot;

    while (link->state == UP && !pd_list_empty(&link->work) && (slot = free_slot(link)) != NULL) {
        struct fetch *fetch = PD_OWNER(link->work.next, struct fetch, in_work);

        pd_list_remove(&fetch->in_work);
        if (!next_read(fetch, &slot->read))
            continue; /* what is in flight for it brings it back */
        slot->posted = now;
        account(fetch, now);
        slot->fetch = fetch;
        fetch->outstanding++;
        if (link->in_flight++ == 0)
            link->progress = now;
        if (refill(reader, fetch))
            pd_list_append(&link->work, &fetch->in_work);
        if (reader->world.read(reader->world.context, link->data.end, &slot->read) != PD_OK)
            pd_link_fail(reader, now, link, "a read could not be posted");
    }
}

void pd_reader_landed(struct pd_reader *reader, uint64_t now, uint64_t id,
                      const struct pd_read *read)
{
    struct reader_link *link = pd_idmap_get(&reader->by_link, id);
    struct read_slot *slot = PD_OWNER(read, struct read_slot, read);
    struct fetch *fetch;

    if (!link || link->state != UP)
        return;
    fetch = slot->fetch;
    slot->fetch = NULL;
    link->in_flight--;
    link->progress = now;
    link->bytes += read->bytes;
    account(fetch, now);
    fetch->outstanding--;
    if (measures_round_trip(fetch)) {
        fetch->stats.round_trip_ns = now > slot->posted ? now - slot->posted : 1;
        fetch->wire_ns = 0;
    } else {
        fetch->stats.bytes += read->bytes;
        add_to_sums(reader, fetch, read);
    }
    if (!reader->world.arrived(reader->world.context, link->data.end, read)) {
        pd_link_fail(reader, now, link, "the KV pool's device is lost");
        return;
    }
    advance(reader, now, fetch);
}

/* ---- what the source says of a ticket -------------------------------------------------------- */

static struct fetch *fetch_of(struct reader_link *link, uint64_t generation)
{
    for (struct pd_list *at = link->fetches.next; at != &link->fetches; at = at->next) {
        struct fetch *fetch = PD_OWNER(at, struct fetch, in_link);

        if (fetch->state != LINKING && fetch->ticket.generation == generation)
            return fetch;
    }
    return NULL;
}

/* Everything in Claimed against what the ticket and the source's pool allow, before it is used. */
static int check_claimed(const struct fetch *fetch, const struct pd_claimed *claimed,
                         struct pd_error *error)
{
    const struct reader_link *link = fetch->link;
    uint64_t blocks = 0;

    if (claimed->prompt_count != fetch->ticket.tokens)
        return pd_fail(error, PD_INVALID, "the claim's answer has %zu prompt tokens, the ticket %u",
                       claimed->prompt_count, fetch->ticket.tokens);
    for (size_t i = 0; i < claimed->extent_count; i++) {
        const struct pd_extent *extent = &claimed->extents[i];

        if ((uint64_t)extent->first + extent->count > link->source.blocks)
            return pd_fail(error, PD_INVALID, "the source offers blocks outside of its pool");
        blocks += extent->count;
    }
    if (blocks != fetch->blocks)
        return pd_fail(error, PD_INVALID, "the source offers %llu blocks, the prompt has %u",
                       (unsigned long long)blocks, fetch->blocks);
    if (link->data.words && claimed->word_count != fetch->blocks)
        return pd_fail(error, PD_INVALID, "the source gives %zu generation words for %u blocks",
                       claimed->word_count, fetch->blocks);
    return PD_OK;
}

static int take_blocks(const struct pd_reader *reader, struct fetch *fetch,
                       const struct pd_claimed *claimed, struct pd_error *error)
{
    uint32_t *to;

    if (check_claimed(fetch, claimed, error) != PD_OK)
        return PD_INVALID;
    fetch->source_blocks = calloc(fetch->blocks, sizeof(*fetch->source_blocks));
    if (fetch->link->data.words)
        fetch->words = calloc(fetch->blocks, sizeof(*fetch->words));
    if (reader->options.checksum) {
        fetch->sums = calloc(fetch->blocks, sizeof(*fetch->sums));
        fetch->landed_sums = calloc(fetch->blocks, sizeof(*fetch->landed_sums));
    }
    if (!fetch->source_blocks || (fetch->link->data.words && !fetch->words) ||
        (reader->options.checksum && (!fetch->sums || !fetch->landed_sums)))
        return pd_fail(error, PD_NO_MEMORY, "no memory for %u blocks", fetch->blocks);
    to = fetch->source_blocks;
    for (size_t i = 0; i < claimed->extent_count; i++)
        for (uint32_t n = 0; n < claimed->extents[i].count; n++)
            *to++ = claimed->extents[i].first + n;
    if (fetch->words)
        memcpy(fetch->words, claimed->words, fetch->blocks * sizeof(*fetch->words));
    return PD_OK;
}

/* Sums come with the blocks that they are of, in order; a repeated one is the same. What is ready has its
 * sum, or cannot be trusted. */
static bool take_sums(const struct pd_reader *reader, struct fetch *fetch,
                      const struct pd_chunk_ready *ready)
{
    size_t whole =
        ready->complete ? fetch->blocks : ready->tokens / reader->options.layout.block_size;

    if (!fetch->sums)
        return true;
    if (ready->sums_from > fetch->sums_known || ready->sum_count > fetch->blocks - ready->sums_from)
        return false;
    if (ready->sum_count > 0)
        memcpy(fetch->sums + ready->sums_from, ready->sums,
               ready->sum_count * sizeof(*fetch->sums));
    if (ready->sums_from + ready->sum_count > fetch->sums_known)
        fetch->sums_known = ready->sums_from + ready->sum_count;
    return fetch->sums_known >= whole;
}

/* Counts only rise, and the last message says it all (5). The first token comes with it (13). False
 * if the message is nonsense and the fetch has been left. */
static bool take_ready(struct pd_reader *reader, uint64_t now, struct fetch *fetch,
                       const struct pd_chunk_ready *ready)
{
    if (ready->tokens > fetch->ticket.tokens ||
        (ready->complete && ready->tokens != fetch->ticket.tokens)) {
        leave(reader, now, fetch, false,
              "the source reports more or fewer tokens than the prompt has");
        return false;
    }
    if (!take_sums(reader, fetch, ready)) {
        leave(reader, now, fetch, false, "the source tells of blocks without their checksums");
        return false;
    }
    if (fetch->ready.complete || (!ready->complete && ready->tokens <= fetch->ready.tokens))
        return true;
    account(fetch, now);
    fetch->ready = *ready;
    fetch->ready.sums = NULL; /* the message's */
    if (ready->complete) {
        fetch->sampled_at = now;
        reader->world.sampled(reader->world.context, fetch->id, &ready->first);
    }
    return true;
}

static void on_claimed(struct pd_reader *reader, uint64_t now, struct fetch *fetch,
                       const struct pd_claimed *claimed)
{
    struct pd_error error;

    if (fetch->state == ABANDONED) {
        fetch->link->abandoned--;
        free_fetch(fetch);
        return;
    }
    if (fetch->state != CLAIMING)
        return;
    fetch->state = CLAIMED;
    fetch->mark = now;
    if (take_blocks(reader, fetch, claimed, &error) != PD_OK) {
        leave(reader, now, fetch, false, error.text);
        return;
    }
    reader->world.claimed(reader->world.context, fetch->id, claimed->prompt, claimed->prompt_count);
    take_ready(reader, now, fetch, &claimed->ready);
}

/* Refused: the ticket is not ours, so there is nothing to release (7). */
static void on_gone(struct pd_reader *reader, struct fetch *fetch, const char *why)
{
    if (fetch->state == ABANDONED)
        fetch->link->abandoned--;
    else if (fetch->state == CLAIMING)
        tell_closed(reader, fetch, false, why);
    else
        return;
    free_fetch(fetch);
}

static uint64_t generation_of(const struct pd_from_source *message)
{
    switch (message->kind) {
    case PD_FROM_SOURCE_CLAIMED:
        return message->claimed.generation;
    case PD_FROM_SOURCE_READY:
        return message->ready.generation;
    default:
        return message->gone.generation;
    }
}

/* A message about a ticket that is not being fetched here comes late, and is ignored (7). */
void pd_fetch_message(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                      const struct pd_from_source *message)
{
    struct fetch *fetch = fetch_of(link, generation_of(message));

    if (!fetch)
        return;
    switch (message->kind) {
    case PD_FROM_SOURCE_CLAIMED:
        on_claimed(reader, now, fetch, &message->claimed);
        break;
    case PD_FROM_SOURCE_GONE:
        on_gone(reader, fetch, message->gone.why);
        break;
    case PD_FROM_SOURCE_READY:
        if ((fetch->state == CLAIMED || fetch->state == READING) &&
            take_ready(reader, now, fetch, &message->ready))
            advance(reader, now, fetch);
        break;
    case PD_FROM_SOURCE_REVOKED: /* no chunk will come any more (4) */
        if (fetch->state == CLAIMED || fetch->state == READING)
            leave(reader, now, fetch, false, message->gone.why);
        break;
    default:
        break;
    }
}

/* ---- what the engine says -------------------------------------------------------------------- */

/* Refused by name before a byte moves (12); the source checks the same of its own. */
static int check_ticket(const struct pd_reader *reader, const struct pd_ticket *ticket,
                        struct pd_error *error)
{
    if (ticket->instance[0] == '\0' || ticket->address[0] == '\0')
        return pd_fail(error, PD_INVALID, "the ticket names no source");
    if (ticket->tokens == 0 || ticket->tokens > reader->options.max_tokens)
        return pd_fail(error, PD_INVALID, "the ticket has %u tokens, this worker takes 1 to %u",
                       ticket->tokens, reader->options.max_tokens);
    if (ticket->block_size != reader->options.layout.block_size)
        return pd_fail(error, PD_INVALID,
                       "block sizes differ: source %u, reader %u; give both workers the same "
                       "--block-size",
                       ticket->block_size, reader->options.layout.block_size);
    return pd_fingerprint_match(&ticket->fingerprint, &reader->options.fingerprint, error);
}

void pd_fetch_linked(struct pd_reader *reader, uint64_t now, struct fetch *fetch)
{
    struct reader_link *link = fetch->link;
    struct pd_to_source message = {.kind = PD_TO_SOURCE_CLAIM};
    char why[PD_KV_WHY];

    why[0] = '\0';
    if (fetch->ticket.epoch != link->source_epoch)
        snprintf(why, sizeof(why),
                 "the ticket is of epoch %llu of the source's pool, which is at %llu",
                 (unsigned long long)fetch->ticket.epoch, (unsigned long long)link->source_epoch);
    else if (fetch_of(link, fetch->ticket.generation))
        snprintf(why, sizeof(why), "the ticket is being fetched here already");
    else if (fetch->ticket.rail > link->data.rails)
        snprintf(why, sizeof(why), "the link has %u data connections, none of number %u",
                 link->data.rails, fetch->ticket.rail);
    else if (link->abandoned >= ABANDONED_MAX)
        snprintf(why, sizeof(why), "the source has left %d claims unanswered", ABANDONED_MAX);
    if (why[0] != '\0') {
        leave(reader, now, fetch, false, why);
        return;
    }
    message.claim.generation = fetch->ticket.generation;
    message.claim.epoch = fetch->ticket.epoch;
    memcpy(message.claim.secret, fetch->ticket.secret, sizeof(message.claim.secret));
    fetch->state = CLAIMING;
    fetch->claim_deadline = now + reader->options.stall_ns;
    pd_link_send(reader, now, link, &message);
}

int pd_reader_fetch(struct pd_reader *reader, uint64_t now, uint64_t id,
                    const struct pd_ticket *ticket)
{
    struct fetch *fetch = calloc(1, sizeof(*fetch));
    struct pd_error error;
    int status;

    if (!fetch)
        return PD_NO_MEMORY;
    status = pd_idmap_put(&reader->by_fetch, id, fetch);
    if (status != PD_OK) {
        free(fetch);
        return status;
    }
    reader->counters.fetches++;
    fetch->id = id;
    fetch->ticket = *ticket;
    fetch->ticket.instance[sizeof(ticket->instance) - 1] = '\0';
    fetch->ticket.address[sizeof(ticket->address) - 1] = '\0';
    fetch->state = LINKING;
    fetch->blocks = pd_layout_blocks_for(&reader->options.layout, ticket->tokens);
    pd_list_init(&fetch->in_link);
    pd_list_init(&fetch->in_work);
    if (check_ticket(reader, &fetch->ticket, &error) == PD_OK)
        fetch->link = pd_link_for(reader, now, &fetch->ticket, &error);
    if (!fetch->link) {
        leave(reader, now, fetch, false, error.text);
        return PD_OK;
    }
    pd_list_append(&fetch->link->fetches, &fetch->in_link);
    if (fetch->link->state == UP)
        pd_fetch_linked(reader, now, fetch);
    return PD_OK;
}

static int check_want(const struct pd_reader *reader, const struct fetch *fetch, size_t from_block,
                      const int32_t *blocks, size_t block_count, struct pd_error *error)
{
    if (block_count != fetch->blocks || from_block > block_count)
        return pd_fail(error, PD_INVALID, "blocks %zu to %zu were asked for, the prompt has %u",
                       from_block, block_count, fetch->blocks);
    for (size_t i = from_block; i < block_count; i++)
        if (blocks[i] < 0 || (uint64_t)blocks[i] >= reader->options.layout.blocks)
            return pd_fail(error, PD_INVALID, "destination block %d is not in the pool", blocks[i]);
    return PD_OK;
}

void pd_reader_want(struct pd_reader *reader, uint64_t now, uint64_t id, size_t from_block,
                    int32_t *blocks, size_t block_count)
{
    struct fetch *fetch = pd_idmap_get(&reader->by_fetch, id);
    struct pd_error error;

    if (!fetch || fetch->state != CLAIMED) { /* it was closed while the engine made up its mind */
        free(blocks);
        return;
    }
    if (check_want(reader, fetch, from_block, blocks, block_count, &error) != PD_OK) {
        free(blocks);
        leave(reader, now, fetch, false, error.text);
        return;
    }
    fetch->destination = blocks;
    fetch->from = from_block;
    fetch->scheduled = fetch->verified = from_block;
    fetch->state = READING;
    fetch->mark = now;
    advance(reader, now, fetch);
}

void pd_reader_cancel(struct pd_reader *reader, uint64_t now, uint64_t id)
{
    struct fetch *fetch = pd_idmap_get(&reader->by_fetch, id);

    if (fetch)
        leave(reader, now, fetch, true, "cancelled");
}

size_t pd_reader_fetches(const struct pd_reader *reader)
{
    return reader->by_fetch.count;
}

const struct pd_reader_counters *pd_reader_counters(const struct pd_reader *reader)
{
    return &reader->counters;
}
