/* The reader's half of rdma: opens the queue pairs of a link, posts reads, collects completions.
 *
 * A read goes to one queue pair as a chain of work requests, of which only the last is signalled:
 * they complete in order, so its completion says that all of them have. A work request takes a run
 * of bytes that lie together on the source; where they go to several places here it gathers them.
 * Any failure, of a post or a completion, is the end of the whole link. */
#include "worker/kvx/rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "worker/kvx/endpoint.h"

struct queue {
    struct pd_rdma_owner owner;
    struct reader_end *end;
    uint64_t base; /* of the source's pool, as this connection's grant says */
    uint32_t rkey;
    const struct pd_read *reads[PD_RDMA_WINDOW]; /* posted, oldest first: a ring */
    size_t oldest, waiting;
};

struct reader_end {
    struct pd_reader_end base;
    uint64_t key, source_bytes;
    struct sockaddr_storage source;
    struct pd_rdma_device *device; /* with the first address that was resolved */
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    struct pd_watch watch;                        /* of the channel */
    const struct pd_read *landed[PD_RDMA_WINDOW]; /* not yet told, oldest first */
    size_t landed_count, in_flight;
    char lost[PD_KV_WHY]; /* not yet told; empty: nothing */
    struct pd_list in_busy, in_active;
    size_t ready, count;
    struct queue queues[PD_RDMA_QPS_MAX];
};

static struct pd_rdma *rdma_of(const struct reader_end *end)
{
    return (struct pd_rdma *)end->base.transport;
}

/* Reads that one queue pair takes: its share of the window. */
static size_t share(const struct reader_end *end)
{
    return (PD_RDMA_WINDOW + end->count - 1) / end->count;
}

/* ---- posting --------------------------------------------------------------------------------- */

struct chain {
    struct ibv_send_wr requests[PD_READ_RANGES];
    struct ibv_sge pieces[PD_READ_RANGES];
    size_t count;
};

/* Adds a range to the last work request, if the source has it right behind that one's bytes. */
static bool gather(struct chain *chain, const struct ibv_sge *piece, uint64_t from, uint64_t *next,
                   int most)
{
    struct ibv_send_wr *last = chain->count > 0 ? &chain->requests[chain->count - 1] : NULL;

    if (!last || *next != from || last->num_sge >= most)
        return false;
    last->sg_list[last->num_sge++] = *piece;
    *next += piece->length;
    return true;
}

static void build(struct chain *chain, const struct queue *queue, const struct pd_read *read)
{
    const struct pd_rdma_device *device = queue->end->device;
    uint64_t pool = (uintptr_t)device->pool.region->addr;
    int most = device->limits.max_sge < PD_RDMA_GATHER ? device->limits.max_sge : PD_RDMA_GATHER;
    uint64_t next = 0;

    chain->count = 0;
    for (size_t i = 0; i < read->count; i++) {
        const struct pd_range *range = &read->ranges[i];
        uint64_t from = queue->base + range->source;
        struct ibv_sge piece = {pool + range->destination, range->length,
                                device->pool.region->lkey};
        struct ibv_send_wr *request = &chain->requests[chain->count];

        if (gather(chain, &piece, from, &next, most))
            continue;
        chain->pieces[i] = piece;
        *request = (struct ibv_send_wr){.wr_id = (uint64_t)(queue - queue->end->queues),
                                        .sg_list = &chain->pieces[i],
                                        .num_sge = 1,
                                        .opcode = IBV_WR_RDMA_READ};
        request->wr.rdma.remote_addr = from;
        request->wr.rdma.rkey = queue->rkey;
        next = from + range->length;
        if (chain->count++ > 0)
            request[-1].next = request;
    }
    chain->requests[chain->count - 1].send_flags = IBV_SEND_SIGNALED;
}

int pd_rdma_read(struct pd_reader_end *base, const struct pd_read *read)
{
    struct reader_end *end = (struct reader_end *)base;
    struct queue *least = &end->queues[read->rail ? read->rail - 1 : 0];
    struct ibv_send_wr *bad;
    struct chain chain;

    for (size_t i = 1; i < end->count && !read->rail; i++)
        if (end->queues[i].waiting < least->waiting)
            least = &end->queues[i];
    if (least->waiting == share(end))
        return PD_FULL;
    build(&chain, least, read);
    if (ibv_post_send(least->owner.id->qp, chain.requests, &bad) != 0)
        return PD_IO;
    least->reads[(least->oldest + least->waiting++) % PD_RDMA_WINDOW] = read;
    if (end->in_flight++ == 0)
        pd_list_append(&rdma_of(end)->active, &end->in_active);
    return PD_OK;
}

/* ---- completions ----------------------------------------------------------------------------- */

static void set_lost(struct reader_end *end, const char *what, const char *why)
{
    if (end->lost[0] == '\0')
        snprintf(end->lost, sizeof(end->lost), "%s: %s", what, why);
}

static void take_completion(struct reader_end *end, const struct ibv_wc *completion)
{
    struct queue *queue;

    if (completion->status != IBV_WC_SUCCESS) {
        set_lost(end, "a read failed", ibv_wc_status_str(completion->status));
        return;
    }
    queue = &end->queues[completion->wr_id];
    end->landed[end->landed_count++] = queue->reads[queue->oldest];
    queue->oldest = (queue->oldest + 1) % PD_RDMA_WINDOW;
    queue->waiting--;
    if (--end->in_flight == 0)
        pd_list_remove(&end->in_active);
}

/* Takes what has completed. It is told in `work`, so that a link may end by it. */
static void collect(struct reader_end *end)
{
    struct ibv_wc completions[PD_RDMA_WINDOW];
    int count = ibv_poll_cq(end->completions, PD_RDMA_WINDOW, completions);

    if (count < 0)
        set_lost(end, "a read failed", "the completion queue cannot be read");
    for (int i = 0; i < count; i++)
        take_completion(end, &completions[i]);
    if ((end->landed_count > 0 || end->lost[0] != '\0') && pd_list_empty(&end->in_busy))
        pd_list_append(&rdma_of(end)->busy, &end->in_busy);
}

/* Asks for the next event before it looks, so that none falls between. */
static void on_completions(struct pd_watch *watch, uint32_t events)
{
    struct reader_end *end = PD_OWNER(watch, struct reader_end, watch);
    struct ibv_cq *queue;
    void *context;

    (void)events;
    if (ibv_get_cq_event(end->channel, &queue, &context) != 0)
        return;
    ibv_ack_cq_events(queue, 1);
    if (ibv_req_notify_cq(queue, 0) != 0)
        set_lost(end, "a read failed", "no more events of completions");
    collect(end);
}

/* Tells of one landed read, or of the end, of one link. Nothing is touched behind that. */
static void tell(struct pd_rdma *rdma)
{
    const struct pd_transport_events *raise = &rdma->base.events;
    struct reader_end *end = PD_OWNER(rdma->busy.next, struct reader_end, in_busy);
    const struct pd_read *read;
    char why[PD_KV_WHY];

    pd_list_remove(&end->in_busy);
    if (end->landed_count == 0) {
        memcpy(why, end->lost, sizeof(why));
        raise->reader_lost(raise->context, end->base.link, why);
        return;
    }
    read = end->landed[0];
    end->landed_count--;
    memmove(end->landed, end->landed + 1, end->landed_count * sizeof(*end->landed));
    if (end->landed_count > 0 || end->lost[0] != '\0')
        pd_list_append(&rdma->busy, &end->in_busy);
    raise->landed(raise->context, end->base.link, read);
}

bool pd_rdma_work(struct pd_transport *transport)
{
    struct pd_rdma *rdma = (struct pd_rdma *)transport;

    if (rdma->busy_poll)
        for (struct pd_list *at = rdma->active.next, *next; at != &rdma->active; at = next) {
            next = at->next;
            collect(PD_OWNER(at, struct reader_end, in_active));
        }
    for (unsigned n = 0; n < PD_RDMA_WINDOW && !pd_list_empty(&rdma->busy); n++)
        tell(rdma);
    return !pd_list_empty(&rdma->busy) || (rdma->busy_poll && !pd_list_empty(&rdma->active));
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* The completion queue has room for every work request of the link: after a failure each of them
 * completes by itself. */
static int make_completions(struct reader_end *end, struct pd_error *error)
{
    struct ibv_context *verbs = end->device->verbs;
    int room = (int)(end->count * share(end)) * PD_READ_RANGES;

    if (room > end->device->limits.max_cqe)
        room = end->device->limits.max_cqe;
    end->channel = ibv_create_comp_channel(verbs);
    if (end->channel)
        end->completions = ibv_create_cq(verbs, room, NULL, end->channel, 0);
    if (!end->completions || ibv_req_notify_cq(end->completions, 0) != 0)
        return pd_fail(error, PD_IO, "no completion queue: %s", strerror(errno));
    fcntl(end->channel->fd, F_SETFL, fcntl(end->channel->fd, F_GETFL) | O_NONBLOCK);
    if (pd_loop_add(end->base.transport->loop, &end->watch, end->channel->fd, EPOLLIN) != PD_OK)
        return pd_fail(error, PD_IO, "no epoll");
    return PD_OK;
}

static int on_address(struct queue *queue, struct pd_error *error)
{
    struct reader_end *end = queue->end;
    struct pd_rdma_device *device = pd_rdma_device_of(rdma_of(end), queue->owner.id, error);

    if (!device)
        return error->status;
    if (end->device && end->device != device)
        return pd_fail(error, PD_IO, "the ways of one link lead over two devices");
    if (!end->device) {
        end->device = device;
        if (make_completions(end, error) != PD_OK)
            return error->status;
    }
    if (rdma_resolve_route(queue->owner.id, rdma_of(end)->resolve_ms) != 0)
        return pd_fail(error, PD_IO, "no route: %s", strerror(errno));
    return PD_OK;
}

static int on_route(struct queue *queue, struct pd_error *error)
{
    struct reader_end *end = queue->end;
    const struct ibv_device_attr *limits = &end->device->limits;
    int gathered = limits->max_sge < PD_RDMA_GATHER ? limits->max_sge : PD_RDMA_GATHER;
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .send_cq = end->completions,
        .recv_cq = end->device->idle,
        .cap = {.max_send_wr = (uint32_t)(share(end) * PD_READ_RANGES),
                .max_recv_wr = 1,
                .max_send_sge = (uint32_t)gathered,
                .max_recv_sge = 1},
    };
    struct pd_rdma_request request;
    struct rdma_conn_param ask = {
        .private_data = &request,
        .private_data_len = sizeof(request),
        .initiator_depth =
            (uint8_t)(limits->max_qp_init_rd_atom < 128 ? limits->max_qp_init_rd_atom : 128),
        .retry_count = PD_RDMA_RETRIES,
    };

    memcpy(request.magic, PD_RDMA_MAGIC, sizeof(request.magic));
    pd_rdma_put(request.key, end->key, sizeof(request.key));
    if (rdma_create_qp(queue->owner.id, end->device->domain, &attributes) != 0)
        return pd_fail(error, PD_IO, "no queue pair: %s", strerror(errno));
    if (rdma_connect(queue->owner.id, &ask) != 0)
        return pd_fail(error, PD_IO, "no connection: %s", strerror(errno));
    return PD_OK;
}

/* The addresses in a grant are only ever used by the source's own device; that its pool is as large
 * as it said is checked all the same. */
static int on_established(struct queue *queue, const struct pd_rdma_event *event,
                          struct pd_error *error)
{
    const struct pd_rdma_grant *grant = (const struct pd_rdma_grant *)event->data;

    if (event->length < sizeof(*grant) ||
        memcmp(grant->magic, PD_RDMA_MAGIC, sizeof(grant->magic)) != 0)
        return pd_fail(error, PD_INVALID, "the source's answer is not of this protocol");
    if (pd_rdma_get(grant->bytes, sizeof(grant->bytes)) < queue->end->source_bytes)
        return pd_fail(error, PD_INVALID, "the source grants less than its pool");
    queue->base = pd_rdma_get(grant->base, sizeof(grant->base));
    queue->rkey = (uint32_t)pd_rdma_get(grant->rkey, sizeof(grant->rkey));
    queue->end->ready++;
    return PD_OK;
}

static int on_trouble(const struct pd_rdma_event *event, struct pd_error *error)
{
    switch (event->type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
        return pd_fail(error, PD_IO, "no RDMA device leads to the source: %s",
                       strerror(event->status < 0 ? -event->status : event->status));
    case RDMA_CM_EVENT_UNREACHABLE:
        return pd_fail(error, PD_IO,
                       "the source does not answer over RDMA; does a firewall stop UDP port 4791?");
    case RDMA_CM_EVENT_REJECTED:
        return pd_fail(error, PD_IO, "the source refused a queue pair");
    case RDMA_CM_EVENT_DISCONNECTED:
        return pd_fail(error, PD_IO, "the source closed a queue pair");
    default:
        return pd_fail(error, PD_IO, "%s (status %d)", rdma_event_str(event->type), event->status);
    }
}

static void on_connection(struct pd_rdma_owner *owner, const struct pd_rdma_event *event)
{
    struct queue *queue = PD_OWNER(owner, struct queue, owner);
    struct reader_end *end = queue->end;
    const struct pd_transport_events *raise = &end->base.transport->events;
    struct pd_error error = {0};
    int status;

    switch (event->type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        status = on_address(queue, &error);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        status = on_route(queue, &error);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        status = on_established(queue, event, &error);
        break;
    case RDMA_CM_EVENT_ADDR_CHANGE:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return;
    default:
        status = on_trouble(event, &error);
        break;
    }
    if (status != PD_OK)
        raise->reader_lost(raise->context, end->base.link, error.text);
    else if (event->type == RDMA_CM_EVENT_ESTABLISHED && end->ready == end->count)
        raise->connected(raise->context, end->base.link);
}

/* Names the device by the address of this end, where there is one: where both ends are addresses of
 * one host, the route alone would not. */
static int call_source(struct queue *queue)
{
    struct pd_rdma *rdma = rdma_of(queue->end);
    struct sockaddr_storage from = rdma->own;

    if (from.ss_family == AF_INET)
        ((struct sockaddr_in *)&from)->sin_port = 0;
    else if (from.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&from)->sin6_port = 0;
    queue->owner.handle = on_connection;
    if (rdma_create_id(rdma->channel, &queue->owner.id, &queue->owner, RDMA_PS_TCP) != 0)
        return PD_IO;
    if (rdma_set_option(queue->owner.id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
                        &rdma->ack_timeout, sizeof(rdma->ack_timeout)) != 0 ||
        rdma_resolve_addr(queue->owner.id,
                          from.ss_family == queue->end->source.ss_family ? (struct sockaddr *)&from
                                                                         : NULL,
                          (struct sockaddr *)&queue->end->source, rdma->resolve_ms) != 0)
        return PD_IO;
    return PD_OK;
}

int pd_rdma_connect(struct pd_transport *transport, uint64_t link,
                    const struct pd_source_hello *hello, struct pd_reader_end **out,
                    struct pd_error *error)
{
    struct reader_end *end = calloc(1, sizeof(*end));
    struct addrinfo *address;

    if (!end)
        return pd_fail(error, PD_NO_MEMORY, "rdma: no memory for a link");
    if (pd_endpoint_parse(hello->data_address, &address, error) != PD_OK) {
        free(end);
        return error->status;
    }
    memcpy(&end->source, address->ai_addr, address->ai_addrlen);
    freeaddrinfo(address);
    end->base = (struct pd_reader_end){transport, link, ((struct pd_rdma *)transport)->qps};
    end->key = hello->link_key;
    end->source_bytes = hello->pool.bytes;
    end->watch.fd = -1;
    end->watch.handle = on_completions;
    end->count = end->base.rails;
    pd_list_init(&end->in_busy);
    pd_list_init(&end->in_active);
    for (size_t i = 0; i < end->count; i++)
        end->queues[i].end = end;
    for (size_t i = 0; i < end->count; i++) {
        if (call_source(&end->queues[i]) != PD_OK) {
            pd_fail(error, PD_IO, "no RDMA way to %s: %s", hello->data_address, strerror(errno));
            pd_rdma_disconnect(&end->base);
            return PD_IO;
        }
    }
    *out = &end->base;
    return PD_OK;
}

/* The fence: once its queue pairs are destroyed, the device writes nothing for this end (8). */
void pd_rdma_disconnect(struct pd_reader_end *base)
{
    struct reader_end *end = (struct reader_end *)base;

    for (size_t i = 0; i < end->count; i++)
        pd_rdma_drop(&end->queues[i].owner);
    pd_loop_remove(base->transport->loop, &end->watch);
    if (end->completions)
        ibv_destroy_cq(end->completions);
    if (end->channel)
        ibv_destroy_comp_channel(end->channel);
    pd_list_remove(&end->in_busy);
    pd_list_remove(&end->in_active);
    free(end);
}
