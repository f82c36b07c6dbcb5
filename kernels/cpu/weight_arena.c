#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/cpu/weight_arena.h"

static const size_t PIECE = (size_t)32 << 20, HUGE_PAGE = (size_t)2 << 20, TAIL = 64;

struct piece {
    struct piece *next;
    uint8_t *memory;
    size_t size, used;
    int live; /* blocks taken and not returned */
};

struct pd_weight_arena {
    pthread_mutex_t lock;
    struct piece *pieces; /* the first is the one being filled */
};

struct pd_weight_arena *pd_weight_arena_create(void)
{
    struct pd_weight_arena *arena = calloc(1, sizeof(*arena));

    if (arena != NULL && pthread_mutex_init(&arena->lock, NULL) != 0) {
        free(arena);
        return NULL;
    }
    return arena;
}

static void free_piece(struct piece *piece)
{
    munmap(piece->memory, piece->size);
    free(piece);
}

void pd_weight_arena_destroy(struct pd_weight_arena *arena)
{
    while (arena->pieces != NULL) {
        struct piece *piece = arena->pieces;
        arena->pieces = piece->next;
        free_piece(piece);
    }
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

/* Maps one huge page more than asked, and gives back what lies outside the alignment. */
static uint8_t *map_aligned(size_t size)
{
    uint8_t *memory = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;

    if (memory == MAP_FAILED)
        return NULL;
    before = -(uintptr_t)memory % HUGE_PAGE;
    if (before > 0)
        munmap(memory, before);
    munmap(memory + before + size, HUGE_PAGE - before);
    madvise(memory + before, size, MADV_HUGEPAGE); /* a wish */
    return memory + before;
}

static struct piece *add_piece(struct pd_weight_arena *arena, size_t bytes)
{
    struct piece *piece = calloc(1, sizeof(*piece));

    if (piece == NULL)
        return NULL;
    piece->size = bytes > PIECE ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : PIECE;
    piece->memory = map_aligned(piece->size);
    if (piece->memory == NULL) {
        free(piece);
        return NULL;
    }
    piece->next = arena->pieces;
    arena->pieces = piece;
    return piece;
}

void *pd_weight_arena_take(struct pd_weight_arena *arena, size_t bytes)
{
    struct piece *piece;
    void *memory = NULL;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + TAIL + 63) & ~(size_t)63;
    pthread_mutex_lock(&arena->lock);
    piece = arena->pieces;
    if (piece == NULL || piece->size - piece->used < bytes)
        piece = add_piece(arena, bytes);
    if (piece != NULL) {
        memory = piece->memory + piece->used;
        piece->used += bytes;
        piece->live++;
    }
    pthread_mutex_unlock(&arena->lock);
    return memory;
}

void pd_weight_arena_return(struct pd_weight_arena *arena, void *memory)
{
    uint8_t *at = memory;

    if (memory == NULL)
        return;
    pthread_mutex_lock(&arena->lock);
    for (struct piece **link = &arena->pieces; *link != NULL; link = &(*link)->next) {
        struct piece *piece = *link;

        if (at < piece->memory || at >= piece->memory + piece->size)
            continue;
        if (--piece->live == 0) {
            *link = piece->next;
            free_piece(piece);
        }
        break;
    }
    pthread_mutex_unlock(&arena->lock);
}
