/* The source's half of the protocol: tickets, who owns them, when their blocks are free again.
 *
 *                    claim (1, 6)                     release from its owner (6), or
 *     offer ──▶ HELD ────────────▶ CLAIMED by a link ──────────────────────────────▶ released
 *                │                                    its link's end destroyed (3, 9)
 *                └── revoke, owner's stream lost, claim deadline (1) ─────────────▶ released
 *
 * A link is GREETING until the reader's hello has been accepted, then LIVE, then gone for good
 * (10).
 *
 * A state machine without threads, sockets or clocks: messages and time come in as arguments, what
 * is to be done goes out through `struct pd_source_world`. None of the world's functions may call
 * back into the machine. Numbers in brackets are the rules of README.md, here and in source.c. */
#ifndef PD_KVX_SOURCE_H
#define PD_KVX_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/kvx/kvx.h"
#include "worker/kvx/layout.h"
#include "worker/kvx/messages.h"

struct pd_source;
struct pd_source_ticket;

/* This end of a link's data connections. */
struct pd_source_path {
    void *end;
    bool words;  /* claims are to carry generation words (15) */
    bool staged; /* blocks are to be staged before their reader is told of them */
    bool sums;   /* blocks can be summed */
};

struct pd_source_world {
    void *context;
    void (*send)(void *context, uint64_t link, const struct pd_from_source *message);
    /* Ends the control stream, behind what was sent. */
    void (*close)(void *context, uint64_t link, const char *why);
    /* Chooses a transport for this reader and opens this end: fills hello's transport, why,
     * data_address and link_key. */
    int (*serve)(void *context, uint64_t link, const struct pd_reader_hello *reader,
                 struct pd_source_hello *hello, struct pd_source_path *path,
                 struct pd_error *error);
    /* The fence: once it has returned, nothing can be read through this end. */
    void (*withdraw)(void *context, void *end);
    void (*released)(void *context, uint64_t generation);
    /* Copies a run of blocks to where the transport takes them from; false: they are lost. */
    bool (*stage)(void *context, uint32_t first, uint32_t count);
    /* A block's part of its sum in one plane: see checksum.h. */
    uint64_t (*sum)(void *context, uint64_t offset, uint32_t plane);

    /* For the log. `why`: why not a better transport, or why it is gone. */
    void (*link_changed)(void *context, const char *reader, bool up, const char *transport,
                         const char *why);
};

struct pd_source_options {
    const char *instance; /* copied */
    uint64_t boot, epoch;
    struct pd_fingerprint fingerprint;
    struct pd_layout layout;
    const _Atomic uint64_t *words; /* one per block, or NULL */
    size_t max_tickets, max_links;
    uint64_t claim_ns;   /* life of an offer that nobody claims */
    uint64_t silence_ns; /* life of a link that says nothing */
    uint64_t release_ns; /* from the end of a claimed ticket to the end of its link: the last resort
                            (21) */
};

struct pd_source_counters {
    uint64_t offers, claims, refusals; /* refusals: claims answered with Gone */
    uint64_t releases, revocations;    /* releases: tickets whose blocks are free again */
    uint64_t claim_deadlines, release_deadlines, silences, links_lost;
};

int pd_source_create(const struct pd_source_options *options, const struct pd_source_world *world,
                     struct pd_source **source);

/* Withdraws every link, releases every ticket. */
void pd_source_shutdown(struct pd_source *source);
void pd_source_destroy(struct pd_source *source); /* after shutdown */

/* ---- the engine's side; times in ns of one clock --------------------------------------------- */

/* Copies an offer into a ticket: no machine is involved, any thread. PD_INVALID if the numbers do
 * not fit the pool. */
int pd_source_ticket_create(const struct pd_kvx_offer *offer, const struct pd_layout *layout,
                            struct pd_source_ticket **ticket);
void pd_source_ticket_free(struct pd_source_ticket *ticket); /* one that was not offered */

/* The machine's from here on, unless it fails (PD_FULL, PD_INVALID: the generation was used). */
int pd_source_offer(struct pd_source *source, uint64_t now, struct pd_source_ticket *ticket);
void pd_source_ready(struct pd_source *source, uint64_t now, uint64_t generation, uint32_t tokens);
void pd_source_complete(struct pd_source *source, uint64_t now, uint64_t generation,
                        const struct pd_kvx_first *first);
void pd_source_revoke(struct pd_source *source, uint64_t now, uint64_t generation, const char *why);
void pd_source_forget_owner(struct pd_source *source, uint64_t owner);

/* ---- links ----------------------------------------------------------------------------------- */

void pd_source_link_up(struct pd_source *source, uint64_t now, uint64_t link);
bool pd_source_has_link(const struct pd_source *source, uint64_t link);
void pd_source_message(struct pd_source *source, uint64_t now, uint64_t link,
                       const struct pd_to_source *message);
/* The control stream has ended. */
void pd_source_link_down(struct pd_source *source, uint64_t link, const char *why);
/* Something else of the link has: a data connection, the peer's manners. Ends the stream too. */
void pd_source_link_fail(struct pd_source *source, uint64_t link, const char *why);

/* Stages and sums some of what readers wait to hear of: at most PD_READ_BYTES, or one block. True if more is
 * left. */
bool pd_source_work(struct pd_source *source, uint64_t now);

/* Heartbeats and deadlines. Call it a few times per silence_ns. */
void pd_source_tick(struct pd_source *source, uint64_t now);

/* Whether this link owns the ticket and these blocks belong to it and are ready (21): for
 * transports on which the source itself sends the bytes. */
bool pd_source_may_read(const struct pd_source *source, uint64_t link, uint64_t generation,
                        uint32_t first, uint32_t count);

size_t pd_source_tickets(const struct pd_source *source); /* not yet released */
const struct pd_source_counters *pd_source_counters(const struct pd_source *source);

#endif
