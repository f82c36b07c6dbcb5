/* Workers that hand KV to each other inside one test process: real pd_kvx instances with real data
 * connections, a memfd as the pool of each, and control links that the test can hold up, cut, or
 * tap. */
#ifndef KVX_PAIR_H
#define KVX_PAIR_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "worker/kvx/kvx.h"
#include "worker/kvx/pool.h"
#include "worker/kvx/layout.h"

enum kvx_event_kind {
    KVX_RELEASED,
    KVX_CLAIMED,
    KVX_SAMPLED,
    KVX_COMPLETE,
    KVX_CLOSED,
};

struct kvx_event {
    enum kvx_event_kind kind;
    uint64_t id; /* generation or fetch */
    uint32_t token, cached;
    int finish;
    bool cancelled;
    char why[512];
    struct pd_kvx_stats stats;
    uint32_t prompt_first, prompt_last;
    size_t prompt_count;
    bool seen; /* taken by kvx_expect */
};

enum { KVX_EVENTS = 16384, KVX_LINKS = 64, KVX_WORKERS = 4 };

struct kvx_worker {
    struct kvx_net *net;
    struct pd_kvx *kvx;
    struct pd_kvx_options options;
    struct pd_layout layout;
    char address[64];
    int fds[PD_RANKS_MAX];
    struct pd_mapped mapped;
    struct pd_mapped device; /* kvx_on_device: the same memory, as the device sees it */
    uint8_t *pool;           /* all ranks' */
    bool unreachable;        /* control streams to it cannot be opened */

    struct kvx_event *events;
    size_t event_count;
    bool stuck; /* its thread waits in the next callback of the engine until this is false again */
};

/* One control stream. */
struct kvx_link {
    struct kvx_worker *reader, *source;
    uint64_t reader_id, source_id;
    bool alive;
};

struct kvx_net {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct kvx_worker *workers[KVX_WORKERS];
    struct kvx_link links[KVX_LINKS];
    size_t link_count;
    bool held; /* control messages wait in `queue` */
    struct kvx_parcel *first, **last;

    /* Sees every control message before it is delivered; may change or drop it (returns false). */
    bool (*tap)(void *context, bool to_source, uint8_t **bytes, size_t *length);
    void *tap_context;
};

struct kvx_shape {
    int layers, kv_heads, block_size, head_dim;
    int64_t blocks;
};

extern const struct kvx_shape kvx_small, kvx_large;

/* Set while a worker is started: its pool's memory is not sealed; has no room for generation
 * words. */
extern bool kvx_unsealed, kvx_without_words;

/* Set while a worker is started: of so many ranks it is; the shape's KV heads are divided among them, or each
 * is held by several. */
extern int kvx_ranks;

/* Set while a worker is started: its data connections are under TLS, with certificates of one
 * authority. */
extern bool kvx_under_tls;

/* Set while a worker is started: its pool is in the memory of a device, which only copies reach; `pool` is
 * that memory. */
extern bool kvx_on_device;
extern bool kvx_lends_nothing; /* devices map nothing of other processes' */

void kvx_net_init(struct kvx_net *net);
void kvx_net_free(struct kvx_net *net);

/* The data address of a worker: loopback, or what PD_SOURCE_ADDRESS (names that begin with p) and
 * PD_READER_ADDRESS (others) say, where the two are to be at the ends of a wire. */
const char *kvx_bind_host(const char *name);

/* A worker named and addressed `name`; adjust(&worker->options) may be NULL. */
struct kvx_worker *kvx_start(struct kvx_net *net, const char *name, const char *transport,
                             const struct kvx_shape *shape,
                             void (*adjust)(struct pd_kvx_options *options));
/* Destroys the instance: its streams end, its events stay readable until kvx_free. */
void kvx_stop(struct kvx_worker *worker);
void kvx_free(struct kvx_worker *worker);

/* Waits for an event that no earlier call took; fails the test after 20 s. */
struct kvx_event kvx_expect(struct kvx_worker *worker, enum kvx_event_kind kind, uint64_t id);
/* Makes the worker's thread wait in its next callback, or lets it go. */
void kvx_stick(struct kvx_worker *worker, bool stuck);
/* How many such events there have been so far. */
size_t kvx_count(struct kvx_worker *worker, enum kvx_event_kind kind, uint64_t id);

/* Control links: hold all messages; let them go in order; end all streams for both sides, or
 * silently (no end hears of it and nothing passes any more). */
void kvx_hold(struct kvx_net *net);
void kvx_let_go(struct kvx_net *net);
void kvx_cut(struct kvx_net *net);
void kvx_cut_silently(struct kvx_net *net);
/* How many streams have been opened so far. */
size_t kvx_streams(struct kvx_net *net);

/* A prompt on the source: blocks filled so that every byte says whose it is. */
struct kvx_prompt {
    uint64_t generation;
    uint32_t tokens;
    size_t blocks;
    int32_t block[1024];
    uint8_t secret[PD_KVX_SECRET];
};

/* The prompt's i-th block is blocks[i]; blocks NULL: first, first + 1, ... */
void kvx_prompt_init(struct kvx_prompt *prompt, struct kvx_worker *source, uint64_t generation,
                     uint32_t tokens, const int32_t *blocks, int32_t first);
int kvx_offer(struct kvx_worker *source, const struct kvx_prompt *prompt, uint64_t owner);
void kvx_ticket(const struct kvx_worker *source, const struct kvx_prompt *prompt,
                struct pd_ticket *ticket);

/* Overwrites a worker's whole pool with junk. */
void kvx_junk(struct kvx_worker *worker);
/* Fails the test unless blocks [from, all) of the prompt lie in `blocks` of the worker's pool, and
 * every other block of it is junk. */
void kvx_assert_only(struct kvx_worker *worker, const struct kvx_prompt *prompt, size_t from,
                     const int32_t *blocks);
/* Whether one block of the prompt lies in that block of the worker's pool. */
bool kvx_holds(const struct kvx_worker *worker, uint64_t generation, size_t index, int32_t block);

#endif
