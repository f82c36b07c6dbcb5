/* What the two files of the reader's state machine share: reader.c has the fetches, reader_link.c
 * the links. Private to them. */
#ifndef PD_KVX_READER_STATE_H
#define PD_KVX_READER_STATE_H

#include "worker/kvx/idmap.h"
#include "worker/kvx/list.h"
#include "worker/kvx/reader.h"

enum fetch_state { LINKING, CLAIMING, CLAIMED, READING, DRAINING, ABANDONED };

struct fetch {
    uint64_t id;
    struct pd_ticket ticket;
    enum fetch_state state;
    struct reader_link *link;
    struct pd_list in_link; /* link->fetches */
    struct pd_list in_work; /* link->work: has reads to post */
    uint64_t claim_deadline;

    uint32_t blocks;         /* of the prompt */
    uint32_t *source_blocks; /* where they are on the source, from Claimed */
    uint64_t *words;         /* their generation words then; NULL if the transport has a fence */
    int32_t *destination;    /* where the engine wants them */
    size_t from;             /* the first one wanted */
    size_t scheduled;        /* blocks before this one have been planned */
    struct pd_plan plan;
    unsigned outstanding;
    struct pd_chunk_ready ready; /* without its sums */
    uint64_t *sums,
        *landed_sums;            /* of the prompt's blocks: the source's, and of what has landed; or
                                     NULL, both */
    size_t sums_known, verified; /* blocks */

    bool cancelled; /* why it is draining */
    char why[PD_KV_WHY];

    struct pd_kvx_stats stats;
    uint64_t wait_ns, wire_ns, mark, sampled_at;
};

enum link_state { LINK_DOWN, OPENING, GREETING, CONNECTING, UP };

struct read_slot {
    struct pd_read read;
    struct fetch *fetch; /* NULL: free */
    uint64_t posted;
};

struct reader_link {
    uint64_t id; /* of the present or last try */
    char instance[PD_KV_NAME], address[PD_KV_ADDRESS];
    uint64_t boot; /* the source's */
    enum link_state state;
    uint64_t deadline; /* of the way to UP */
    uint64_t heard, spoke, progress, heartbeats;
    uint64_t retry_at, pause; /* after a failed try */
    uint64_t probe_until;     /* opened again without a ticket; 0: it was never lost */
    bool probing;             /* it is, and no ticket waits for it */

    /* Transports that did not lead to the source, as bits of reader->transports, why, and until when
     * they are not offered. */
    unsigned avoided;
    uint64_t avoided_until;
    char avoided_why[PD_KV_WHY];

    struct pd_layout source;
    uint64_t source_epoch;
    struct pd_data_path data;
    struct read_slot *slots; /* data.window of them */
    unsigned in_flight;
    struct pd_list fetches, work, in_reader;
    size_t abandoned;

    char transport[PD_KV_TRANSPORT], why[PD_KV_WHY];
    uint64_t bytes, transfers, failures;
};

struct pd_reader {
    struct pd_reader_options options;
    char instance[PD_KV_NAME], host_id[PD_KV_NAME];
    char transports[PD_KV_TRANSPORTS][PD_KV_TRANSPORT];
    size_t transport_count;
    struct pd_reader_world world;
    struct pd_idmap by_fetch, by_link;
    struct pd_list links; /* newest first */
    size_t link_count;
    uint64_t epoch; /* rises with every link that is opened (11) */
    struct pd_reader_counters counters;
};

/* ---- reader.c, called by reader_link.c ------------------------------------------------------- */

/* The link is up: claims, or closes the fetch if the ticket does not fit the source. */
void pd_fetch_linked(struct pd_reader *reader, uint64_t now, struct fetch *fetch);
/* The link is lost and this end destroyed: closes the fetch. */
void pd_fetch_lost(struct pd_reader *reader, uint64_t now, struct fetch *fetch, const char *why);
/* Claimed, Gone, ChunkReady, Revoked. */
void pd_fetch_message(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                      const struct pd_from_source *message);
/* Posts reads while the window has room. The link may be lost by it. */
void pd_link_pump(struct pd_reader *reader, uint64_t now, struct reader_link *link);

/* ---- reader_link.c, called by reader.c ------------------------------------------------------- */

/* The link for this ticket, opened if need be; NULL and an error if it cannot be had now. */
struct reader_link *pd_link_for(struct pd_reader *reader, uint64_t now,
                                const struct pd_ticket *ticket, struct pd_error *error);
void pd_link_send(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                  const struct pd_to_source *message);
/* Destroys this end, closes all fetches, ends the stream. */
void pd_link_fail(struct pd_reader *reader, uint64_t now, struct reader_link *link,
                  const char *why);

#endif
