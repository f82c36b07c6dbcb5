/* Two workers and a prompt between them, for tests that put a liar in the place of one. Included by
 * tests. */
#ifndef KVX_VICTIMS_H
#define KVX_VICTIMS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmocka.h>

#include "t/unit/kvx_pair.h"
#include "worker/kvx/messages.h"

/* What the tap sees of the source's hello, and what it makes of it. */
struct tapped {
    struct pd_source_hello hello;
    bool seen;
    const char *other_address; /* put in place of the data address */
    const char *of_transport;  /* only of a hello that has chosen this one; NULL: of any */
};

static inline bool tap(void *context, bool to_source, uint8_t **bytes, size_t *length)
{
    struct tapped *tapped = context;
    struct pd_from_source message;

    if (to_source || pd_from_source_unpack(*bytes, *length, 16384, &message, NULL) != PD_OK)
        return true;
    if (message.kind == PD_FROM_SOURCE_HELLO) {
        tapped->hello = message.hello;
        tapped->seen = true;
        if (tapped->other_address &&
            (!tapped->of_transport || strcmp(message.hello.transport, tapped->of_transport) == 0)) {
            strcpy(message.hello.data_address, tapped->other_address);
            free(*bytes);
            *bytes = pd_from_source_pack(&message, length);
        }
    }
    pd_from_source_clear(&message);
    return true;
}

struct pair {
    struct kvx_net net;
    struct kvx_worker *source, *reader;
    struct tapped tapped;
    struct kvx_prompt
        prompt; /* generation 1, 8 blocks, claimed by fetch 1 once begin() is through */
};

static const int32_t blocks[8] = {30, 31, 32, 33, 34, 35, 36, 37};

/* Long, so that a busy machine does not look like a silent peer; short where a test waits for it: see
 * until_undisturbed. */
enum { PATIENT_MS = 10000, HASTY_MS = 400 };
static uint32_t silence_ms = PATIENT_MS;

static inline void set_silence(struct pd_kvx_options *options)
{
    options->silence_ms = silence_ms;
}

static inline void open_pair(struct pair *pair, const char *transport)
{
    memset(pair, 0, sizeof(*pair));
    kvx_net_init(&pair->net);
    pair->net.tap = tap;
    pair->net.tap_context = &pair->tapped;
    pair->source = kvx_start(&pair->net, "p0", transport, &kvx_small, set_silence);
    pair->reader = kvx_start(&pair->net, "d0", transport, &kvx_small, set_silence);
}

static inline void offer(struct pair *pair, uint64_t generation, struct pd_ticket *ticket)
{
    kvx_prompt_init(&pair->prompt, pair->source, generation, 64, NULL, 0);
    assert_int_equal(kvx_offer(pair->source, &pair->prompt, 1), PD_OK);
    kvx_ticket(pair->source, &pair->prompt, ticket);
}

static inline void fetch(struct pair *pair, uint64_t generation)
{
    struct pd_ticket ticket;

    offer(pair, generation, &ticket);
    assert_int_equal(pd_kvx_fetch(pair->reader->kvx, generation, &ticket), PD_OK);
}

static inline void begin(struct pair *pair, const char *transport)
{
    open_pair(pair, transport);
    fetch(pair, 1);
    kvx_expect(pair->reader, KVX_CLAIMED, 1);
    assert_true(pair->tapped.seen);
}

/* The honest reader gets its prompt all the same. */
static inline void finish(struct pair *pair)
{
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, 8);
    pd_kvx_complete(pair->source->kvx, 1, &(struct pd_kvx_first){.token = 4711});
    kvx_expect(pair->reader, KVX_COMPLETE, 1);
    kvx_assert_only(pair->reader, &pair->prompt, 0, blocks);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    kvx_net_free(&pair->net);
}

/* Whether the fetch gets there; else it was closed, and the pair is gone. */
static inline bool gets_to(struct pair *pair, enum kvx_event_kind kind, uint64_t id)
{
    enum { STEP_MS = 2, PATIENCE_MS = 20000 };

    for (int waited = 0; waited < PATIENCE_MS; waited += STEP_MS) {
        if (kvx_count(pair->reader, kind, id))
            return true;
        if (kvx_count(pair->reader, KVX_CLOSED, id)) {
            kvx_net_free(&pair->net);
            return false;
        }
        usleep(STEP_MS * 1000);
    }
    fail_msg("fetch %d is neither there nor closed", (int)id);
    return false;
}

/* A link of HASTY_MS may be lost to a busy machine, which is no fault of the room's: then all is done again, with
 * twice the silence. An attempt says whether its links stood it. */
static inline void until_undisturbed(bool (*attempt)(uint32_t ms))
{
    for (uint32_t ms = HASTY_MS; ms <= 2 * PATIENT_MS; ms *= 2)
        if (attempt(ms))
            return;
    fail_msg("no link lives for as long as it takes");
}

static inline bool begin_hastily(struct pair *pair, const char *transport, uint32_t ms)
{
    silence_ms = ms;
    open_pair(pair, transport);
    silence_ms = PATIENT_MS;
    fetch(pair, 1);
    return gets_to(pair, KVX_CLAIMED, 1);
}

static inline bool finish_undisturbed(struct pair *pair)
{
    pd_kvx_fetch_want(pair->reader->kvx, 1, 0, blocks, 8);
    pd_kvx_complete(pair->source->kvx, 1, &(struct pd_kvx_first){.token = 4711});
    if (!gets_to(pair, KVX_COMPLETE, 1))
        return false;
    kvx_assert_only(pair->reader, &pair->prompt, 0, blocks);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    kvx_net_free(&pair->net);
    return true;
}

static inline void read_on(struct pair *pair, uint64_t id)
{
    kvx_expect(pair->reader, KVX_CLAIMED, id);
    pd_kvx_fetch_want(pair->reader->kvx, id, 0, blocks, 8);
    pd_kvx_complete(pair->source->kvx, 2, &(struct pd_kvx_first){.token = 4711});
    kvx_expect(pair->reader, KVX_COMPLETE, id);
    kvx_assert_only(pair->reader, &pair->prompt, 0, blocks);
    kvx_net_free(&pair->net);
}

/* Both workers go on: another fetch, over another link, goes through. */
static inline void go_on(struct pair *pair)
{
    kvx_junk(pair->reader);
    fetch(pair, 2);
    read_on(pair, 2);
}

/* A fetch that comes in the pause before a link's next try is refused, and may ask again: asks for the
 * ticket as fetch `id`, and as those behind it, until one is claimed; which. */
static inline uint64_t ask_until_claimed(struct pair *pair, const struct pd_ticket *ticket,
                                         uint64_t id)
{
    enum { TRIES = 40 };

    for (uint64_t last = id + TRIES; id < last; id++) {
        assert_int_equal(pd_kvx_fetch(pair->reader->kvx, id, ticket), PD_OK);
        while (kvx_count(pair->reader, KVX_CLOSED, id) == 0) {
            if (kvx_count(pair->reader, KVX_CLAIMED, id))
                return id;
            usleep(5 * 1000);
        }
        assert_non_null(strstr(kvx_expect(pair->reader, KVX_CLOSED, id).why, "next try in"));
        usleep(50 * 1000);
    }
    fail_msg("no fetch was claimed");
    return 0;
}

/* The same after a link that never came up, or was tried again in vain. */
static inline void go_on_after_a_pause(struct pair *pair)
{
    struct pd_ticket ticket;

    kvx_junk(pair->reader);
    offer(pair, 2, &ticket);
    read_on(pair, ask_until_claimed(pair, &ticket, 2));
}

/* The link has died with everything on it, and that is all. */
static inline void recover(struct pair *pair)
{
    kvx_expect(pair->reader, KVX_CLOSED, 1);
    kvx_expect(pair->source, KVX_RELEASED, 1);
    go_on(pair);
}

/* The other end closes, or resets, within the test's patience; bytes that come before are dropped. */
static inline void assert_closed(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    char bytes[4096];
    ssize_t got;
    int ready;

    do {
        ready = poll(&wait, 1, 20000);
        got = ready > 0 ? recv(fd, bytes, sizeof(bytes), 0) : ready;
    } while (got > 0 || (got < 0 && errno == EINTR));
    assert_int_not_equal(ready, 0);
    close(fd);
}

static inline void say_hello(int fd, const char *magic, uint64_t key)
{
    uint8_t hello[16];

    memcpy(hello, magic, 8);
    memcpy(hello + 8, &key, 8); /* this machine's order is the wire's */
    assert_int_equal(send(fd, hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
}

#endif
