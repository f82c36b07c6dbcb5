/* The cpu backend, for now by the reference's loops on a team of threads. */
#include "kernels/reference/reference.h"

static int cpu_open(const struct pd_device_options *options, struct pd_device **device, char *error,
                    size_t size)
{
    struct pd_device_options own = *options;

    if (own.threads == 0)
        own.threads = 2;
    return pd_backend_reference.open(&own, device, error, size);
}

const struct pd_backend pd_backend_cpu = {.kind = "cpu", .open = cpu_open};
