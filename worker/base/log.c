#include "worker/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048 };

static atomic_int log_level = PD_LOG_INFO;

void pd_log_set_level(enum pd_log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool pd_log_shows(enum pd_log_level level)
{
    return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void pd_log(enum pd_log_level level, const char *room, const char *format, ...)
{
    static const char *const names[] = {"debug", "info ", "warn ", "error"};
    char line[LINE_MAX_BYTES];
    struct timespec now;
    struct tm utc;
    va_list args;
    int head, body, end;

    if (!pd_log_shows(level))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    head = (int)strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &utc);
    head += snprintf(line + head, sizeof(line) - (size_t)head,
                     ".%03ldZ %s %s: ", now.tv_nsec / 1000000, names[level], room);
    va_start(args, format);
    body = vsnprintf(line + head, sizeof(line) - (size_t)head - 1, format, args);
    va_end(args);
    end = head + (body < 0 ? 0 : body);
    if (end > LINE_MAX_BYTES - 2)
        end = LINE_MAX_BYTES - 2;
    for (int i = head; i < end; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[end++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)end) < 0) {
        /* Nobody is left to tell. */
    }
}
