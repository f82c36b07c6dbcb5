/* nginx's trees without nginx: the same order, and no balance. */
#include <ngx_config.h>
#include <ngx_core.h>

void ngx_rbtree_insert_value(ngx_rbtree_node_t *temp, ngx_rbtree_node_t *node,
                             ngx_rbtree_node_t *sentinel)
{
    ngx_rbtree_node_t **place;

    for (;;) {
        place = node->key < temp->key ? &temp->left : &temp->right;
        if (*place == sentinel)
            break;
        temp = *place;
    }
    *place = node;
    node->parent = temp;
    node->left = node->right = sentinel;
}

void ngx_rbtree_insert(ngx_rbtree_t *tree, ngx_rbtree_node_t *node)
{
    if (tree->root != tree->sentinel) {
        tree->insert(tree->root, node, tree->sentinel);
        return;
    }
    node->parent = NULL;
    node->left = node->right = tree->sentinel;
    tree->root = node;
}

static void replace(ngx_rbtree_t *tree, ngx_rbtree_node_t *node, ngx_rbtree_node_t *with)
{
    if (node->parent == NULL)
        tree->root = with;
    else if (node->parent->left == node)
        node->parent->left = with;
    else
        node->parent->right = with;
    if (with != tree->sentinel)
        with->parent = node->parent;
}

void ngx_rbtree_delete(ngx_rbtree_t *tree, ngx_rbtree_node_t *node)
{
    ngx_rbtree_node_t *next;

    if (node->left == tree->sentinel) {
        replace(tree, node, node->right);
    } else if (node->right == tree->sentinel) {
        replace(tree, node, node->left);
    } else {
        next = ngx_rbtree_min(node->right, tree->sentinel);
        if (next->parent != node) {
            replace(tree, next, next->right);
            next->right = node->right;
            next->right->parent = next;
        }
        replace(tree, node, next);
        next->left = node->left;
        next->left->parent = next;
    }
    memset(node, 0xee, sizeof *node); /* nobody looks at it any more */
}

ngx_rbtree_node_t *ngx_rbtree_next(ngx_rbtree_t *tree, ngx_rbtree_node_t *node)
{
    if (node->right != tree->sentinel)
        return ngx_rbtree_min(node->right, tree->sentinel);
    while (node->parent && node == node->parent->right)
        node = node->parent;
    return node->parent;
}
