/* A world of workers and a dispatcher for random histories of the hand-off, on one thread and in
 * simulated time. What is real: kvx.c, service.c, source.c, reader.c, messages, layout, pool. What
 * is played: the dispatcher (front.c), the engines' part of the protocol (engine.c), the control
 * streams (stream.c), the bytes' way (fabric.c), processes, their clocks and their deaths (node.c).
 * All chance comes out of one seed, so a history is its seed.
 *
 *     front ──submit, ticket, cancel──▶ engine ──offer, fetch, …──▶ kvx ══control══▶ stream
 *           ◀─placed, first, finished──        ◀─released, …──────      ──reads────▶ fabric
 *
 * Every worker is source and reader, so KV moves both ways between any two of them. A block on P
 * carries the tag of the attempt that computed it, in every plane of every rank; workers may have their
 * model on other numbers of ranks than their peers. Prompts of a family share their first blocks, in
 * the prefix caches of both sides. See histories.c for what is checked. */
#ifndef KVX_WORLD_H
#define KVX_WORLD_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "t/kvx/fabric.h"
#include "worker/kvx/kvx_state.h"

enum {
    NODES = 4,
    BLOCKS = 14,
    BLOCK_SIZE = 8,
    PROMPT_BLOCKS = 4,
    REQUESTS = 12,
    ATTEMPTS = 64,
    TRIES = 4, /* attempts of one request */
    STREAMS = 256,
    FAMILIES = 3,
    WORLD_RANKS =
        4, /* at most, of a worker: more than there are KV heads, so that some have the same */
};

#define MS ((uint64_t)1000000)

/* ---- attempts and requests ------------------------------------------------------------------- */

struct node;

/* One try of a request on a pair: a ticket on P, a fetch on D; its id names both (and is never
 * reused). */
struct attempt {
    uint64_t id;
    struct request *request;
    struct node *p, *d;
    unsigned tried; /* bit per node that has been D of this ticket */

    /* P's engine */
    uint64_t p_life, p_attach;
    bool offered, revoked, stopped, completed; /* offered: its blocks are not released */
    uint32_t shared, computed;                 /* blocks */
    int32_t p_block[PROMPT_BLOCKS];
    uint64_t tag[PROMPT_BLOCKS]; /* what the ticket's blocks hold once they are computed */

    /* D's engine */
    uint64_t d_life, d_attach;
    enum { NO_FETCH, FETCHING, DECODING } fetch;
    bool cancelled, wanted, ends_early;
    uint32_t held; /* blocks before this one were in D's cache */
    int32_t d_block[PROMPT_BLOCKS];
};

enum request_state { UNUSED, WAITING, SUBMITTED, HANDED, ANSWERED };

/* What a client asked for, as the dispatcher sees it. */
struct request {
    uint64_t id, born;
    enum request_state state;
    uint32_t family, shared, tokens, blocks; /* the first `shared` blocks are the family's */
    unsigned tries;
    struct attempt *attempt;
};

/* ---- workers --------------------------------------------------------------------------------- */

struct block {
    unsigned users;         /* tickets, fetches, sequences, neighbours */
    uint64_t tag;           /* what its bytes hold; 0: nothing of use */
    uint64_t writer;        /* fetch whose reads may land here; 0: none */
    uint32_t family, index; /* in the prefix cache, if `cached` */
    bool cached;
};

/* A worker process; a life begins with every start. */
struct node {
    int index;
    char name[8];
    uint64_t life; /* also its boot */
    struct pd_kvx *kvx;
    uint32_t ranks; /* on which its model is; of all its lives */
    int memory[WORLD_RANKS];
    bool checksum;    /* as a reader, of all its lives: what it reads is prepared on its source */
    bool dying;       /* SIGKILL: its last words are not heard */
    uint64_t frozen;  /* SIGSTOP until then */
    uint64_t offset;  /* its clock runs ahead of the world's by this much */
    uint64_t slow;    /* nanoseconds that a turn may be late */
    uint64_t tick_at; /* when the next turn for its deadlines is planned; 0: not */
    bool mute;        /* its mail is delivered while it is frozen: only the thread stands still */
    struct block blocks[BLOCKS];

    /* the Attach stream: its number, and which of the two ends know it */
    uint64_t attach;
    bool attach_cut, front_up, worker_up;
    uint64_t worker_attach;       /* the one that the worker knows */
    uint64_t to_front, to_worker; /* when the last message arrives */
};

/* A control stream from d to p. */
struct stream {
    bool established, cut;
    struct node *d, *p;
    uint64_t d_life, p_life, d_link, p_link;
    bool d_open, p_open; /* neither closed by this end, nor has it been told of the end */
    bool d_closed, p_closed;
    uint64_t to_p, to_d; /* when the last message of this direction arrives: they do not overtake */
};

/* ---- events ---------------------------------------------------------------------------------- */

enum event_kind {
    EV_TURN,
    EV_ESTABLISH,
    EV_MESSAGE,
    EV_STREAM_ENDS,
    EV_CALL,
};

struct event {
    uint64_t at, order; /* events of one moment happen in the order in which they were planned */
    enum event_kind kind;
    struct node *node; /* happens in this worker, in this life, not while it is frozen; NULL: not in
                        * a worker */
    uint64_t life;
    struct stream *stream;
    uint8_t *bytes;
    size_t length;
    void (*call)(struct node *node, struct attempt *attempt, uint64_t argument);
    struct attempt *attempt;
    uint64_t argument;
};

/* ---- the world ------------------------------------------------------------------------------- */

/* What may go wrong in this history: each of them per mille of the steps, 0 in most histories. */
struct weather {
    unsigned cut, silent, restart, freeze, jump, forget, partition, duplicate, cancel, fail,
        front_dies, neighbour, post_fails;
    uint64_t message_ns, step_ns; /* longest delay */
    const char *transport;
};

struct world {
    uint64_t seed, random, now, order, last_id;
    bool quiet; /* no more requests and misfortunes */
    struct weather weather;
    struct node nodes[NODES];
    struct request requests[REQUESTS];
    struct attempt attempts[ATTEMPTS];
    size_t attempt_count;
    struct stream streams[STREAMS];
    size_t stream_count;
    bool parted[NODES][NODES];
    uint64_t parted_until;

    struct event *heap;
    size_t heap_count, heap_room;

    uint64_t answered, failed, completed, closed, released, lives, retries, shared, words_moved;
    uint64_t unequal; /* complete, between workers of other numbers of ranks */
};

extern struct world world;
extern bool kvx_tracing;

/* Ends the run: prints the seed, what happened to it, and how to see it again. */
void kvx_broken(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void kvx_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            kvx_broken(__VA_ARGS__);                                                               \
    } while (0)
/* Only the arguments of a history that is printed are worth their formatting. */
#define SAY(...)                                                                                   \
    do {                                                                                           \
        if (kvx_tracing)                                                                           \
            kvx_say(__VA_ARGS__);                                                                  \
    } while (0)

/* A number below `below`: the only source of chance. */
uint64_t kvx_draw(uint64_t below);
bool kvx_chance(unsigned per_mille);

/* Plans an event `delay` from now, in the present life of its node. */
void kvx_plan(uint64_t delay, struct event event);
/* `call(node, attempt, argument)`. */
void kvx_plan_call(uint64_t delay, struct node *node,
                   void (*call)(struct node *node, struct attempt *attempt, uint64_t argument),
                   struct attempt *attempt, uint64_t argument);

/* ---- node.c ---------------------------------------------------------------------------------- */

void kvx_start_node(struct node *node);
void kvx_kill_node(struct node *node);
void kvx_turn(struct node *node);                   /* EV_TURN */
void kvx_turn_by(struct node *node, uint64_t when); /* world's time */
bool kvx_node_rests(const struct node *node);
struct pd_fingerprint kvx_world_fingerprint(void);
void kvx_write(struct node *node, int32_t block, uint64_t tag);
bool kvx_holds_tag(const struct node *node, int32_t block, uint64_t tag);
void kvx_fabric_for_world(void);

/* ---- stream.c -------------------------------------------------------------------------------- */

void kvx_stream_open(struct node *d, uint64_t link, const char *address);
void kvx_stream_send(struct node *from, uint64_t link, uint8_t *bytes, size_t length);
void kvx_stream_close(struct node *from, uint64_t link);
void kvx_stream_cut(struct stream *stream, bool told);
void kvx_streams_of_dead(struct node *node);
struct stream *kvx_some_stream(void);
void kvx_establish(const struct event *event);
void kvx_message(const struct event *event);
void kvx_stream_ends(const struct event *event);

/* ---- engine.c: what a worker does for the dispatcher ----------------------------------------- */

void kvx_on_submit(struct node *node, struct attempt *attempt, uint64_t attach);
void kvx_on_ticket(struct node *node, struct attempt *attempt, uint64_t attach);
void kvx_on_cancel(struct node *node, struct attempt *attempt, uint64_t attach);
void kvx_attach_lost(struct node *node);
void kvx_engine_dies(struct node *node);
bool kvx_engines_rest(void);
/* A neighbour takes a free block for a while. */
void kvx_neighbour(struct node *node);
extern const struct pd_kvx_callbacks kvx_engine_callbacks;

/* ---- front.c: the dispatcher ----------------------------------------------------------------- */

enum answer { PLACED, REFUSED, FIRST, FIRST_AND_LAST, FINISHED, FAILED };

void kvx_ask(struct request *request);
/* A worker's message about an attempt, over the Attach stream that it came by. */
void kvx_tell_front(struct node *node, uint64_t attach, struct attempt *attempt,
                    enum answer answer);
void kvx_attach_cut(struct node *node);
/* Whether what was said over that stream arrives at the worker. */
bool kvx_attach_passes(const struct node *node, uint64_t attach);
void kvx_front_dies(void);
void kvx_client_leaves(void);

#endif
