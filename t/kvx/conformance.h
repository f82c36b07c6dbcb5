/* What the conformance suite's two files share: conformance.c has what goes well, conformance_ends.c what ends
 * otherwise. Private to them. */
#ifndef KVX_CONFORMANCE_H
#define KVX_CONFORMANCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "t/unit/kvx_pair.h"

struct pair {
    struct kvx_net net;
    struct kvx_worker *source, *reader;
    const char *transport;
};

/* Two workers of the transport that `state` names. */
struct pair *open_pair(void **state, const struct kvx_shape *shape);
void close_pair(struct pair *pair);

/* Blocks of the reader for a prompt: scattered but fixed. */
void scatter(int32_t *blocks, size_t count, int32_t pool);

/* A hand-off from offer to release, all of whose events and figures are as they should be. */
void run_through(struct pair *pair, struct kvx_prompt *prompt, uint64_t fetch, size_t from,
                 const int32_t *blocks);

/* The reader claims an offered prompt. */
void fetch(struct pair *pair, const struct kvx_prompt *prompt, uint64_t id);

/* The cases of conformance_ends.c. */
void cancel_at_every_stage(void **state);
void revoked_ticket_is_drained_and_released(void **state);
void unclaimed_tickets_are_withdrawn(void **state);
void unclaimed_ticket_meets_its_deadline(void **state);
void cut_stream_ends_the_fetch_and_frees_the_ticket(void **state);
void silence_ends_the_link_at_both_ends(void **state);
void link_is_kept_and_reported(void **state);
void source_dies_and_lives_again(void **state);
void reader_dies_with_a_claim(void **state);
void late_messages_are_ignored(void **state);
void bad_tickets_are_refused_by_name(void **state);
void source_with_other_weights_is_refused(void **state);
void stop_with_everything_under_way(void **state);
void changed_byte_is_found_by_its_checksum(void **state);
void stuck_peers_hold_up_nobody_else(void **state);

#endif
