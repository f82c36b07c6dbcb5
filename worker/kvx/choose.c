#include "worker/kvx/choose.h"

#include <stdio.h>
#include <string.h>

static const struct pd_transport_option *find(const struct pd_transport_option *options,
                                              size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

/* Why this one of the reader's wishes cannot be had; NULL if it can. */
static const char *obstacle(const struct pd_reader_hello *reader, const char *own_host_id,
                            const struct pd_transport_option *option)
{
    if (!option)
        return "the source does not offer it";
    if (option->why_not)
        return option->why_not;
    if (option->same_host_only &&
        (own_host_id[0] == '\0' || strcmp(reader->host_id, own_host_id) != 0))
        return "reader and source do not share host, namespaces and user";
    if (!option->same_host_only && option->tls != reader->tls)
        return option->tls
                   ? "the source encrypts its data connections, the reader does not (--kv-tls)"
                   : "the reader encrypts data connections, the source does not (--kv-tls)";
    return NULL;
}

int pd_transport_choose(const struct pd_reader_hello *reader, const char *own_host_id,
                        const struct pd_transport_option *options, size_t count,
                        char why[PD_KV_WHY])
{
    size_t used = 0;

    why[0] = '\0';
    for (size_t i = 0; i < reader->transport_count; i++) {
        const struct pd_transport_option *option = find(options, count, reader->transports[i]);
        const char *because = obstacle(reader, own_host_id, option);

        if (!because)
            return (int)(option - options);
        if (used < PD_KV_WHY)
            used += (size_t)snprintf(why + used, PD_KV_WHY - used, "%sno %s: %s", used ? "; " : "",
                                     reader->transports[i], because);
    }
    if (used == 0)
        snprintf(why, PD_KV_WHY, "the reader offers no transport");
    return -1;
}
