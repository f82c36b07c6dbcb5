/* A world of sources and readers for random histories of the hand-off: their state machines as they
 * are, on streams and data connections that are steps of a seeded kvx_draw. See
 * test_kvx_history.c. */
#ifndef KVX_SIM_H
#define KVX_SIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/kvx/reader.h"
#include "worker/kvx/source.h"

enum {
    SOURCES = 2,
    READERS = 2,
    BLOCKS = 12,
    BLOCK_SIZE = 8,
    PROMPT_BLOCKS = 4,
    STREAMS = 512,
    JOBS = 8,
    POOLS = 64,
    READS = 64,
    QUEUE = 256,
};

static const uint64_t kvx_ms = 1000000;

/* The memory of one life of a worker: a reader's mapping outlives the process that made it. */
struct pool {
    uint64_t tag[BLOCKS];
    uint64_t owner[BLOCKS]; /* 0: free */
    _Atomic uint64_t words[BLOCKS];
};

struct sim_node {
    struct sim *sim;
    int index;
    char name[8];
    uint64_t boot, next_link;
    bool dead;       /* its last words are not heard */
    uint64_t frozen; /* kvx_stopped until then: it neither hears nor sees the time */
    struct pool *pool;
    struct pd_source *source; /* of a source */
    struct pd_reader *reader; /* of a reader */
};

struct parcel {
    uint8_t *bytes;
    size_t length;
};

struct queue {
    struct parcel at[QUEUE];
    size_t first, count;
    bool hung_up; /* the sender's last word */
};

/* A control stream with its data ends. */
struct stream {
    bool established, shm;
    bool cut, silent; /* silent: and no end is told */
    struct sim_node *d, *p;
    uint64_t d_boot, p_boot, d_link, p_link;
    bool d_open, p_open; /* each end's own belief */
    struct queue to_source, to_reader;
    bool d_end, p_end, connecting; /* data ends that are alive */
    bool d_data_lost, p_data_lost; /* the other end has gone, and this one will hear of it */
    struct pool *p_pool;
};

struct read {
    const struct pd_read *read; /* NULL: free */
    struct stream *stream;
    bool sampled, broken;
    uint64_t value[PROMPT_BLOCKS];
    uint32_t into[PROMPT_BLOCKS], count;
    uint64_t fetch;
};

/* One request: its ticket on a source, its fetch on a reader. */
struct job {
    bool used;
    uint64_t id; /* generation and fetch */
    struct sim_node *p, *d;
    uint64_t p_boot;
    uint32_t tokens, blocks, from, computed;
    int32_t p_block[PROMPT_BLOCKS], d_block[PROMPT_BLOCKS];
    bool p_alive;            /* the offer is not released */
    bool revoked, completed; /* the engine has given up, or is done */
    bool to_send, fetching, to_want, decoding;
};

struct sim {
    uint64_t random, now, next_tick, next_id;
    bool quiet, shm;
    struct sim_node sources[SOURCES], readers[READERS];
    struct stream streams[STREAMS];
    size_t stream_count;
    struct job jobs[JOBS];
    struct read reads[READS];
    struct pool pools[POOLS];
    size_t pool_count;
    uint64_t completed, closed, released;
};

/* Of the history that is running. */
extern uint64_t kvx_seed;

#define KVX_CHECK(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("KVX_SEED=%llu: ", (unsigned long long)kvx_seed);                          \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

/* A number below `below`: the only source of chance. */
uint64_t kvx_draw(struct sim *sim, uint64_t below);

/* What the index-th block of a ticket holds. */
uint64_t kvx_tag_of(uint64_t id, uint32_t index);

struct pd_layout kvx_sim_layout(void);
struct pd_fingerprint kvx_sim_fingerprint(void);

/* A new life with a new boot and a new pool; its end by SIGKILL. A node that is killed must be
 * started again, or be done with. */
void kvx_start_source(struct sim_node *p);
void kvx_start_reader(struct sim_node *d);
void kvx_kill_source(struct sim_node *p);
void kvx_kill_reader(struct sim_node *d);
bool kvx_stopped(const struct sim_node *node);

void kvx_free_blocks(struct pool *pool, const int32_t *blocks, uint32_t count, uint64_t owner);

/* What is under way is lost. Silent: neither end is told. */
void kvx_cut_stream(struct stream *stream, bool silent);

/* The first stream from a random one on that has an open end; NULL if there is none. */
struct stream *kvx_some_stream(struct sim *sim);

/* One thing that may happen to it; false if nothing may. */
bool kvx_step_stream(struct sim *sim, struct stream *stream);
bool kvx_step_read(struct sim *sim, struct read *read);

#endif
