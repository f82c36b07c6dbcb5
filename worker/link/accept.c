/* The linker takes an executable's own function before the C library's of the same name, and so
 * does the loader for the shared libraries: every accept4 of this process is the one below.
 *
 * The system gives the lowest free number to a new file. A connection whose number is among the
 * last ones that the limit allows shows that files run out: it is closed at once, and what is kept
 * serves KV links and the calls that this worker makes itself. A failure that passes is reported as
 * "nothing there yet", for which every caller knows to wait. */
#include "worker/link/accept.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker/base/log.h"

enum { FILES_KEPT = 64 };

static atomic_uint_fast64_t refused;

uint64_t pd_accept_refused(void)
{
    return atomic_load_explicit(&refused, memory_order_relaxed);
}

static bool is_among_last(int fd)
{
    struct rlimit files;

    return getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > FILES_KEPT &&
           (rlim_t)fd >= files.rlim_cur - FILES_KEPT;
}

/* One line for the first, the second, the fourth, ...: a flood does not fill the log. */
static void refuse(int fd)
{
    uint64_t count = atomic_fetch_add_explicit(&refused, 1, memory_order_relaxed) + 1;

    close(fd);
    if ((count & (count - 1)) == 0)
        pd_log(PD_LOG_WARN, "link",
               "connections use up the files that may be open (ulimit -n): %llu refused",
               (unsigned long long)count);
}

int accept4(int listener, struct sockaddr *restrict address, socklen_t *restrict length, int flags)
{
    socklen_t room = length ? *length : 0;

    for (;;) {
        int fd = (int)syscall(SYS_accept4, listener, address, length, flags);

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ||
                errno == ECONNABORTED || errno == EPROTO || errno == ENETDOWN)
                errno = EAGAIN;
            return -1;
        }
        if (!is_among_last(fd))
            return fd;
        refuse(fd);
        if (length)
            *length = room;
    }
}
