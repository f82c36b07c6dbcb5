/* Which transports there are. The simulated one of the tests is not among them: a daemon that can be
 * told to move nothing over no wire is a daemon that will be told so. Tests link a table of their own
 * in place of this one. */
#include "worker/kvx/transport.h"

const struct pd_transport_maker pd_transport_makers[] = {
    {"gpu", true, true, false, pd_gpu_create},
    {"shm", true, false, false, pd_shm_create},
    {"rdma", false, false, false, pd_rdma_create},
    {"tcp", false, false, true, pd_tcp_create},
    {NULL, false, false, false, NULL},
};
