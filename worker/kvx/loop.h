/* One thread's descriptors: epoll with owners. A watch may be removed at any moment, also by the
 * handler of another one in the same turn: its pending event is then dropped. Other threads may
 * only wake it. */
#ifndef PD_KVX_LOOP_H
#define PD_KVX_LOOP_H

#include <stdint.h>
#include <sys/epoll.h>

enum { PD_LOOP_BATCH = 64 };

/* Lives inside its owner; see PD_OWNER in list.h. */
struct pd_watch {
    int fd;          /* -1: not watched */
    uint32_t events; /* EPOLLIN, EPOLLOUT; level-triggered */
    void (*handle)(struct pd_watch *watch, uint32_t events);
};

struct pd_loop {
    int epoll, wake; /* wake: an eventfd, watched like any other */
    struct pd_watch wake_watch;
    int count; /* of the batch that is being handled */
    struct epoll_event batch[PD_LOOP_BATCH];
};

/* PD_OK or PD_IO (errno tells; the loop may be freed all the same). */
int pd_loop_init(struct pd_loop *loop);
void pd_loop_free(struct pd_loop *loop);

int pd_loop_add(struct pd_loop *loop, struct pd_watch *watch, int fd, uint32_t events);
void pd_loop_change(struct pd_loop *loop, struct pd_watch *watch, uint32_t events);
/* Forgets the descriptor and leaves it open. Harmless for a watch that has none. */
void pd_loop_remove(struct pd_loop *loop, struct pd_watch *watch);

/* Ends the wait of the turn that is under way, or of the next one. Any thread. */
void pd_loop_interrupt(struct pd_loop *loop);

/* Waits at most timeout_ms for events and handles a batch of them. */
void pd_loop_turn(struct pd_loop *loop, int timeout_ms);

#endif
