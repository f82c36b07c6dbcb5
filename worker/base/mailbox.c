#include "worker/base/mailbox.h"

#include <errno.h>
#include <time.h>

#include "worker/base/error.h"

int pd_mailbox_init(struct pd_mailbox *box, size_t limit, void (*wake)(void *context),
                    void *context)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&box->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&box->arrived, &attributes);
    pthread_condattr_destroy(&attributes);
    box->first = NULL;
    box->last = &box->first;
    box->count = 0;
    box->limit = limit;
    box->closed = false;
    box->wake = wake;
    box->context = context;
    return PD_OK;
}

void pd_mailbox_destroy(struct pd_mailbox *box)
{
    pthread_cond_destroy(&box->arrived);
    pthread_mutex_destroy(&box->lock);
}

int pd_mailbox_put(struct pd_mailbox *box, struct pd_message *message, enum pd_mailbox_mode mode)
{
    bool was_empty;

    pthread_mutex_lock(&box->lock);
    if (box->closed || (mode == PD_MAILBOX_BOUNDED && box->count >= box->limit)) {
        int status = box->closed ? PD_CLOSED : PD_FULL;

        pthread_mutex_unlock(&box->lock);
        return status;
    }
    was_empty = box->first == NULL;
    message->next = NULL;
    *box->last = message;
    box->last = &message->next;
    box->count++;
    if (was_empty)
        pthread_cond_signal(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    if (was_empty && box->wake)
        box->wake(box->context);
    return PD_OK;
}

static void deadline_after(struct timespec *deadline, int timeout_ms)
{
    clock_gettime(CLOCK_MONOTONIC, deadline);
    deadline->tv_sec += timeout_ms / 1000;
    deadline->tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline->tv_nsec >= 1000000000) {
        deadline->tv_sec++;
        deadline->tv_nsec -= 1000000000;
    }
}

struct pd_message *pd_mailbox_take(struct pd_mailbox *box, int timeout_ms)
{
    struct pd_message *list;
    struct timespec deadline;

    if (timeout_ms > 0)
        deadline_after(&deadline, timeout_ms);
    pthread_mutex_lock(&box->lock);
    while (!box->first && !box->closed && timeout_ms != 0) {
        if (timeout_ms < 0)
            pthread_cond_wait(&box->arrived, &box->lock);
        else if (pthread_cond_timedwait(&box->arrived, &box->lock, &deadline) == ETIMEDOUT)
            break;
    }
    list = box->first;
    box->first = NULL;
    box->last = &box->first;
    box->count = 0;
    pthread_mutex_unlock(&box->lock);
    return list;
}

void pd_mailbox_close(struct pd_mailbox *box)
{
    pthread_mutex_lock(&box->lock);
    box->closed = true;
    pthread_cond_broadcast(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    if (box->wake)
        box->wake(box->context);
}
