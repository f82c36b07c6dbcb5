#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "t/link/fakes.h"

struct pd_kvx {
    struct pd_kvx_callbacks callbacks;
    atomic_ullong ids;
};

struct pd_kvx *fake_kvx_create(const struct pd_kvx_callbacks *callbacks)
{
    struct pd_kvx *kvx = calloc(1, sizeof(*kvx));

    kvx->callbacks = *callbacks;
    return kvx;
}

void fake_kvx_destroy(struct pd_kvx *kvx)
{
    free(kvx);
}

uint64_t pd_kvx_next_link_id(struct pd_kvx *kvx)
{
    return 1000 + atomic_fetch_add(&kvx->ids, 1);
}

void pd_kvx_reader_up(struct pd_kvx *kvx, uint64_t id, const char *peer)
{
    (void)kvx;
    fake_say("reader_up id=%llu peer=%s", (unsigned long long)id, peer);
}

void pd_kvx_link_up(struct pd_kvx *kvx, uint64_t id)
{
    (void)kvx;
    fake_say("link_up id=%llu", (unsigned long long)id);
}

void pd_kvx_link_down(struct pd_kvx *kvx, uint64_t id, const char *why)
{
    (void)kvx;
    fake_say("link_down id=%llu why=%s", (unsigned long long)id, why);
}

/* Like the real one, closes the link on bytes that are no message; here: those that begin with '!'.
 */
void pd_kvx_receive(struct pd_kvx *kvx, uint64_t id, const uint8_t *bytes, size_t length)
{
    uint8_t *back = malloc(length ? length : 1);

    fake_say("receive id=%llu length=%zu", (unsigned long long)id, length);
    if (length && bytes[0] == '!') {
        free(back);
        kvx->callbacks.close_link(kvx->callbacks.link, id);
        return;
    }
    for (size_t i = 0; i < length; i++)
        back[i] = bytes[length - 1 - i];
    kvx->callbacks.send(kvx->callbacks.link, id, back, length);
}

size_t pd_kvx_links(struct pd_kvx *kvx, struct pd_kvx_link_state *states, size_t capacity)
{
    (void)kvx;
    (void)capacity;
    memset(states, 0, sizeof(*states));
    strcpy(states[0].peer, "prefill-0");
    states[0].up = true;
    strcpy(states[0].transport, "shm");
    states[0].bytes = 12345;
    return 1;
}
