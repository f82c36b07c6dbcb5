#include "pdctl/flags.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_INDENT = 22 };

static int set_seconds(const struct pd_flag *flag, const char *text, struct pd_error *error)
{
    char *end;
    double seconds = strtod(text, &end);

    if (end == text || *end || !isfinite(seconds) || seconds < flag->low / 1e3 ||
        seconds > flag->high / 1e3)
        return pd_fail(error, PD_INVALID, "--%s %s: write seconds from %g to %g", flag->name, text,
                       flag->low / 1e3, flag->high / 1e3);
    *(uint32_t *)flag->target = (uint32_t)(seconds * 1e3 + 0.5);
    return PD_OK;
}

static int set(const struct pd_flag *flag, const char *text, struct pd_error *error)
{
    switch (flag->kind) {
    case PD_FLAG_SWITCH:
        *(bool *)flag->target = true;
        break;
    case PD_FLAG_SECONDS:
        return set_seconds(flag, text, error);
    case PD_FLAG_TEXT:
        if (!*text)
            return pd_fail(error, PD_INVALID, "--%s is empty: write --%s %s", flag->name,
                           flag->name, flag->value);
        *(const char **)flag->target = text;
        break;
    }
    return PD_OK;
}

static const struct pd_flag *find(const struct pd_flag *flags, const char *name, size_t length)
{
    for (; flags->name; flags++)
        if (strlen(flags->name) == length && !memcmp(flags->name, name, length))
            return flags;
    return NULL;
}

/* argv[*i] is a flag; *i moves on over a value of its own. */
static int parse_flag(int argc, char **argv, int *i, const struct pd_flag *flags,
                      struct pd_error *error)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct pd_flag *flag = find(flags, name, length);

    if (!flag)
        return pd_fail(error, PD_INVALID, "there is no flag --%.*s here; --help lists them",
                       (int)length, name);
    if (flag->kind == PD_FLAG_SWITCH && equals)
        return pd_fail(error, PD_INVALID, "--%s takes no value", flag->name);
    if (flag->kind != PD_FLAG_SWITCH && !equals && *i + 1 == argc)
        return pd_fail(error, PD_INVALID, "--%s needs a value: write --%s %s", flag->name,
                       flag->name, flag->value);
    if (flag->kind != PD_FLAG_SWITCH && !equals)
        (*i)++;
    return set(flag, equals ? equals + 1 : argv[*i], error);
}

static int take_operand(struct pd_arguments *arguments, char *text, struct pd_error *error)
{
    if (arguments->count == arguments->limit)
        return pd_fail(error, PD_INVALID, "\"%s\" is one argument too many", text);
    arguments->operands[arguments->count++] = text;
    return PD_OK;
}

int pd_flags_parse(int argc, char **argv, const struct pd_flag *flags,
                   struct pd_arguments *arguments, struct pd_error *error)
{
    bool only_operands = false;
    int status = PD_OK;

    for (int i = 0; i < argc && status == PD_OK; i++) {
        const char *word = argv[i];

        if (only_operands || *word != '-')
            status = take_operand(arguments, argv[i], error);
        else if (!strcmp(word, "--"))
            only_operands = true;
        else if (!strcmp(word, "--help") || !strcmp(word, "-h"))
            arguments->help = true;
        else if (word[1] != '-')
            status = pd_fail(error, PD_INVALID, "\"%s\" is no flag; --help lists them", word);
        else
            status = parse_flag(argc, argv, &i, flags, error);
        if (arguments->help)
            return PD_OK;
    }
    return status;
}

void pd_flags_help(const struct pd_flag *flags, FILE *out)
{
    for (; flags->name; flags++) {
        int column = fprintf(out, "  --%s%s%s", flags->name, flags->value ? " " : "",
                             flags->value ? flags->value : "");

        if (column > HELP_INDENT - 2) {
            fputc('\n', out);
            column = 0;
        }
        fprintf(out, "%*s%s\n", HELP_INDENT - column, "", flags->help);
    }
}
