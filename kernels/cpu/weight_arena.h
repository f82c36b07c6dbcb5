/* Memory for weights: large pieces that the system can back with huge pages, handed out in 64-byte
 * steps. A small model has hundreds of matrices of a few hundred kilobytes; one mapping for each
 * would put every one of them on small pages. A piece is freed when all that was taken from it is.
 * Any thread. */
#ifndef PD_CPU_WEIGHT_ARENA_H
#define PD_CPU_WEIGHT_ARENA_H

#include <stddef.h>

struct pd_weight_arena;

struct pd_weight_arena *pd_weight_arena_create(void);
void pd_weight_arena_destroy(
    struct pd_weight_arena *arena); /* everything must have been returned */

/* 64-byte aligned, zeroed, readable for 64 bytes past its end. NULL if there is no memory. */
void *pd_weight_arena_take(struct pd_weight_arena *arena, size_t bytes);
void pd_weight_arena_return(struct pd_weight_arena *arena, void *memory);

#endif
