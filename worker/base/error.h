/* One way to fail: a status to branch on and a sentence for the person who reads the log.
 *
 * A function that can fail for a reason worth telling takes a `struct pd_error *` as its last
 * argument, fills it with pd_fail() and returns the status. The sentence names the file, the limit
 * and the cure. Callers pass the same error up; nobody logs an error twice. */
#ifndef PD_ERROR_H
#define PD_ERROR_H

enum pd_status {
    PD_OK = 0,
    PD_INVALID = -1,     /* what was given is wrong; trying again cannot help */
    PD_UNSUPPORTED = -2, /* well-formed, but this build does not do it */
    PD_NOT_FOUND = -3,
    PD_FULL = -4, /* a stated limit is reached; later may work */
    PD_NO_MEMORY = -5,
    PD_IO = -6,      /* the operating system or a peer failed */
    PD_TIMEOUT = -7, /* a deadline passed */
    PD_CLOSED = -8,  /* the other end, or this object, is shutting down */
};

enum { PD_ERROR_TEXT = 512 };

struct pd_error {
    enum pd_status status;
    char text[PD_ERROR_TEXT]; /* one line, no trailing newline, always terminated */
};

/* Fills *error (may be NULL) and returns `status`, so that `return pd_fail(...)` reads as one step.
 * The text is cut at PD_ERROR_TEXT - 1 bytes. */
int pd_fail(struct pd_error *error, enum pd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text already in *error; returns its status. */
int pd_fail_in(struct pd_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
