/* Which transport a link gets: the best of the reader's list that both ends can use, and why not a
 * better one. */
#ifndef PD_KVX_CHOOSE_H
#define PD_KVX_CHOOSE_H

#include "worker/kvx/messages.h"

/* A transport of the source. */
struct pd_transport_option {
    const char *name;
    const char *why_not; /* NULL: can be used */
    bool same_host_only;
    bool tls; /* its data connections are under TLS */
};

/* The index into `options` of the one that is chosen, or -1. `why` names every better one that was
 * passed over, with the reason; empty if there was none. */
int pd_transport_choose(const struct pd_reader_hello *reader, const char *own_host_id,
                        const struct pd_transport_option *options, size_t count,
                        char why[PD_KV_WHY]);

#endif
