/* What the two files of the source's state machine share: source_ticket.c knows a ticket by itself, source.c
 * whose it is. Private to them. */
#ifndef PD_KVX_SOURCE_STATE_H
#define PD_KVX_SOURCE_STATE_H

#include "worker/kvx/idmap.h"
#include "worker/kvx/list.h"
#include "worker/kvx/source.h"

/* A run of the ticket's blocks and which blocks of the prompt they are. */
struct run {
    uint32_t first, count, index;
};

struct pd_source_ticket {
    uint64_t generation, owner;
    uint8_t secret[PD_KVX_SECRET];
    uint32_t *prompt;
    uint32_t tokens, blocks;
    struct pd_extent *extents; /* in order of the prompt */
    struct run *runs;          /* the same, sorted by block */
    size_t extent_count;

    struct link *link; /* NULL: held */
    struct pd_chunk_ready ready;
    uint64_t *sums;    /* of its blocks, if the reader wants them; else NULL */
    uint32_t prepared; /* blocks that are staged and summed, where that is to be done */
    uint32_t told;     /* blocks that the reader knows to be ready */
    bool revoked;
    uint64_t deadline; /* held: of the claim. Claimed and at its end: of the release. Else 0 */
    struct pd_list in_source, in_link;
    struct pd_list in_work; /* source->work: has blocks to prepare */
};

enum link_state { GREETING, LIVE };

struct link {
    uint64_t id;
    enum link_state state;
    char reader[PD_KV_NAME], transport[PD_KV_TRANSPORT];
    uint64_t reader_boot, reader_epoch;
    uint64_t heard, spoke, heartbeats;
    bool checksum;
    struct pd_source_path path;
    struct pd_list tickets, in_source;
};

struct pd_source {
    struct pd_source_options options;
    char instance[PD_KV_NAME];
    struct pd_source_world world;
    struct pd_idmap by_generation, by_link;
    struct pd_list tickets, links, work;
    struct pd_source_counters counters;
};

/* ---- source_ticket.c, called by source.c --------------------------------------------------------- */

/* Blocks that are ready as a whole; the last one may be in part once the prompt is complete. */
uint32_t pd_ticket_ready_blocks(const struct pd_source *source,
                                const struct pd_source_ticket *ticket);

/* Whether something is to be done to the blocks of a claimed ticket before its reader may hear of them. */
bool pd_ticket_wants_preparing(const struct pd_source_ticket *ticket);

/* Prepares the next few of its blocks that are ready. False: they are lost. */
bool pd_ticket_prepare(struct pd_source *source, struct pd_source_ticket *ticket);

#endif
