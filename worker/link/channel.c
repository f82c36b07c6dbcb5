#include "worker/link/channel.h"

#include <grpc/grpc.h>
#include <stdio.h>

#include "worker/link/address.h"

enum { WINDOW_BYTES = 1 << 20 };

static grpc_arg integer(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

grpc_channel *pd_channel_create(grpc_channel_credentials *credentials, const char *address,
                                int receive_max)
{
    grpc_arg arguments[] = {
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, receive_max),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0), /* its PINGs make nginx drop connections */
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WINDOW_BYTES),
        integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer(GRPC_ARG_ENABLE_RETRIES, 0),
        integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1), /* one connection per link, not shared */
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1), /* identity only */
        integer(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200),
        integer(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 200),
        integer(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
    };
    grpc_channel_args args = {sizeof(arguments) / sizeof(*arguments), arguments};
    struct pd_address parsed;
    char target[PD_ADDRESS_MAX + 16];

    if (!pd_address_parse(address, &parsed))
        return NULL;
    snprintf(target, sizeof(target), "dns:///%s", address);
    return grpc_channel_create(target, credentials, &args);
}
