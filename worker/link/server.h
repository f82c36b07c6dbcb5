/* What the files of this room share: the link itself. Private to worker/link.
 *
 * Everything here belongs to the link's thread, except the mailbox, the flags that say so, and what
 * is fixed before the thread starts. */
#ifndef PD_LINK_SERVER_H
#define PD_LINK_SERVER_H

#include <grpc/grpc.h>
#include <semaphore.h>

#include "proto/pd.pb-c.h"
#include "worker/base/mailbox.h"
#include "worker/link/scratch.h"
#include "worker/link/credentials.h"
#include "worker/link/frontends.h"
#include "worker/link/intake.h"
#include "worker/link/link.h"
#include "worker/link/stream.h"

enum {
    PD_ATTACHES_MAX = 256,
    PD_STATS_CALLS_MAX = 16,
    PD_DRAIN_CALLS_MAX = 16,
    PD_KV_LINKS_MAX = 256, /* in each direction */
    PD_FAILURE_CODES = PD__V1__FAILED__CODE__REDIRECT + 1,
};

struct pd_attach;
struct pd_drain;
struct pd_kv_stream;
struct pd_registration;

/* Messages to the link's thread; each file that posts one defines its struct. */
enum pd_link_message {
    PD_LINK_STEP,
    PD_LINK_QUEUED,
    PD_LINK_PLACED,
    PD_LINK_FAILED,
    PD_LINK_KV_OPEN,
    PD_LINK_KV_CLOSE,
    PD_LINK_KV_SEND,
    PD_LINK_DRAIN,
    PD_LINK_RELEASE_KVX,
    PD_LINK_STOP,
    PD_LINK_END,
};

/* Since start; named in worker/README.md. */
struct pd_link_counters {
    uint64_t attaches, attaches_refused, attaches_cut;
    uint64_t submissions, submit_bytes, cancels;
    uint64_t failures[PD_FAILURE_CODES];
    uint64_t step_messages, messages_bad;
    uint64_t kv_links_served, kv_links_opened, kv_links_failed;
    uint64_t registrations, registrations_failed;
};

struct pd_link {
    struct pd_loop loop;
    struct pd_streams streams;
    struct pd_credentials credentials;
    grpc_server *server;
    int port;
    pthread_t thread;
    bool started;

    struct pd_mailbox box;
    atomic_bool overrun;    /* the mailbox was full: messages of the engine are lost */
    atomic_bool kv_overrun; /* no memory: control messages of kvx are lost */
    atomic_size_t running;  /* attempts of all streams, as pd_link_idle sees them */
    sem_t acknowledged;     /* PD_LINK_RELEASE_KVX and PD_LINK_STOP have been done */

    const struct pd_link_identity *identity;
    struct pd_engine *engine;
    struct pd_kvx *kvx; /* NULL: none, or released */
    struct pd_intake *intake;
    struct pd_budget budget; /* bytes of submissions on all streams and in intake */

    Pd__V1__WorkerHello hello;
    Pd__V1__Fingerprint fingerprint;
    char *capabilities[3];
    struct pd_scratch scratch; /* for the message that is being built */
    struct pd_scratch inbox;   /* for the message that is being read */

    struct pd_attach *attaches[PD_ATTACHES_MAX];
    size_t attach_count, attach_serial;
    struct pd_frontends frontends;
    struct pd_kv_stream *kv_streams;
    size_t kv_served, kv_opened;
    struct pd_registration *registrations;
    size_t registration_count;
    size_t stats_calls;
    struct pd_drain *drains[PD_DRAIN_CALLS_MAX];
    bool asked_to_drain;        /* by one of them: the process has been told */
    atomic_uint asked_drain_ms; /* how long that one gives; 0: it leaves that to the process */

    struct pd_kvx_link_state *kv_states; /* as of kv_states_ns; PD_KV_LINKS_MAX entries */
    size_t kv_state_count;
    uint64_t kv_states_ns;

    bool draining, stopping, ending, server_is_down;
    uint32_t drain_ms;
    uint64_t drain_until_ns; /* while draining: when what runs is cut */
    uint64_t drain_tell_ns;  /* and when its watchers are told the next time */
    uint64_t cut_ns;         /* while stopping: when patience ends */
    struct pd_tag accept_tag, shutdown_tag;
    grpc_call *accepted;
    grpc_call_details details;
    grpc_metadata_array metadata;

    uint64_t reports; /* built so far, whoever they went to */
    struct pd_link_counters counters;
};

/* Packs a message into a slice of exactly its size. */
grpc_slice pd_link_pack(const ProtobufCMessage *message);

/* Posts to the link's thread. Whatever fails to be posted is freed. */
void pd_link_post(struct pd_link *link, struct pd_message *message, enum pd_link_message kind);

#endif
