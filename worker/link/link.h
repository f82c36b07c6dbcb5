/* The worker's gRPC service: what stands between the wire and the rooms behind it.
 *
 *                 ┌────────────────────────── link ───────────────────────────┐
 *   nginx ──Attach──▶ parts ──▶ [intake: template, tokens, bounds] ──request──▶ engine
 *         ◀──Step──── one message per step and stream ◀──────────placed, step, failed──┘
 *   pdctl ──Stats, Drain──▶
 *   other workers ◀──Kv.Link, bytes only──▶ kvx          dispatcher ◀──Register (lease)
 *                 └────────────────────────────────────────────────────────────┘
 *
 * Threads: one makes every gRPC call (loop.h); one more, intake, turns submissions into requests,
 * since a template and a long prompt take milliseconds that no other stream should wait for.
 * Everything that arrives from outside is bounded before it is kept; README.md lists the bounds.
 *
 * Life:  create (binds the port) ─▶ events and callbacks go to engine and kvx ─▶ start ─▶ drain
 *        ─▶ [engine cut] ─▶ release_kvx ─▶ [engine stopped] ─▶ [kvx destroyed] ─▶ destroy
 *        ─▶ [engine destroyed] */
#ifndef PD_LINK_H
#define PD_LINK_H

#include "worker/engine/engine.h"

struct pd_link;

/* Where to listen and with which keys. Borrowed for the call. */
struct pd_link_listen {
    const char *host;
    int port;                                /* 0: the system chooses */
    const char *tls_cert, *tls_key, *tls_ca; /* paths; empty: plain text */
};

/* What Hello says, and what intake checks submissions against. Borrowed until pd_link_destroy. */
struct pd_link_identity {
    const char *instance, *model, *zone, *revision;
    const char *numerics_id;
    const char *address; /* host:port for registrations; ":port" lets the dispatcher see the host */
    uint64_t boot;
    enum pd_role role;
    struct pd_fingerprint fingerprint;
    uint32_t max_model_len, block_size, max_num_seqs, vocabulary, max_num_batched_tokens;
    uint64_t kv_blocks, max_submit_bytes;
    uint32_t request_timeout_s;       /* longest time from arrival to the last token */
    const char *const *kv_transports; /* best first */
    size_t kv_transport_count;
    const struct pd_tokenizer *tokenizer;
    const struct pd_chat_template *chat_template; /* NULL: chat is refused */
};

/* Dispatchers to register with. Borrowed until pd_link_destroy. */
struct pd_link_registration {
    const char *const *addresses; /* host:port */
    size_t count;
    const char *token;
};

/* PD_OK if host:port can be listened on just now; otherwise a sentence with the cure. Cheap: asked
 * before a model is loaded. */
int pd_link_probe(const char *host, int port, struct pd_error *error);

/* Binds the port; nothing is answered before pd_link_start. Needs grpc_init. */
int pd_link_create(const struct pd_link_listen *listen, struct pd_link **link,
                   struct pd_error *error);

/* The port that is bound. */
int pd_link_port(const struct pd_link *link);

/* The link's halves of the callbacks, to be given to pd_engine_create and pd_kvx_create. */
void pd_link_engine_events(struct pd_link *link, struct pd_engine_events *events);
void pd_link_kvx_callbacks(struct pd_link *link, struct pd_kvx_callbacks *callbacks);

/* Serves. `kvx` may be NULL: KV links are then refused. */
int pd_link_start(struct pd_link *link, const struct pd_link_identity *identity,
                  const struct pd_link_registration *registration, struct pd_engine *engine,
                  struct pd_kvx *kvx, struct pd_error *error);

/* Tells every frontend and gives the leases back; submissions are refused from here on, running
 * attempts go on. Any thread. */
void pd_link_drain(struct pd_link *link, uint32_t deadline_ms);

/* Drain calls ask the process to end as an operator would, with SIGTERM; this is the time that the one
 * which did so gives, 0 if none did or it does not say. Any thread. */
uint32_t pd_link_asked_drain_ms(const struct pd_link *link);

/* Whether no attempt runs and nothing waits to be sent. Any thread. */
bool pd_link_idle(const struct pd_link *link);

/* Ends all KV links and touches kvx no more once it has returned; at most a second or two. */
void pd_link_release_kvx(struct pd_link *link);

/* Sends what is queued (bounded), ends every stream, joins the threads, frees. Engine and kvx must
 * have been stopped: no callback may come any more. */
void pd_link_destroy(struct pd_link *link);

#endif
