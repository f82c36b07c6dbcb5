/* What a command of pdctl is: a name, its flags, its words of help, and a function that does it.
 *
 * Each command is one file that defines one `struct pd_command`; main.c lists them, parses their flags
 * and prints their help. A command writes what was asked for to stdout and what happens meanwhile to
 * stderr. */
#ifndef PDCTL_COMMAND_H
#define PDCTL_COMMAND_H

#include "pdctl/flags.h"
#include "worker/base/error.h"

enum { PD_OPERANDS_MAX = 2 };

/* Exit statuses, the same for all commands. */
enum { PD_EXIT_OK = 0, PD_EXIT_FAILED = 1, PD_EXIT_MISUSED = 2 };

struct pd_command {
    const char *name;
    const char *operands; /* as the usage line shows them, such as "WORKER" */
    int operand_count;    /* all are required */
    const char *summary;  /* one line, for the list of commands */
    const char *text;     /* paragraphs of its --help: what it does, what it prints, an example */
    const struct pd_flag *flags; /* ends with an entry without a name */

    /* Flags have been written to their targets. PD_EXIT_OK, or another status with *error filled:
     * main prints it. */
    int (*run)(char **operands, struct pd_error *error);
};

extern const struct pd_command pd_command_check;
extern const struct pd_command pd_command_drain;
extern const struct pd_command pd_command_status;

#endif
