#include "worker/link/delivery.h"

#include "worker/link/report.h"

void pd_delivery_queued(struct pd_link *link, const struct pd_attempt *id)
{
    struct pd_attach *attach = pd_attach_find(link, id->attach);
    struct pd_attempt_entry *entry = NULL;

    if (attach)
        entry = pd_attempts_find(&attach->attempts, id->request, id->attempt);
    if (entry)
        pd_attempts_seen(&attach->attempts, entry);
}

void pd_delivery_placed(struct pd_link *link, const struct pd_placed *placed)
{
    struct pd_attach *attach = pd_attach_find(link, placed->id.attach);
    struct pd_attempt_entry *entry;
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;

    if (!attach)
        return;
    entry = pd_attempts_find(&attach->attempts, placed->id.request, placed->id.attempt);
    if (!entry)
        return;
    pd_attempts_seen(&attach->attempts, entry);
    if (entry->cancelled)
        return;
    pd_scratch_reset(&link->scratch);
    message.kind_case = PD__V1__FROM_WORKER__KIND_PLACED;
    message.placed = pd_report_placed(&link->scratch, placed);
    if (message.placed)
        pd_attach_send(attach, &message);
    else
        pd_attach_cut(attach, "out of memory");
}

void pd_delivery_failed(struct pd_link *link, const struct pd_failure *failure)
{
    struct pd_attach *attach = pd_attach_find(link, failure->id.attach);
    struct pd_attempt_entry *entry;
    struct pd_refusal refusal;

    if (!attach)
        return;
    entry = pd_attempts_find(&attach->attempts, failure->id.request, failure->id.attempt);
    if (!entry || entry->state != PD_ATTEMPT_SUBMITTED)
        return;
    pd_refuse(&refusal, failure->code, failure->param, "%s", failure->message);
    refusal.retry_after_ms = failure->retry_after_ms;
    refusal.prompt_tokens = failure->prompt_tokens;
    pd_attach_refuse(attach, entry, &refusal);
}

/* Adds one sequence to its attach's share. */
static void add_share(struct pd_link *link, struct pd_attach *attach, size_t capacity,
                      const struct pd_output *output)
{
    struct pd_attempt_entry *entry =
        pd_attempts_find(&attach->attempts, output->id.request, output->id.attempt);
    Pd__V1__Step *step = &attach->step;

    if (!entry || entry->state != PD_ATTEMPT_SUBMITTED || (entry->cancelled && !output->finished))
        return;
    if (!step->sequences)
        step->sequences = pd_scratch_array(&link->scratch, capacity, sizeof(*step->sequences));
    if (step->sequences) /* else, and for a NULL among them, the stream is cut when it is sent */
        step->sequences[step->n_sequences++] = pd_report_sequence(link, &link->scratch, output);
    if (output->finished) {
        if (output->finish == PD__V1__FINISH_REASON__FINISH_NONE && !entry->cancelled) {
            pd_attach_running(link, -1);
            pd_attempts_handed(&attach->attempts, entry);
        } else {
            pd_attach_attempt_over(attach, entry);
        }
    }
}

static void send_share(struct pd_link *link, struct pd_attach *attach,
                       const struct pd_step_message *from, const Pd__V1__LoadReport *load)
{
    Pd__V1__FromWorker message = PD__V1__FROM_WORKER__INIT;
    Pd__V1__Step *step = &attach->step;
    Pd__V1__LoadReport own;
    bool whole = load && step->sequences;

    for (size_t i = 0; whole && i < step->n_sequences; i++)
        whole = step->sequences[i] != NULL;
    if (!whole) {
        pd_attach_cut(attach, "out of memory");
        return;
    }
    own = *load;
    pd_attach_number_report(attach, &own);
    step->step = from->step;
    step->load = &own;
    message.kind_case = PD__V1__FROM_WORKER__KIND_STEP;
    message.step = step;
    link->counters.step_messages++;
    pd_attach_send(attach, &message);
}

void pd_delivery_step(struct pd_link *link, const struct pd_step_message *message)
{
    struct pd_attach *shares = NULL, *next;
    Pd__V1__LoadReport *load = NULL;

    pd_scratch_reset(&link->scratch);
    for (size_t i = 0; i < message->count; i++) {
        const struct pd_output *output = &message->outputs[i];
        struct pd_attach *attach = pd_attach_find(link, output->id.attach);

        if (attach && attach->next_step == NULL) {
            pd__v1__step__init(&attach->step);
            attach->next_step = shares ? shares : attach; /* the last one points to itself */
            shares = attach;
        }
        if (attach)
            add_share(link, attach, message->count - i, output);
    }
    if (shares)
        load = pd_report_load(link, &link->scratch);
    for (; shares; shares = next) {
        next = shares->next_step == shares ? NULL : shares->next_step;
        shares->next_step = NULL;
        if (shares->step.sequences)
            send_share(link, shares, message, load);
    }
}
