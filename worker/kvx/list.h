/* A doubly linked list whose nodes live inside their owners, so that joining and leaving neither
 * allocates nor fails. A head is a node that is linked to itself. */
#ifndef PD_KVX_LIST_H
#define PD_KVX_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct pd_list {
    struct pd_list *previous, *next;
};

/* The structure of `type` whose `member` is at `pointer`. */
#define PD_OWNER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

static inline void pd_list_init(struct pd_list *node)
{
    node->previous = node->next = node;
}

static inline bool pd_list_empty(const struct pd_list *head)
{
    return head->next == head;
}

static inline void pd_list_append(struct pd_list *head, struct pd_list *node)
{
    node->previous = head->previous;
    node->next = head;
    head->previous->next = node;
    head->previous = node;
}

static inline void pd_list_prepend(struct pd_list *head, struct pd_list *node)
{
    pd_list_append(head->next, node);
}

/* Harmless for a node that is in no list (but initialised). */
static inline void pd_list_remove(struct pd_list *node)
{
    node->previous->next = node->next;
    node->next->previous = node->previous;
    pd_list_init(node);
}

#endif
