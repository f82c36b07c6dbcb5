/* A mailbox: how one thread of the worker tells another something.
 *
 * Each room that owns state has one thread and one mailbox; nobody else touches that state. Senders
 * append, the owner takes the whole list at once. A message is allocated by the sender and belongs
 * to the owner once pd_mailbox_put() has returned PD_OK.
 *
 *     sender ──put──▶ [m3 m2 m1] ──take──▶ owner        wake: condition variable, or the
 *                                                      owner's own hook (eventfd, gRPC queue)
 *
 * The limit counts messages that wait. Work that a client can cause without end (submissions) is
 * refused at the limit; a message that ends something (cancel, release) is put with
 * PD_MAILBOX_ALWAYS, since their number is bounded by the objects they end. */
#ifndef PD_MAILBOX_H
#define PD_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* First member of every message type. */
struct pd_message {
    struct pd_message *next;
    int kind; /* the owner's own enum */
};

enum pd_mailbox_mode { PD_MAILBOX_BOUNDED, PD_MAILBOX_ALWAYS };

struct pd_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct pd_message *first, **last;
    size_t count, limit;
    bool closed;
    void (*wake)(void *context); /* called after the first put into an empty box; may be NULL */
    void *context;
};

/* `limit` > 0. `wake` runs on the sender's thread and must not block. */
int pd_mailbox_init(struct pd_mailbox *box, size_t limit, void (*wake)(void *context),
                    void *context);

/* The box must be empty and no sender left. */
void pd_mailbox_destroy(struct pd_mailbox *box);

/* PD_OK, PD_FULL (bounded mode only) or PD_CLOSED; on failure the message stays the sender's. Any
 * thread. */
int pd_mailbox_put(struct pd_mailbox *box, struct pd_message *message, enum pd_mailbox_mode mode);

/* Takes all messages, oldest first, as a list linked by `next`; NULL if none. Waits at most
 * `timeout_ms` for the first one (0: does not wait, < 0: until one comes or the box is closed). */
struct pd_message *pd_mailbox_take(struct pd_mailbox *box, int timeout_ms);

/* No put succeeds from here on; a waiting take returns. */
void pd_mailbox_close(struct pd_mailbox *box);

#endif
