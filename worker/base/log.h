/* The worker's log: one line per event on stderr, in the order of the clock.
 *
 *     2026-01-31T12:00:00.123Z info  engine: step=1042 ...
 *
 * A line is built whole and written with one write(2), so lines of threads never mix. systemd and
 * container runtimes collect stderr; the worker opens no log file of its own. */
#ifndef PD_LOG_H
#define PD_LOG_H

#include <stdbool.h>

enum pd_log_level { PD_LOG_DEBUG, PD_LOG_INFO, PD_LOG_WARN, PD_LOG_ERROR };

/* Lines below `level` are dropped. Any thread; default PD_LOG_INFO. */
void pd_log_set_level(enum pd_log_level level);

/* Whether a line of that level would be written: for lines whose words cost something. Any thread. */
bool pd_log_shows(enum pd_log_level level);

/* Writes one line; `room` is the part of the house that speaks ("engine", "kvx", ...). Control
 * characters in the message are replaced, so that a peer's text cannot forge a line. Any thread;
 * at most 2 KiB, longer messages are cut. */
void pd_log(enum pd_log_level level, const char *room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
