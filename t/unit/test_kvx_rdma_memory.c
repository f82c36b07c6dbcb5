/* In which order a pool's memory is offered to a device of RDMA. The device is played: these functions
 * stand in for libibverbs'. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/kvx/rdma_memory.h"

static struct {
    bool dmabuf, peermem, host; /* what the device takes */
    char asked[256];
    struct ibv_mr region;
} device;

static struct ibv_mr *answer(bool takes, const char *way, void *address, size_t length)
{
    size_t used = strlen(device.asked);

    snprintf(device.asked + used, sizeof(device.asked) - used, "%s ", way);
    device.region = (struct ibv_mr){.addr = address, .length = length};
    errno = EOPNOTSUPP;
    return takes ? &device.region : NULL;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *domain, uint64_t offset, size_t length,
                                 uint64_t iova, int fd, int access)
{
    (void)domain;
    assert_int_equal(offset, 0);
    assert_int_equal(fd, 77);
    assert_int_equal(access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    return answer(device.dmabuf, "dmabuf", (void *)(uintptr_t)iova, length);
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *address, size_t length, int access)
{
    bool of_the_gpu = (uintptr_t)address == 0x7000;

    (void)domain;
    assert_int_equal(access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    return answer(of_the_gpu ? device.peermem : device.host, of_the_gpu ? "peermem" : "host",
                  address, length);
}

static bool copy(void *context, void *host, const struct pd_export_range *ranges, size_t count,
                 bool out)
{
    (void)context;
    (void)host;
    (void)ranges;
    (void)count;
    (void)out;
    return true;
}

static struct pd_rdma_memory registered(int fd, uint64_t address, bool summed, const char *asked)
{
    const struct pd_kv_pool shape = {NULL, 1, 1, 8, 4, 8, PD_F32};
    struct pd_export export = {
        .kind = PD_EXPORT_DEVICE, .fd = fd, .size = 1 << 20, .address = address, .copy = copy};
    struct pd_rdma_memory memory;
    struct pd_pool pool;
    struct pd_error error;

    assert_int_equal(pd_pool_map(&pool, &shape, 1, 0, &export, &error), PD_OK);
    device.asked[0] = '\0';
    if (pd_rdma_register(NULL, &pool, summed, &memory) != PD_OK)
        memory.region = NULL;
    else
        assert_ptr_equal(memory.region->addr,
                         memory.direct ? (void *)(uintptr_t)address : (void *)pool.base);
    assert_string_equal(device.asked, asked);
    pd_pool_unmap(&pool);
    return memory;
}

static void first_way_that_works_is_taken(void **state)
{
    struct pd_rdma_memory memory;

    (void)state;
    device.dmabuf = device.peermem = device.host = true;
    memory = registered(77, 0x7000, false, "dmabuf ");
    assert_true(memory.direct);
    assert_string_equal(memory.kind, "GPU memory by dmabuf");
    assert_string_equal(memory.why, "");

    memory = registered(-1, 0x7000, false, "peermem ");
    assert_true(memory.direct);
    assert_string_equal(memory.why, "no dmabuf: the device exports none");

    device.dmabuf = false;
    memory = registered(77, 0x7000, false, "dmabuf peermem ");
    assert_string_equal(memory.kind, "GPU memory by nvidia-peermem");

    device.peermem = false;
    memory = registered(77, 0x7000, false, "dmabuf peermem host ");
    assert_false(memory.direct);
    assert_string_equal(memory.kind, "host memory as a stage of the GPU's");
    assert_string_equal(memory.why,
                        "no dmabuf: Operation not supported; no nvidia-peermem: Operation "
                        "not supported");

    device.host = false;
    memory = registered(77, 0, false, "dmabuf host ");
    assert_null(memory.region);
}

static void bytes_that_are_to_be_summed_pass_through_the_host(void **state)
{
    struct pd_rdma_memory memory;

    (void)state;
    device.dmabuf = device.peermem = device.host = true;
    memory = registered(77, 0x7000, true, "host ");
    assert_false(memory.direct);
    assert_non_null(strstr(memory.why, "--kv-checksum"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_way_that_works_is_taken),
        cmocka_unit_test(bytes_that_are_to_be_summed_pass_through_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
