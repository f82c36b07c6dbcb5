/* The reader's half of the protocol: fetches, their reads, and when a destination block is the
 * engine's again.
 *
 *               link up       Claimed        want          all landed and complete
 *     LINKING ─────────▶ CLAIMING ─────▶ CLAIMED ────▶ READING ───────────────────▶ complete
 *        │                 │   │            │             │ cancel, Revoked, nonsense
 *        │                 │   │            │             ▼
 *        │                 │   │            │          DRAINING ── last read landed ──▶ closed
 *        ▼                 ▼   │            ▼                        (8)
 *      closed           closed │          closed
 *                              └─ cancel: closed for the engine, ABANDONED until P has answered (7)
 *
 * Whatever the state: loss of the link first destroys this end, then closes every fetch on it (8,
 * 9, 10). After Claim, Release is sent exactly once, unless the answer was Gone or the link was
 * lost (7).
 *
 * Links are opened when a ticket needs one, and kept. A link is
 *
 *     OPENING ─▶ GREETING ─▶ CONNECTING ─▶ UP     any ─▶ DOWN: remembered for its reason and the
 *      stream      hello       data ends                       pause before the next try
 *
 * A state machine without threads, sockets or clocks: messages and time come in as arguments, what
 * is to be done goes out through `struct pd_reader_world`. None of the world's functions may call
 * back into the machine. Numbers in brackets are the rules of README.md. */
#ifndef PD_KVX_READER_H
#define PD_KVX_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/kvx/kvx.h"
#include "worker/kvx/layout.h"
#include "worker/kvx/messages.h"

struct pd_reader;

enum { PD_READER_WINDOW_MAX = 16 }; /* reads in flight on one link */

/* This end of a link's data connections. */
struct pd_data_path {
    void *end;
    unsigned window; /* reads in flight, at most PD_READER_WINDOW_MAX */
    unsigned rails;  /* data connections, each of which takes its share of the window */
    bool words;      /* trust only with the generation words (15) */
};

struct pd_reader_world {
    void *context;
    uint64_t (*next_link)(void *context); /* an id for a new link */
    void (*open)(void *context, uint64_t link, const char *address);
    void (*close)(void *context, uint64_t link, const char *why);
    void (*send)(void *context, uint64_t link, const struct pd_to_source *message);

    /* Begins to connect the data ends; pd_reader_connected or pd_reader_link_fail follows. */
    int (*connect)(void *context, uint64_t link, const struct pd_source_hello *hello,
                   struct pd_data_path *path, struct pd_error *error);
    /* Begins a read. It stays borrowed until pd_reader_landed or disconnect. A failure is the
     * link's. */
    int (*read)(void *context, void *end, const struct pd_read *read);
    /* The read has landed: brings its bytes to where the engine looks for them. False: the device is
     * lost. */
    bool (*arrived)(void *context, void *end, const struct pd_read *read);
    /* A block's part of its sum, of bytes that have landed: see checksum.h. */
    uint64_t (*sum)(void *context, uint64_t offset, uint32_t plane);
    /* The source's generation word of a block, loaded after every byte of the reads that landed. */
    uint64_t (*word)(void *context, void *end, uint32_t block);
    /* The fence: once it has returned, no byte lands through this end any more. */
    void (*disconnect)(void *context, void *end);

    /* As in kvx.h. */
    void (*claimed)(void *context, uint64_t fetch, const uint32_t *prompt, size_t count);
    void (*sampled)(void *context, uint64_t fetch, const struct pd_kvx_first *first);
    void (*complete)(void *context, uint64_t fetch, const struct pd_kvx_first *first,
                     const struct pd_kvx_stats *stats);
    void (*closed)(void *context, uint64_t fetch, bool cancelled, const char *why);

    /* For the log and reports. `why`: why not a better transport, or why it is down. */
    void (*link_changed)(void *context, const char *source, bool up, const char *transport,
                         const char *why);
};

struct pd_reader_options {
    const char *instance; /* copied, as the next two */
    const char *host_id;
    const char *const *transports; /* wanted, best first; ends with NULL */
    uint64_t boot;
    struct pd_fingerprint fingerprint;
    struct pd_layout layout;
    uint32_t max_tokens;
    bool checksum; /* nothing is trusted without the source's sums of it */
    bool tls;      /* data connections over sockets are under TLS, or they are none */
    size_t max_fetches, max_links;
    uint64_t silence_ns; /* life of a link that says nothing; also for opening one */
    uint64_t stall_ns;   /* life of a link whose reads or claims make no progress */
};

struct pd_reader_counters {
    uint64_t fetches, completed, cancelled, failed, links_lost, words_moved, wrong_sums, silences,
        stalls, fallbacks;
};

int pd_reader_create(const struct pd_reader_options *options, const struct pd_reader_world *world,
                     struct pd_reader **reader);

/* Destroys every data end, closes every fetch. */
void pd_reader_shutdown(struct pd_reader *reader, uint64_t now);
void pd_reader_destroy(struct pd_reader *reader); /* after shutdown */

/* ---- the engine's side; times in ns of one clock --------------------------------------------- */

/* PD_FULL, PD_NO_MEMORY, or PD_INVALID if the id is in use: nothing follows then. A ticket that
 * cannot be fetched is answered by `closed`. */
int pd_reader_fetch(struct pd_reader *reader, uint64_t now, uint64_t fetch,
                    const struct pd_ticket *ticket);
/* `blocks` is malloc'ed and becomes the machine's. */
void pd_reader_want(struct pd_reader *reader, uint64_t now, uint64_t fetch, size_t from_block,
                    int32_t *blocks, size_t block_count);
void pd_reader_cancel(struct pd_reader *reader, uint64_t now, uint64_t fetch);

/* ---- links ----------------------------------------------------------------------------------- */

/* The control stream that `open` asked for is there. */
void pd_reader_link_up(struct pd_reader *reader, uint64_t now, uint64_t link);
bool pd_reader_has_link(const struct pd_reader *reader, uint64_t link);
void pd_reader_message(struct pd_reader *reader, uint64_t now, uint64_t link,
                       const struct pd_from_source *message);
/* The control stream has ended, or could not be opened. */
void pd_reader_link_down(struct pd_reader *reader, uint64_t now, uint64_t link, const char *why);

/* From the transport: all data ends are connected; a read has landed; something of the link has
 * failed (this ends the control stream too). */
void pd_reader_connected(struct pd_reader *reader, uint64_t now, uint64_t link);
void pd_reader_landed(struct pd_reader *reader, uint64_t now, uint64_t link,
                      const struct pd_read *read);
void pd_reader_link_fail(struct pd_reader *reader, uint64_t now, uint64_t link, const char *why);

/* Heartbeats and deadlines. Call it a few times per silence_ns. */
void pd_reader_tick(struct pd_reader *reader, uint64_t now);

/* For reports: at most `capacity` links, the newest first. */
size_t pd_reader_links(const struct pd_reader *reader, struct pd_kvx_link_state *states,
                       size_t capacity);
size_t pd_reader_fetches(const struct pd_reader *reader); /* not yet over */
const struct pd_reader_counters *pd_reader_counters(const struct pd_reader *reader);

#endif
