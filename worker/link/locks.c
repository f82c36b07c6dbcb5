#include "worker/link/locks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { IGNORE = 0, VERSIONS = 99 };

/* Debian names abseil's inline namespace after its own count of incompatible versions. The function is
 * abseil's public SetMutexDeadlockDetectionMode, which has no name for C. */
void pd_locks_unwatched(void)
{
    char space[16], name[96];

    for (int version = 1; version <= VERSIONS; version++) {
        void (*set_mode)(int);

        snprintf(space, sizeof(space), "debian%d", version);
        snprintf(name, sizeof(name),
                 "_ZN4absl%zu%s29SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE",
                 strlen(space), space);
        *(void **)&set_mode = dlsym(RTLD_DEFAULT, name);
        if (set_mode) {
            set_mode(IGNORE);
            return;
        }
    }
}
