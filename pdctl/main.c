/* pdctl: the operator's tool. It finds the command, parses its flags, and lets it work. */
#include <grpc/grpc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "pdctl/command.h"
#include "worker/base/log.h"
#include "worker/version.h"

static const struct pd_command *const commands[] = {
    &pd_command_status,
    &pd_command_drain,
    &pd_command_check,
};

#define COMMANDS (sizeof(commands) / sizeof(*commands))

static void help(FILE *out)
{
    fputs("Usage: pdctl COMMAND [flags]\n\n"
          "Looks into a running cluster of ngx_pd and takes parts of it out of service.\n\n",
          out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-8s %-14s %s\n", commands[i]->name, commands[i]->operands,
                commands[i]->summary);
    fputs("\nWORKER, PREFILL and DECODE are HOST:PORT, where a pd-worker listens: the address that "
          "nginx knows it by.\n"
          "pdctl COMMAND --help tells the rest. Exit status: 0 done, 1 failed, 2 misused.\n",
          out);
}

static void help_command(const struct pd_command *command)
{
    printf("Usage: pdctl %s %s [flags]\n\n%s\n", command->name, command->operands, command->text);
    pd_flags_help(command->flags, stdout);
}

static const struct pd_command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i]->name, name))
            return commands[i];
    return NULL;
}

static int misused(const char *what, const struct pd_error *error)
{
    fprintf(stderr, "pdctl%s%s: %s\n", *what ? " " : "", what, error->text);
    return PD_EXIT_MISUSED;
}

static int run(const struct pd_command *command, int argc, char **argv)
{
    char *operands[PD_OPERANDS_MAX];
    struct pd_arguments arguments = {operands, 0, command->operand_count, false};
    struct pd_error error = {0};
    int status;

    if (pd_flags_parse(argc, argv, command->flags, &arguments, &error) != PD_OK)
        return misused(command->name, &error);
    if (arguments.help) {
        help_command(command);
        return PD_EXIT_OK;
    }
    if (arguments.count < command->operand_count) {
        pd_fail(&error, PD_INVALID, "write pdctl %s %s", command->name, command->operands);
        return misused(command->name, &error);
    }
    status = command->run(operands, &error);
    if (status != PD_EXIT_OK)
        fprintf(stderr, "pdctl %s: %s\n", command->name, error.text);
    return status;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "--help";
    const struct pd_command *command = find(name);
    struct pd_error error = {0};

    signal(SIGPIPE, SIG_IGN);
    pd_log_set_level(PD_LOG_ERROR);
    if (command)
        return run(command, argc - 2, argv + 2);
    if (!strcmp(name, "--version")) {
        printf("pdctl %s (gRPC %s)\n", PD_VERSION, grpc_version_string());
        return PD_EXIT_OK;
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        help(argc > 1 ? stdout : stderr);
        return argc > 1 ? PD_EXIT_OK : PD_EXIT_MISUSED;
    }
    pd_fail(&error, PD_INVALID, "there is no command \"%s\"; pdctl --help lists them", name);
    return misused("", &error);
}
