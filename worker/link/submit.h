/* From the bytes of a Submit to a request that the engine can run, or to a refusal in words that
 * the client may read.
 *
 *   bytes ─▶ unpack (bounded scratch memory) ─▶ bounds of every field ─▶ template ─▶ tokens ─▶ request
 *
 * Pure work on one thread: no socket, no queue. All that a client or a dispatcher sends passes here
 * before anything is sized by it. */
#ifndef PD_SUBMIT_H
#define PD_SUBMIT_H

#include "worker/link/job.h"
#include "worker/link/link.h"

struct pd_refusal {
    int code; /* proto Failed.Code */
    char message[513];
    char param[65];
    uint32_t retry_after_ms;
    uint32_t prompt_tokens; /* exact, or 0 */
};

/* Fills *refusal and returns PD_INVALID. */
int pd_refuse(struct pd_refusal *refusal, int code, const char *param, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* PD_OK, or *refusal says why not. *request is the caller's either way, as far as it was read; NULL
 * if the bytes are no message or memory is out. */
int pd_submit_read(const struct pd_link_identity *identity, const struct pd_job *job,
                   struct pd_request **request, struct pd_refusal *refusal);

#endif
