/* Whether two processes can share memory: equal host ids mean the same running kernel, the same
 * user and network namespaces (abstract sockets are found within one), and the same user. */
#ifndef PD_KVX_HOST_H
#define PD_KVX_HOST_H

#include "worker/kvx/messages.h"

/* Empty if the kernel does not tell: then nothing is shared. */
void pd_host_id(char id[PD_KV_NAME]);

#endif
