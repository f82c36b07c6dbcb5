#include "worker/link/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pd_address_host_valid(const char *host)
{
    struct in6_addr six;
    size_t length = strlen(host);

    if (length == 0 || length > 253)
        return false;
    if (strchr(host, ':'))
        return inet_pton(AF_INET6, host, &six) == 1;
    for (const char *p = host; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-' && *p != '_')
            return false;
    return true;
}

static bool parse_port(const char *text, uint16_t *port)
{
    char *end;
    unsigned long value;

    if (!isdigit((unsigned char)*text) || strlen(text) > 5)
        return false;
    value = strtoul(text, &end, 10);
    if (*end || value == 0 || value > 65535)
        return false;
    *port = (uint16_t)value;
    return true;
}

bool pd_address_parse(const char *text, struct pd_address *address)
{
    const char *colon = strrchr(text, ':');
    const char *first = text;
    size_t length;

    if (strlen(text) > PD_ADDRESS_MAX || !colon || !parse_port(colon + 1, &address->port))
        return false;
    length = (size_t)(colon - text);
    if (*text == '[') {
        if (length < 3 || text[length - 1] != ']')
            return false;
        first++;
        length -= 2;
    } else if (memchr(text, ':', length)) {
        return false; /* IPv6 without brackets: where the port begins would be a guess */
    }
    memcpy(address->host, first, length);
    address->host[length] = '\0';
    return pd_address_host_valid(address->host) && (*text != '[' || strchr(address->host, ':'));
}

bool pd_address_format(const char *host, int port, char *text, size_t size)
{
    const char *form = strchr(host, ':') ? "[%s]:%d" : "%s:%d";
    int length = snprintf(text, size, form, host, port);

    return length > 0 && (size_t)length < size;
}

bool pd_address_is_wildcard(const char *host)
{
    struct in_addr four;
    struct in6_addr six;

    if (!*host)
        return true;
    if (inet_pton(AF_INET, host, &four) == 1)
        return four.s_addr == htonl(INADDR_ANY);
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_UNSPECIFIED(&six);
}

static bool four_is_private(uint32_t ip)
{
    static const struct {
        uint32_t network, mask;
    } ranges[] = {
        {0x0a000000, 0xff000000}, /* 10/8 */
        {0x7f000000, 0xff000000}, /* 127/8 */
        {0xa9fe0000, 0xffff0000}, /* 169.254/16 */
        {0xac100000, 0xfff00000}, /* 172.16/12 */
        {0xc0a80000, 0xffff0000}, /* 192.168/16 */
        {0x64400000, 0xffc00000}, /* 100.64/10, carrier grade and overlay networks */
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++)
        if ((ip & ranges[i].mask) == ranges[i].network)
            return true;
    return false;
}

bool pd_address_is_private(const char *host)
{
    struct in_addr four;
    struct in6_addr six;

    if (inet_pton(AF_INET, host, &four) == 1)
        return four_is_private(ntohl(four.s_addr));
    if (inet_pton(AF_INET6, host, &six) != 1)
        return !pd_address_is_wildcard(host);
    if (IN6_IS_ADDR_V4MAPPED(&six))
        return four_is_private((uint32_t)six.s6_addr[12] << 24 | (uint32_t)six.s6_addr[13] << 16 |
                               (uint32_t)six.s6_addr[14] << 8 | six.s6_addr[15]);
    return IN6_IS_ADDR_LOOPBACK(&six) || IN6_IS_ADDR_LINKLOCAL(&six) ||
           (six.s6_addr[0] & 0xfe) == 0xfc;
}
