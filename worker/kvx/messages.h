/* The control messages of a KV link, as plain structures, and the only place that knows their
 * bytes.
 *
 * Unpacking is where a peer's numbers become ours: every bound of proto/pd.proto is checked here
 * before anything is sized by it, and the parser allocates from a budget, so that no message,
 * however built, takes more memory than an honest one of the largest size. What only the state
 * machines can judge (is this my ticket, does the count fit the prompt) is left to them. */
#ifndef PD_KVX_MESSAGES_H
#define PD_KVX_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/base/error.h"
#include "worker/kvx/kvx.h"
#include "worker/kvx/layout.h"

enum {
    PD_KV_PROTOCOL = 1,
    PD_KV_NAME = 128 + 1,       /* instance, host id */
    PD_KV_ADDRESS = 256 + 1,    /* host:port, socket name */
    PD_KV_WHY = 256 + 1,        /* a sentence for people; longer ones are cut */
    PD_KV_TRANSPORTS = 8,       /* wanted by a reader */
    PD_KV_TRANSPORT = 8,        /* bytes of a transport's name with its zero */
    PD_KV_TO_SOURCE_MAX = 8192, /* bytes of one message to a source */
};

/* ---- reader to source ------------------------------------------------------------------------ */

enum pd_to_source_kind {
    PD_TO_SOURCE_UNKNOWN, /* of a later protocol: ignored, but a sign of life */
    PD_TO_SOURCE_HELLO,
    PD_TO_SOURCE_CLAIM,
    PD_TO_SOURCE_RELEASE,
    PD_TO_SOURCE_HEARTBEAT,
};

struct pd_reader_hello {
    uint32_t protocol;
    char instance[PD_KV_NAME];
    uint64_t boot, epoch, source_boot;
    struct pd_fingerprint fingerprint;
    char transports[PD_KV_TRANSPORTS][PD_KV_TRANSPORT]; /* best first; unknown long names are cut */
    size_t transport_count;
    char host_id[PD_KV_NAME];
    bool checksum, tls;
};

struct pd_claim {
    uint64_t generation, epoch;
    uint8_t secret[PD_KVX_SECRET];
};

struct pd_to_source {
    enum pd_to_source_kind kind;
    union {
        struct pd_reader_hello hello;
        struct pd_claim claim;
        uint64_t generation; /* of a release */
        uint64_t heartbeat;
    };
};

/* ---- source to reader ------------------------------------------------------------------------ */

enum pd_from_source_kind {
    PD_FROM_SOURCE_UNKNOWN,
    PD_FROM_SOURCE_HELLO,
    PD_FROM_SOURCE_CLAIMED,
    PD_FROM_SOURCE_GONE,
    PD_FROM_SOURCE_READY,
    PD_FROM_SOURCE_REVOKED,
    PD_FROM_SOURCE_HEARTBEAT,
};

/* An empty transport: the link is refused, and `why` says for what reason. */
struct pd_source_hello {
    uint32_t protocol;
    char instance[PD_KV_NAME];
    uint64_t boot, epoch;
    struct pd_fingerprint fingerprint;
    char transport[PD_KV_TRANSPORT];
    char why[PD_KV_WHY];
    char data_address[PD_KV_ADDRESS];
    uint64_t link_key;
    struct pd_layout pool; /* derived; of a refusal: zero */
    bool checksum, tls;
    uint8_t certificate[PD_DIGEST]; /* with `tls`: of the certificate that data connections show */
};

struct pd_chunk_ready {
    uint64_t generation;
    uint32_t tokens;
    bool complete;
    struct pd_kvx_first first; /* is meant only with `complete` */
    uint32_t sums_from;        /* the first sum's block of the prompt */
    size_t sum_count;
    uint64_t *sums; /* malloc'ed when unpacked; NULL where there are none */
};

struct pd_claimed {
    uint64_t generation;
    struct pd_extent *extents; /* malloc'ed, all three; NULL where the count is zero */
    size_t extent_count;
    uint32_t *prompt;
    size_t prompt_count;
    uint64_t *words;
    size_t word_count;
    struct pd_chunk_ready ready;
};

struct pd_gone { /* of Gone and Revoked */
    uint64_t generation;
    char why[PD_KV_WHY];
};

struct pd_from_source {
    enum pd_from_source_kind kind;
    union {
        struct pd_source_hello hello;
        struct pd_claimed claimed;
        struct pd_gone gone;
        struct pd_chunk_ready ready;
        uint64_t heartbeat;
    };
};

/* Copies a sentence, cut to what fits. */
void pd_kv_cut(char *to, size_t size, const char *from);

/* ---- bytes ----------------------------------------------------------------------------------- */

/* malloc'ed bytes, or NULL if there is no memory. Structures are borrowed. */
uint8_t *pd_to_source_pack(const struct pd_to_source *message, size_t *length);
uint8_t *pd_from_source_pack(const struct pd_from_source *message, size_t *length);

/* Fills *message; PD_INVALID names the field at fault. A hello's pool layout is checked and
 * derived. */
int pd_to_source_unpack(const uint8_t *bytes, size_t length, struct pd_to_source *message,
                        struct pd_error *error);

/* The same; prompts are bounded by `max_tokens`, and so is the size of a message. On PD_OK the
 * caller clears the message when done with it. */
int pd_from_source_unpack(const uint8_t *bytes, size_t length, uint32_t max_tokens,
                          struct pd_from_source *message, struct pd_error *error);
void pd_from_source_clear(struct pd_from_source *message);

/* Most bytes that a message from a source may have. */
size_t pd_from_source_max(uint32_t max_tokens);

/* Compares two fingerprints; PD_INVALID names the part that differs and how each end's begins. */
int pd_fingerprint_match(const struct pd_fingerprint *source, const struct pd_fingerprint *reader,
                         struct pd_error *error);

#endif
