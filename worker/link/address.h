/* host:port as people and peers write it.
 *
 * gRPC reads a target as a URI ("unix:/run/x.sock" opens a socket, "xds:..." asks a control plane),
 * so an address that came from a ticket or a flag is only ever used after it has been checked here
 * and turned into "dns:///host:port". */
#ifndef PD_ADDRESS_H
#define PD_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PD_ADDRESS_MAX = 256 };

struct pd_address {
    char host[PD_ADDRESS_MAX + 1]; /* without brackets */
    uint16_t port;
};

/* "10.0.0.1:9000", "worker1.rack:9000" or "[fd00::1]:9000"; port 1..65535. False for anything else.
 */
bool pd_address_parse(const char *text, struct pd_address *address);

/* Whether `host` is a name or a numeric address that may stand in an address. */
bool pd_address_host_valid(const char *host);

/* Writes host:port with brackets where IPv6 needs them; false if it does not fit. */
bool pd_address_format(const char *host, int port, char *text, size_t size);

/* 0.0.0.0, ::, or empty: every interface, so no peer can use it as a name. */
bool pd_address_is_wildcard(const char *host);

/* Loopback, private (RFC 1918, RFC 4193), link-local, or a name, which this function cannot judge.
 */
bool pd_address_is_private(const char *host);

#endif
