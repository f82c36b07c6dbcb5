/* Flags of a command: one table that parses and explains them. `--flag value` and `--flag=value` are
 * the same; operands may stand before, between and behind flags; `--` ends the flags. What cannot be
 * understood is an error that says what to write instead. */
#ifndef PDCTL_FLAGS_H
#define PDCTL_FLAGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "worker/base/error.h"

enum pd_flag_kind {
    PD_FLAG_TEXT,    /* const char *, points into argv */
    PD_FLAG_SECONDS, /* uint32_t milliseconds; written in seconds, with a fraction if wanted */
    PD_FLAG_SWITCH,  /* bool */
};

struct pd_flag {
    const char *name;  /* without dashes; NULL ends a table */
    const char *value; /* what the help calls it; NULL for a switch */
    enum pd_flag_kind kind;
    void *target;       /* holds the default before flags are parsed */
    uint32_t low, high; /* PD_FLAG_SECONDS: bounds, in milliseconds */
    const char *help;   /* one sentence, its default in brackets */
};

struct pd_arguments {
    char **operands;
    int count, limit; /* `limit` is set by the caller */
    bool help;        /* --help or -h was given: the rest need not be complete */
};

/* Writes what argv[0..argc) says to the flags' targets and the rest to *arguments. */
int pd_flags_parse(int argc, char **argv, const struct pd_flag *flags,
                   struct pd_arguments *arguments, struct pd_error *error);

void pd_flags_help(const struct pd_flag *flags, FILE *out);

#endif
