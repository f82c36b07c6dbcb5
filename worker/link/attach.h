/* Attach: one stream per frontend process, on which requests come in and tokens go out.
 *
 * A stream is judged by its messages: the first must be a Hello within ten seconds; a message that
 * cannot be read, or that breaks the protocol, ends the stream with INVALID_ARGUMENT; a request
 * that is wrong in itself is answered with Failed and harms nothing else. A stream that ends takes
 * its attempts with it.
 *
 * This file is the stream's life: hello, reports, end. submissions.h is what comes in on it,
 * delivery.h what goes out. */
#ifndef PD_ATTACH_H
#define PD_ATTACH_H

#include "worker/link/attempts.h"
#include "worker/link/frontends.h"
#include "worker/link/server.h"

struct pd_attach {
    struct pd_link *link;
    uint64_t id; /* serial << 8 | index in link->attaches: never reused */
    struct pd_stream *stream;
    char peer[80];
    char frontend[PD_FRONTEND_BYTES_MAX + 1];
    struct pd_frontend *health; /* its entry in link->frontends; NULL before the hello */
    uint32_t slot;
    uint64_t generation;
    uint64_t name;         /* as the frontend's hello names the stream, 0: not */
    bool greeted, leaving; /* leaving: the frontend drains */
    uint64_t report_interval_ns, report_at_ns, reports;
    struct pd_attempts attempts;
    size_t assembling; /* submissions that are not complete yet */

    Pd__V1__Step step;           /* while a step is delivered */
    struct pd_attach *next_step; /* in the list of those with a share in it */
};

/* ---- for server.c -------------------------------------------------------------------------------
 */

/* A call of Worker.Attach has been accepted. `peer` is copied. */
void pd_attach_accept(struct pd_link *link, grpc_call *call, const char *peer);

/* Tells every frontend that this worker leaves. */
void pd_attaches_drain(struct pd_link *link);

/* Sends load reports that are due; asks for the next tick. */
void pd_attaches_tick(struct pd_link *link, uint64_t now_ns);

/* Engine messages were lost: cuts all streams. */
void pd_attaches_overrun(struct pd_link *link);

/* Ends all streams with UNAVAILABLE; what is queued is still sent. */
void pd_attaches_close(struct pd_link *link);

/* ---- for submissions.c and delivery.c -----------------------------------------------------------
 */

/* NULL: gone. */
struct pd_attach *pd_attach_find(const struct pd_link *link, uint64_t id);

/* False: the frontend does not read, the stream has been cut and the attach is gone. */
bool pd_attach_send(struct pd_attach *attach, const Pd__V1__FromWorker *message);
bool pd_attach_send_failed(struct pd_attach *attach, uint64_t request, uint32_t attempt,
                           const struct pd_refusal *refusal);

/* Failed, and the attempt is over. */
bool pd_attach_refuse(struct pd_attach *attach, struct pd_attempt_entry *entry,
                      const struct pd_refusal *refusal);

/* The attempt's last word has been said. */
void pd_attach_attempt_over(struct pd_attach *attach, struct pd_attempt_entry *entry);

/* Keeps the count behind pd_link_idle. */
void pd_attach_running(struct pd_link *link, long by);

/* Gives a report its place in this stream's row, and adds what it includes of the frontend's other
 * streams, out of link->scratch. */
void pd_attach_number_report(struct pd_attach *attach, Pd__V1__LoadReport *report);

/* There is work of this stream: its next report is not to wait for the whole interval. */
void pd_attach_report_soon(struct pd_attach *attach);

/* The frontend broke the protocol, or a message that must not be lost cannot be built. Frees the
 * attach. */
void pd_attach_close_bad(struct pd_attach *attach, grpc_status_code code, const char *why);
void pd_attach_cut(struct pd_attach *attach, const char *why);

#endif
