/* Huge pages for shared memory that fills up little by little.
 *
 * Attention reads the KV pool in tiles of a few kilobytes all over it; on small pages a third of its time
 * goes into finding them. But as a rule a system gives huge pages to shared memory only when asked for
 * each place (MADV_COLLAPSE, Linux 6.1), and only where something lies already. So a thread of its own
 * looks, now and then, for regions in which something has been written since, and asks: one at a time, with a pause,
 * since each is copied, for a millisecond or two of a core on which somebody may compute, and whoever writes to it waits.
 * What has been written the file itself tells (SEEK_DATA), so that a look costs next to nothing; where it finds nothing the
 * next one comes later.
 *
 *     regions of 2 MiB   [ huge ][ huge ][written][ empty ][ empty ] ...
 *                                           └──▶ huge, at the next look
 *
 * A pool therefore takes no more memory than was ever written, in whole regions. */
#ifndef PD_PAGES_H
#define PD_PAGES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct pd_pages;

/* Maps `bytes` of a file that is shared, where a huge page can begin; MAP_FAILED with errno. */
void *pd_pages_map(int fd, size_t bytes, int protection);

/* Begins to look after memory from pd_pages_map of the file `fd`, whenever the word at `clock` has moved (NULL: without
 * waiting for anything) until all of it is huge. NULL where the system cannot, or has no memory or thread
 * for it: nothing is lost but speed. All three must stay until pd_pages_release. */
struct pd_pages *pd_pages_watch(int fd, void *memory, size_t bytes, const _Atomic uint64_t *clock);

/* Ends it; NULL is allowed. */
void pd_pages_release(struct pd_pages *pages);

#endif
