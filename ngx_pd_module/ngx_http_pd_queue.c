
/*
 * The queue of a cluster: see ngx_http_pd_queue.h.
 */


#include "ngx_http_pd_queue.h"


#define NGX_HTTP_PD_QUEUE_UNIT     1024        /* of order, a token */
#define NGX_HTTP_PD_QUEUE_MEMORY   10000000    /* us of waiting, measured */
#define NGX_HTTP_PD_QUEUE_AT_ONCE  1000        /* us */
#define NGX_HTTP_PD_QUEUE_GRANT    256         /* as counted */
#define NGX_HTTP_PD_QUEUE_LATER    600         /* s, the most that is said */

#define NGX_HTTP_PD_QUEUE_SEVERAL  ((uint64_t) -1)


static ngx_uint_t ngx_http_pd_queue_turn(ngx_http_pd_zone_cluster_t *cluster);
static uint64_t ngx_http_pd_queue_interval(
    ngx_http_pd_zone_cluster_t *cluster);
static uint64_t ngx_http_pd_queue_ahead(ngx_http_pd_line_t *line,
    uint64_t order, uint64_t most);


#define ngx_http_pd_queue_record(node)                                       \
    ((ngx_http_pd_record_t *) ((u_char *) (node)                             \
                               - offsetof(ngx_http_pd_record_t, node)))


void
ngx_http_pd_queue_init(ngx_http_pd_zone_cluster_t *cluster)
{
    ngx_uint_t           i;
    ngx_http_pd_line_t  *line;

    for (i = 0; i < NGX_HTTP_PD_CLASSES; i++) {
        line = &cluster->lines[i];

        ngx_rbtree_init(&line->tree, &line->sentinel,
                        ngx_rbtree_insert_value);

        line->queued = 0;
        line->bytes = 0;
        line->model = 0;
    }

    cluster->queued = 0;
    cluster->moved = 0;
}


void
ngx_http_pd_queue_place(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t weight)
{
    uint64_t             start, *finish;
    ngx_http_pd_line_t  *line;

    line = &zone->sh->clusters[record->cluster].lines[record->class];

    start = line->now;

    if (record->account != NGX_HTTP_PD_NIL) {
        finish = &zone->sh->accounts[record->account].finish[record->class];

        start = ngx_max(start, *finish);

        record->cost = ((uint64_t) record->prompt + record->output)
                       * NGX_HTTP_PD_QUEUE_UNIT / ngx_max(weight, 1);

        *finish = start + record->cost;
        line->last = ngx_max(line->last, *finish);
    }

    record->node.key = start;
}


void
ngx_http_pd_queue_forgo(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record)
{
    uint64_t  *finish;

    if (record->account != NGX_HTTP_PD_NIL) {
        finish = &zone->sh->accounts[record->account].finish[record->class];
        *finish -= ngx_min(record->cost, *finish);
    }
}


void
ngx_http_pd_queue_insert(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_line_t          *line;
    ngx_http_pd_record_t        *record;
    ngx_http_pd_zone_cluster_t  *cluster;

    record = &zone->sh->records[index];
    cluster = &zone->sh->clusters[record->cluster];
    line = &cluster->lines[record->class];

    record->state = NGX_HTTP_PD_RECORD_QUEUED;
    record->since = ngx_http_pd_now_us();

    ngx_rbtree_insert(&line->tree, &record->node);

    if (line->queued++ == 0) {
        line->model = record->model;

    } else if (line->model != record->model) {
        line->model = NGX_HTTP_PD_QUEUE_SEVERAL;
    }

    line->bytes += record->bytes;

    if (cluster->queued++ == 0) {
        cluster->moved = record->since;
    }
}


void
ngx_http_pd_queue_remove(ngx_http_pd_zone_t *zone, uint32_t index)
{
    ngx_http_pd_line_t          *line;
    ngx_http_pd_record_t        *record;
    ngx_http_pd_zone_cluster_t  *cluster;

    record = &zone->sh->records[index];
    cluster = &zone->sh->clusters[record->cluster];
    line = &cluster->lines[record->class];

    ngx_rbtree_delete(&line->tree, &record->node);

    if (--line->queued == 0) {
        line->now = ngx_max(line->now, line->last);
    }

    line->bytes -= record->bytes;
    cluster->queued--;
}


void
ngx_http_pd_queue_served(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, ngx_uint_t waited)
{
    uint64_t                     now;
    ngx_http_pd_line_t          *line;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[record->cluster];
    line = &cluster->lines[record->class];

    line->now = ngx_max(line->now, record->node.key);

    if (!waited) {
        return;
    }

    if (record->class == NGX_HTTP_PD_CLASS_INTERACTIVE
        && cluster->lines[NGX_HTTP_PD_CLASS_STANDARD].queued)
    {
        cluster->passed++;

    } else {
        cluster->passed = 0;
    }

    now = ngx_http_pd_now_us();

    /* for whom there was room, his model's workers or one that came just now */

    if (now - record->since < NGX_HTTP_PD_QUEUE_AT_ONCE) {
        return;
    }

    cluster->waited += now - cluster->moved;
    cluster->grants += NGX_HTTP_PD_QUEUE_GRANT;
    cluster->moved = now;

    if (cluster->waited > NGX_HTTP_PD_QUEUE_MEMORY) {
        cluster->waited /= 2;
        cluster->grants /= 2;
    }
}


void
ngx_http_pd_queue_walk(ngx_http_pd_zone_cluster_t *cluster,
    ngx_http_pd_queue_walk_t *walk)
{
    ngx_uint_t           i;
    ngx_http_pd_line_t  *line;

    walk->cluster = cluster;

    for (i = 0; i < NGX_HTTP_PD_CLASSES; i++) {
        line = &cluster->lines[i];

        walk->next[i] = (line->tree.root == &line->sentinel)
                        ? NULL
                        : ngx_rbtree_min(line->tree.root, &line->sentinel);
    }
}


uint32_t
ngx_http_pd_queue_next(ngx_http_pd_zone_t *zone,
    ngx_http_pd_queue_walk_t *walk)
{
    ngx_uint_t          class;
    ngx_rbtree_node_t  *node;

    class = ngx_http_pd_queue_turn(walk->cluster);

    if (walk->next[class] == NULL) {
        class = !class;
    }

    node = walk->next[class];

    if (node == NULL) {
        return NGX_HTTP_PD_NIL;
    }

    walk->next[class] = ngx_rbtree_next(&walk->cluster->lines[class].tree,
                                        node);

    return ngx_http_pd_queue_record(node) - zone->sh->records;
}


void
ngx_http_pd_queue_stuck(ngx_http_pd_queue_walk_t *walk, uint64_t model)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_HTTP_PD_CLASSES; i++) {

        if (walk->cluster->lines[i].model == model) {
            walk->next[i] = NULL;
        }
    }
}


static ngx_uint_t
ngx_http_pd_queue_turn(ngx_http_pd_zone_cluster_t *cluster)
{
    return (cluster->passed >= NGX_HTTP_PD_QUEUE_TURN - 1)
           ? NGX_HTTP_PD_CLASS_STANDARD : NGX_HTTP_PD_CLASS_INTERACTIVE;
}


/* microseconds that one takes; 0: nobody knows yet */

static uint64_t
ngx_http_pd_queue_interval(ngx_http_pd_zone_cluster_t *cluster)
{
    uint64_t  waited;

    if (cluster->grants == 0) {
        return 0;
    }

    waited = cluster->waited;

    if (cluster->queued) {
        waited += ngx_http_pd_now_us() - cluster->moved;
    }

    return waited * NGX_HTTP_PD_QUEUE_GRANT / cluster->grants;
}


uint64_t
ngx_http_pd_queue_wait(ngx_http_pd_zone_t *zone,
    ngx_http_pd_record_t *record, uint64_t enough)
{
    uint64_t                     interval, ahead, most;
    ngx_http_pd_line_t          *lines;
    ngx_http_pd_zone_cluster_t  *cluster;

    cluster = &zone->sh->clusters[record->cluster];
    lines = cluster->lines;

    interval = ngx_http_pd_queue_interval(cluster);

    if (interval == 0) {
        return 0;
    }

    most = enough / interval + 1;

    ahead = ngx_http_pd_queue_ahead(&lines[record->class], record->node.key,
                                    most);

    if (record->class == NGX_HTTP_PD_CLASS_STANDARD) {
        ahead = ngx_min(ahead + lines[NGX_HTTP_PD_CLASS_INTERACTIVE].queued,
                        (ahead + 1) * NGX_HTTP_PD_QUEUE_TURN);

    } else if (lines[NGX_HTTP_PD_CLASS_STANDARD].queued) {
        ahead += ahead / (NGX_HTTP_PD_QUEUE_TURN - 1);
    }

    return (ahead + 1) * interval;
}


/* how many of the line come before that place; counted up to "most" */

static uint64_t
ngx_http_pd_queue_ahead(ngx_http_pd_line_t *line, uint64_t order,
    uint64_t most)
{
    uint64_t            n;
    ngx_rbtree_node_t  *node;

    if (line->tree.root == &line->sentinel) {
        return 0;
    }

    node = ngx_rbtree_min(line->tree.root, &line->sentinel);

    for (n = 0; node && node->key <= order && n < most; n++) {
        node = ngx_rbtree_next(&line->tree, node);
    }

    return n;
}


ngx_uint_t
ngx_http_pd_queue_drain(ngx_http_pd_zone_cluster_t *cluster)
{
    uint64_t  us;

    us = ngx_http_pd_queue_interval(cluster) * (cluster->queued + 1);

    return ngx_max(1, ngx_min((us + 999999) / 1000000,
                              NGX_HTTP_PD_QUEUE_LATER));
}
