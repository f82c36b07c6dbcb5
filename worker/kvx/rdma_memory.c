#include "worker/kvx/rdma_memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;

static void add_reason(struct pd_rdma_memory *memory, const char *way, const char *problem)
{
    size_t used = strlen(memory->why);

    snprintf(memory->why + used, sizeof(memory->why) - used, "%s%s: %s", used ? "; " : "", way,
             problem);
}

static bool by_descriptor(struct ibv_pd *domain, const struct pd_pool *pool,
                          struct pd_rdma_memory *memory)
{
    const struct pd_export *device = &pool->device[0];

    if (device->fd < 0) {
        add_reason(memory, "no dmabuf", "the device exports none");
        return false;
    }
    memory->region =
        ibv_reg_dmabuf_mr(domain, 0, pool->layout.bytes, device->address, device->fd, access);
    memory->kind = "GPU memory by dmabuf";
    if (!memory->region)
        add_reason(memory, "no dmabuf", strerror(errno));
    return memory->region != NULL;
}

static bool by_address(struct ibv_pd *domain, const struct pd_pool *pool,
                       struct pd_rdma_memory *memory)
{
    uint64_t address = pool->device[0].address;

    if (address == 0) {
        add_reason(memory, "no nvidia-peermem", "its address is not known");
        return false;
    }
    memory->region = ibv_reg_mr(domain, (void *)(uintptr_t)address, pool->layout.bytes, access);
    memory->kind = "GPU memory by nvidia-peermem";
    if (!memory->region)
        add_reason(memory, "no nvidia-peermem", strerror(errno));
    return memory->region != NULL;
}

int pd_rdma_register(struct ibv_pd *domain, const struct pd_pool *pool, bool summed,
                     struct pd_rdma_memory *memory)
{
    *memory = (struct pd_rdma_memory){.direct = true};
    if (pd_pool_on_device(pool) && summed)
        add_reason(memory, "not the GPU's own",
                   "checksums are taken in host memory (--kv-checksum)");
    else if (pd_pool_on_device(pool) && pool->layout.ranks > 1)
        add_reason(memory, "not the GPUs' own", "several ranks' memories are not one region");
    else if (pd_pool_on_device(pool) &&
             (by_descriptor(domain, pool, memory) || by_address(domain, pool, memory)))
        return PD_OK;
    memory->direct = false;
    memory->kind = pd_pool_on_device(pool) ? "host memory as a stage of the GPU's" : "host memory";
    memory->region = ibv_reg_mr(domain, pool->base, pool->layout.bytes, access);
    return memory->region ? PD_OK : PD_UNSUPPORTED;
}
