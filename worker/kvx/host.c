#include "worker/kvx/host.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The kernel's own name for this boot: random, 36 characters. */
static bool boot_id(char *to, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length;

    if (fd < 0)
        return false;
    length = read(fd, to, size - 1);
    close(fd);
    if (length <= 0)
        return false;
    to[length] = '\0';
    to[strcspn(to, "\n")] = '\0';
    return true;
}

void pd_host_id(char id[PD_KV_NAME])
{
    char boot[64];
    struct stat user, network;

    id[0] = '\0';
    if (!boot_id(boot, sizeof(boot)) || stat("/proc/self/ns/user", &user) < 0 ||
        stat("/proc/self/ns/net", &network) < 0)
        return;
    snprintf(id, PD_KV_NAME, "%s-u%llx-n%llx-%x", boot, (unsigned long long)user.st_ino,
             (unsigned long long)network.st_ino, (unsigned)geteuid());
}
