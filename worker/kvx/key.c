/* Keys of links: see transport.h. */
#include <openssl/crypto.h>
#include <sys/random.h>

#include "worker/kvx/transport.h"

int pd_transport_key(uint64_t *key)
{
    return getrandom(key, sizeof(*key), 0) == (ssize_t)sizeof(*key) ? PD_OK : PD_IO;
}

bool pd_transport_same_key(uint64_t a, uint64_t b)
{
    return CRYPTO_memcmp(&a, &b, sizeof(a)) == 0;
}
