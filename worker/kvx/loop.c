#include "worker/kvx/loop.h"

#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "worker/base/error.h"

static void on_wake(struct pd_watch *watch, uint32_t events)
{
    eventfd_t count;

    (void)events;
    eventfd_read(watch->fd, &count);
}

int pd_loop_init(struct pd_loop *loop)
{
    loop->count = 0;
    loop->wake_watch.handle = on_wake;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->epoll < 0 || loop->wake < 0)
        return PD_IO;
    return pd_loop_add(loop, &loop->wake_watch, loop->wake, EPOLLIN);
}

void pd_loop_free(struct pd_loop *loop)
{
    if (loop->epoll >= 0)
        close(loop->epoll);
    if (loop->wake >= 0)
        close(loop->wake);
    loop->epoll = loop->wake = -1;
}

void pd_loop_interrupt(struct pd_loop *loop)
{
    eventfd_write(loop->wake, 1);
}

int pd_loop_add(struct pd_loop *loop, struct pd_watch *watch, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    watch->fd = -1;
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        return PD_IO;
    watch->fd = fd;
    watch->events = events;
    return PD_OK;
}

void pd_loop_change(struct pd_loop *loop, struct pd_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};

    if (watch->fd < 0 || watch->events == events)
        return;
    epoll_ctl(loop->epoll, EPOLL_CTL_MOD, watch->fd, &event);
    watch->events = events;
}

void pd_loop_remove(struct pd_loop *loop, struct pd_watch *watch)
{
    if (watch->fd < 0)
        return;
    epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->fd = -1;
    for (int i = 0; i < loop->count; i++)
        if (loop->batch[i].data.ptr == watch)
            loop->batch[i].data.ptr = NULL;
}

void pd_loop_turn(struct pd_loop *loop, int timeout_ms)
{
    loop->count = epoll_wait(loop->epoll, loop->batch, PD_LOOP_BATCH, timeout_ms);
    for (int i = 0; i < loop->count; i++) {
        struct pd_watch *watch = loop->batch[i].data.ptr;

        if (watch)
            watch->handle(watch, loop->batch[i].events);
    }
    loop->count = 0;
}
