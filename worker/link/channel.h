/* Dialling: a client channel to host:port with this house's arguments, for whoever calls from a worker
 * or to one. */
#ifndef PD_CHANNEL_H
#define PD_CHANNEL_H

#include <grpc/grpc_security.h>

/* NULL if the address is none. Connects with the first call, and again after a loss, at most every two
 * seconds; no proxy, no compression, a connection of its own. `receive_max`: bytes of the largest
 * message that is taken. The caller destroys it. */
grpc_channel *pd_channel_create(grpc_channel_credentials *credentials, const char *address,
                                int receive_max);

#endif
