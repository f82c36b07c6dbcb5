/* A file mapped for reading.
 *
 * Loaders work on (bytes, size) and never on the file again, so what was checked once stays
 * checked. The one thing that this cannot hold off is somebody who shortens a file in place while
 * it is mapped: replace model files by rename, never by overwriting (README.md says so to the
 * operator). */
#ifndef PD_MAPPING_H
#define PD_MAPPING_H

#include <stddef.h>
#include <stdint.h>

#include "worker/base/error.h"

enum { PD_FILE_NAME = 256 };

struct pd_mapping {
    const uint8_t *bytes;
    size_t size;
    char name[PD_FILE_NAME]; /* the path for error messages; the front of a long one is cut */
};

/* Maps a regular file of 1 to `limit` bytes (0: no limit). PD_NOT_FOUND if there is none. */
int pd_mapping_open(struct pd_mapping *mapping, const char *path, size_t limit,
                    struct pd_error *error);

/* A mapping of zeroes may be closed too. */
void pd_mapping_close(struct pd_mapping *mapping);

/* Tells the kernel that these bytes of a mapping will be read soon. Never fails, never waits for
 * the disk. */
void pd_read_ahead(const uint8_t *address, size_t length);

#endif
