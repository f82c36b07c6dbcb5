#include "worker/kvx/endpoint.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int pd_endpoint_parse(const char *text, struct addrinfo **found, struct pd_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    const char *colon = strrchr(text, ':');
    char host[PD_KV_ADDRESS];
    size_t length = colon ? (size_t)(colon - text) : 0;

    if (length >= 2 && text[0] == '[' && text[length - 1] == ']') {
        text++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof(host))
        return pd_fail(error, PD_INVALID, "the source's data address has no host and port");
    memcpy(host, text, length);
    host[length] = '\0';
    if (getaddrinfo(host, colon + 1, &hints, found) != 0)
        return pd_fail(error, PD_INVALID, "the source's data address is not numeric");
    return PD_OK;
}

int pd_endpoint_format(const struct sockaddr *address, socklen_t length, char text[PD_KV_ADDRESS])
{
    char host[NI_MAXHOST], port[NI_MAXSERV];
    int written;

    if (getnameinfo(address, length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return PD_IO;
    written = snprintf(text, PD_KV_ADDRESS, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s",
                       host, port);
    return written > 0 && written < PD_KV_ADDRESS ? PD_OK : PD_IO;
}

bool pd_endpoint_is_wildcard(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}
