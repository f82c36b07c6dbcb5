/* Memory that the engine cannot go on without.
 *
 * A message that ends something (a released ticket, a cancel) may not be lost: its blocks would be
 * held for ever. These are a few hundred bytes each; a machine that has not even that left is
 * better off with a worker that ends, says why, and is started again. Everything whose size a
 * client decides is allocated by other means and refused. */
#ifndef PD_MUST_H
#define PD_MUST_H

#include <stddef.h>

void *pd_must_alloc(size_t size); /* zeroed */
void *pd_must_realloc(void *memory, size_t size);

#endif
