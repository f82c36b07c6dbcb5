/* KV hand-off: the reader pulls. See README.md for the protocol and why each fence holds.
 *
 * One pd_kvx per process holds both ends: tickets that this worker offers (source) and fetches of
 * other workers' tickets (reader). One thread of its own owns all of that state, moves the data
 * (tcp, shm, rdma) and runs the protocol; every function below only posts to its mailbox and returns, and
 * every callback runs on that thread and must not block.
 *
 *        engine ──offer/ready/complete/revoke──▶ ┌─────┐ ──released──▶ engine           (source)
 *        engine ──fetch/want/cancel───────────▶ │ kvx │ ──claimed/sampled/complete/closed──▶ (reader)
 *        link   ──bytes of control messages───▶ └─────┘ ──bytes to send, open, close──▶ link
 *
 * The control messages are proto/pd.proto's KvToSource and KvFromSource; the link room carries them
 * as bytes. */
#ifndef PD_KVX_H
#define PD_KVX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "worker/base/error.h"
#include "worker/model/model.h"

enum {
    PD_KVX_SECRET = 16,
    PD_KVX_EPOCH = 1,    /* what tickets carry: the pool is never rebuilt within a boot */
    PD_KVX_CHANCES = 21, /* a token and its alternatives */
};

struct pd_kvx;

struct pd_ticket {
    char instance[129];
    char address[257]; /* host:port of the source's Kv service */
    uint64_t boot, epoch, generation;
    uint32_t tokens, block_size;
    struct pd_fingerprint fingerprint;
    uint8_t secret[PD_KVX_SECRET];
    uint32_t rail; /* not 0: measures this one data connection of the link alone, from 1 */
};

/* The token that the source has sampled, and what rides with it (13): it may reach the reader sooner
 * than the source's own words reach the frontend, and the reader then speaks for both. */
struct pd_kvx_first {
    uint32_t token;
    int finish;            /* proto FinishReason; not NONE: the answer ends with it */
    uint32_t cached;       /* tokens of the prompt that the source did not compute */
    uint32_t chances;      /* 0: not asked for */
    struct pd_kvx_chance { /* of the token, then of its alternatives */
        uint32_t token;
        float logprob;
    } chance[PD_KVX_CHANCES];
};

/* What one fetch cost. Microseconds. */
struct pd_kvx_stats {
    uint64_t bytes;
    uint32_t chunks;
    uint64_t wait_us;    /* next chunk not ready on the source */
    uint64_t wire_us;    /* reads outstanding */
    uint64_t exposed_us; /* from hearing of the source's first token to the last byte landed */
    char transport[8];
    uint32_t rails;         /* data connections of the link */
    uint64_t round_trip_ns; /* of the ticket's rail: a small read, alone; 0 if it names none */
};

struct pd_kvx_callbacks {
    void *engine; /* first argument of the engine's callbacks */

    /* Source. Nobody reads the ticket's blocks any more and nobody can: free them. Once per
     * offer. */
    void (*released)(void *engine, uint64_t generation);

    /* Reader. The source accepted the claim: `prompt` (borrowed for the call) is what the ticket
     * covers. The engine answers with pd_kvx_fetch_want. */
    void (*claimed)(void *engine, uint64_t fetch, const uint32_t *prompt, size_t count);
    /* The whole prompt's KV is in place; `first` is the source's, and borrowed for the call.
     * Last callback of a fetch that went well; the source has been told to release. */
    void (*complete)(void *engine, uint64_t fetch, const struct pd_kvx_first *first,
                     const struct pd_kvx_stats *stats);
    /* The source has sampled (may come before the last bytes have landed). If its finish is not
     * NONE the answer ends here: cancel the fetch, nothing else needs to be read (rule 14). */
    void (*sampled)(void *engine, uint64_t fetch, const struct pd_kvx_first *first);
    /* The fetch is over without success: every read has ended, the destination blocks are the
     * engine's again. `why` is for people. Last callback of a fetch that failed or was
     * cancelled. */
    void (*closed)(void *engine, uint64_t fetch, bool cancelled, const char *why);

    void *link; /* first argument of the link's callbacks */

    /* Reader: open a control stream to `address` and report pd_kvx_link_up or _down with this
     * id. */
    void (*open_link)(void *link, uint64_t id, const char *address);
    /* kvx has ended this link by itself: end the stream behind what was sent, of a link that is
     * still being opened the attempt. Reports about the id are ignored from here on. */
    void (*close_link)(void *link, uint64_t id);
    /* Either direction; `bytes` is malloc'ed and becomes the link's. */
    void (*send)(void *link, uint64_t id, uint8_t *bytes, size_t length);
};

struct pd_kvx_options {
    const char *instance;
    uint64_t boot;
    struct pd_fingerprint fingerprint;
    struct pd_kv_pool pool; /* shape, of each rank's; the buffers are reached through `memory` */
    int ranks, kv_heads;    /* of the device; of the model. 0: 1, and as many as the ranks have */
    struct pd_export
        memory[PD_RANKS_MAX]; /* of each rank; fds stay the caller's; kvx maps them itself */
    const char *transport;    /* "auto", "gpu", "shm", "rdma", "tcp" */
    const char *bind_host; /* tcp, rdma: where peers connect to; NULL or a wildcard: only reads */
    const char *device;    /* rdma: use only this one; NULL or empty: any */
    uint32_t queue_pairs;  /* rdma: of one link, at most 16; 0: 2 */
    bool busy_poll;        /* rdma: spend a core to hear of completions sooner */
    /* tcp: PEM files; a certificate of NULL or "": plain. With authorities both ends show one. The
     * process ignores SIGPIPE. */
    const char *tls_cert, *tls_key, *tls_ca;
    bool checksum; /* trust no block that was read without the source's sum of it */
    uint32_t max_model_len;
    uint32_t claim_timeout_ms; /* an offer nobody claimed is withdrawn after this; 0: 60 s */
    uint32_t silence_ms;       /* a link without a message for so long is torn down; 0: 5 s */
    struct pd_kvx_callbacks callbacks;
};

/* Starts the thread. Reserves the generation words behind the pool in the exported memory if there
 * is room (pd_kvx_pool_bytes says how much to reserve). */
int pd_kvx_create(const struct pd_kvx_options *options, struct pd_kvx **kvx,
                  struct pd_error *error);

/* Tears down all links, waits for all reads, calls what is owed, ends the thread. */
void pd_kvx_destroy(struct pd_kvx *kvx);

/* Bytes of the exported reservation for a rank's pool of this shape: the pool, padded to pages, and one
 * 64-bit generation word per block. `ranks` of the device, 0: 1. */
size_t pd_kvx_pool_bytes(const struct pd_kv_pool *pool, int ranks);

/* ---- source: called by the engine ------------------------------------------------------------ */

struct pd_kvx_offer {
    uint64_t generation;   /* never reused within a boot */
    const int32_t *blocks; /* copied; the prompt's, in order */
    size_t block_count;
    const int32_t *prompt; /* copied */
    uint32_t tokens;
    uint64_t owner; /* attach stream it came by: see pd_kvx_forget_owner */
    uint8_t secret[PD_KVX_SECRET];
};

/* PD_INVALID: the numbers do not fit the pool; PD_FULL: 4096 tickets are out; PD_NO_MEMORY. Nothing
 * follows then. */
int pd_kvx_offer(struct pd_kvx *kvx, const struct pd_kvx_offer *offer);
/* KV of the first `tokens` tokens is in the pool (cumulative). */
void pd_kvx_ready(struct pd_kvx *kvx, uint64_t generation, uint32_t tokens);
/* All of it is, and this is the sampled token (copied). */
void pd_kvx_complete(struct pd_kvx *kvx, uint64_t generation, const struct pd_kvx_first *first);
/* The source gives up (cancel, failure): an unclaimed ticket is released at once, a claimed one
 * when its reader has released it or its link has been destroyed. */
void pd_kvx_revoke(struct pd_kvx *kvx, uint64_t generation, const char *why);
/* The Attach stream is lost: revokes the unclaimed offers that came by it. */
void pd_kvx_forget_owner(struct pd_kvx *kvx, uint64_t owner);

/* Called by the engine before it writes again to blocks that may ever have been offered: bumps
 * their generation words at once, on the caller's thread, so that a reader on this host that is
 * still copying finds out (rule 15). Cheap: one atomic add per block. */
void pd_kvx_recycled(struct pd_kvx *kvx, const int32_t *blocks, size_t count);

/* ---- reader: called by the engine ------------------------------------------------------------ */

/* Claims a ticket. `fetch` is the engine's id, not reused within a boot. Answers by `claimed` or
 * `closed`, for a bad ticket too; PD_FULL (4096 are under way) or PD_NO_MEMORY: nothing follows. */
int pd_kvx_fetch(struct pd_kvx *kvx, uint64_t fetch, const struct pd_ticket *ticket);
/* After `claimed`: read tokens from block number `from_block` of the prompt on (those before it are
 * held already) into `blocks` (copied; one per block of the prompt, the first `from_block`
 * ignored). from_block == all blocks: nothing to read, only the first token is waited for. */
void pd_kvx_fetch_want(struct pd_kvx *kvx, uint64_t fetch, size_t from_block, const int32_t *blocks,
                       size_t block_count);
/* Ends in `closed`, unless `complete` was already on its way. */
void pd_kvx_fetch_cancel(struct pd_kvx *kvx, uint64_t fetch);

/* ---- control streams: called by the link room ------------------------------------------------ */

/* Reader side: the stream asked for by open_link. */
void pd_kvx_link_up(struct pd_kvx *kvx, uint64_t id);
void pd_kvx_link_down(struct pd_kvx *kvx, uint64_t id, const char *why);
/* Source side: a reader has opened a stream; ids of both directions come from one counter. */
uint64_t pd_kvx_next_link_id(struct pd_kvx *kvx);
void pd_kvx_reader_up(struct pd_kvx *kvx, uint64_t id, const char *peer);
/* A message on either kind of stream; `bytes` is copied. */
void pd_kvx_receive(struct pd_kvx *kvx, uint64_t id, const uint8_t *bytes, size_t length);

/* ---- for reports ----------------------------------------------------------------------------- */

struct pd_kvx_link_state {
    char peer[129];
    bool up;
    char transport[8];
    char why[128];
    uint64_t bytes, transfers, failures;
};

/* The transports of this process, best first: at most `capacity` names, which live as long as it.
 * Any thread. */
size_t pd_kvx_transports(const struct pd_kvx *kvx, const char **names, size_t capacity);

/* Copies at most `capacity` states of reader-side links; returns how many. Any thread. */
size_t pd_kvx_links(struct pd_kvx *kvx, struct pd_kvx_link_state *states, size_t capacity);

#endif
