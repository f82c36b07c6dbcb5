#include "worker/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int pd_fail(struct pd_error *error, enum pd_status status, const char *format, ...)
{
    va_list args;

    if (!error)
        return status;
    error->status = status;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    return status;
}

int pd_fail_in(struct pd_error *error, const char *format, ...)
{
    char cause[PD_ERROR_TEXT];
    va_list args;
    int n;

    if (!error)
        return PD_INVALID;
    memcpy(cause, error->text, sizeof(cause));
    va_start(args, format);
    n = vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof(error->text))
        snprintf(error->text + n, sizeof(error->text) - (size_t)n, ": %s", cause);
    return error->status;
}
