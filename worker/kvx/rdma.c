/* Devices, registrations and rdma_cm's events: what both halves of rdma stand on. See rdma.h. */
#include "worker/kvx/rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker/base/log.h"
#include "worker/kvx/endpoint.h"

enum { DOOR_BACKLOG = 64, GID_MAX = 256, TIMEOUT_LOW = 8, TIMEOUT_HIGH = 20 };

/* ---- devices --------------------------------------------------------------------------------- */

/* Ports that come and go are worth a line; what concerns a queue pair is told by its completions. */
static void on_asynchronous(struct pd_watch *watch, uint32_t events)
{
    struct pd_rdma_device *device = PD_OWNER(watch, struct pd_rdma_device, asynchronous);
    struct ibv_async_event event;

    (void)events;
    if (ibv_get_async_event(device->verbs, &event) != 0)
        return;
    pd_log(PD_LOG_WARN, "kvx", "RDMA device %s: %s", ibv_get_device_name(device->verbs->device),
           ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
}

static int pool_refused(const struct pd_rdma_device *device, struct pd_error *error)
{
    struct rlimit locked = {0, 0};
    int problem = errno;

    getrlimit(RLIMIT_MEMLOCK, &locked);
    return pd_fail(
        error, PD_UNSUPPORTED,
        "RDMA device %s does not take the KV pool of %llu MiB: %s; this process may lock "
        "%llu KiB (ulimit -l; LimitMEMLOCK=infinity in systemd)",
        ibv_get_device_name(device->verbs->device),
        (unsigned long long)device->rdma->base.pool->layout.bytes >> 20, strerror(problem),
        (unsigned long long)locked.rlim_cur >> 10);
}

/* The reader's device writes into its own pool, the reader reads the source's: one registration is
 * for both, and allows no remote writes. All devices reach a pool in the same way: whether its stage is
 * used is the transport's word for all of its links. */
static int register_pool(struct pd_rdma_device *device, struct pd_error *error)
{
    struct pd_rdma *rdma = device->rdma;
    bool must_stage = rdma->checksum || (rdma->device_count > 0 && !rdma->base.direct);

    if (pd_rdma_register(device->domain, rdma->base.pool, must_stage, &device->pool) != PD_OK)
        return pool_refused(device, error);
    if (rdma->device_count > 0 && device->pool.direct != rdma->base.direct)
        return pd_fail(error, PD_UNSUPPORTED,
                       "RDMA device %s does not take GPU memory, and the first device did: %s",
                       ibv_get_device_name(device->verbs->device), device->pool.why);
    rdma->base.direct = device->pool.direct;
    return PD_OK;
}

static void close_device(struct pd_rdma_device *device)
{
    pd_loop_remove(device->rdma->base.loop, &device->asynchronous);
    if (device->pool.region)
        ibv_dereg_mr(device->pool.region);
    if (device->idle)
        ibv_destroy_cq(device->idle);
    if (device->domain)
        ibv_dealloc_pd(device->domain);
    memset(device, 0, sizeof(*device));
}

static void set_nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int open_device(struct pd_rdma_device *device, struct pd_error *error)
{
    const char *name = ibv_get_device_name(device->verbs->device);

    device->asynchronous.fd = -1;
    device->asynchronous.handle = on_asynchronous;
    if (ibv_query_device(device->verbs, &device->limits) != 0)
        return pd_fail(error, PD_IO, "RDMA device %s does not say what it can", name);
    device->domain = ibv_alloc_pd(device->verbs);
    if (device->domain)
        device->idle = ibv_create_cq(device->verbs, 1, NULL, NULL, 0);
    if (!device->idle)
        return pd_fail(error, PD_IO, "RDMA device %s: %s", name, strerror(errno));
    if (register_pool(device, error) != PD_OK)
        return error->status;
    set_nonblocking(device->verbs->async_fd);
    if (pd_loop_add(device->rdma->base.loop, &device->asynchronous, device->verbs->async_fd,
                    EPOLLIN) != PD_OK)
        return pd_fail(error, PD_IO, "RDMA device %s: %s", name, strerror(errno));
    pd_log(PD_LOG_INFO, "kvx", "RDMA device %s is in use: %llu MiB of %s registered%s%s%s", name,
           (unsigned long long)device->rdma->base.pool->layout.bytes >> 20, device->pool.kind,
           device->pool.why[0] ? " (" : "", device->pool.why, device->pool.why[0] ? ")" : "");
    return PD_OK;
}

struct pd_rdma_device *pd_rdma_device_of(struct pd_rdma *rdma, struct rdma_cm_id *id,
                                         struct pd_error *error)
{
    const char *name = ibv_get_device_name(id->verbs->device);
    struct pd_rdma_device *device = rdma->devices;

    for (size_t i = 0; i < rdma->device_count; i++, device++)
        if (device->verbs == id->verbs)
            return device;
    if (rdma->device_name && strcmp(rdma->device_name, name) != 0) {
        pd_fail(error, PD_INVALID, "the way leads over RDMA device %s, not %s (--kv-device)", name,
                rdma->device_name);
        return NULL;
    }
    if (rdma->device_count == PD_RDMA_DEVICES) {
        pd_fail(error, PD_FULL, "all %d RDMA devices are in use", PD_RDMA_DEVICES);
        return NULL;
    }
    device->rdma = rdma;
    device->verbs = id->verbs;
    if (open_device(device, error) != PD_OK) {
        close_device(device);
        return NULL;
    }
    rdma->device_count++;
    return device;
}

void pd_rdma_drop(struct pd_rdma_owner *owner)
{
    if (!owner->id)
        return;
    if (owner->id->qp)
        rdma_destroy_qp(owner->id);
    rdma_destroy_id(owner->id);
    owner->id = NULL;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* One event a turn: its handler may end links, and with them other connections. */
static void on_channel(struct pd_watch *watch, uint32_t events)
{
    struct pd_rdma *rdma = PD_OWNER(watch, struct pd_rdma, events);
    struct pd_rdma_event copy = {0};
    struct pd_rdma_owner *owner;
    struct rdma_cm_event *event;

    (void)events;
    if (rdma_get_cm_event(rdma->channel, &event) != 0)
        return;
    copy.type = event->event;
    copy.status = event->status;
    copy.id = event->id;
    copy.responder_resources = event->param.conn.responder_resources;
    if (event->param.conn.private_data) {
        copy.length = event->param.conn.private_data_len;
        if (copy.length > sizeof(copy.data))
            copy.length = sizeof(copy.data);
        memcpy(copy.data, event->param.conn.private_data, copy.length);
    }
    owner = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->listen_id->context
                                                          : event->id->context;
    rdma_ack_cm_event(event);
    owner->handle(owner, &copy);
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* The device's own IPv4 address, out of its table of GIDs; false if it has none. */
static bool address_of_device(const char *name, struct sockaddr_in *address)
{
    int count = 0, found = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    for (int i = 0; i < count && !found; i++) {
        struct ibv_context *verbs;

        if (strcmp(ibv_get_device_name(list[i]), name) != 0)
            continue;
        verbs = ibv_open_device(list[i]);
        for (int at = 0; verbs && at < GID_MAX && !found; at++) {
            union ibv_gid gid;

            if (ibv_query_gid(verbs, 1, at, &gid) != 0)
                break;
            if (!IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)gid.raw))
                continue;
            *address = (struct sockaddr_in){.sin_family = AF_INET};
            memcpy(&address->sin_addr, gid.raw + 12, 4);
            found = 1;
        }
        if (verbs)
            ibv_close_device(verbs);
    }
    if (list)
        ibv_free_device_list(list);
    return found;
}

/* --kv-bind says which address is ours, else --kv-device does. Without either there is none to tell
 * a reader: this process only reads. */
static int find_own_address(struct pd_rdma *rdma, const char *host, struct pd_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    struct sockaddr_in *own = (struct sockaddr_in *)&rdma->own;
    int status = getaddrinfo(host ? host : "0.0.0.0", "0", &hints, &found);

    if (status != 0)
        return pd_fail(error, PD_INVALID, "KV data address %s: %s", host, gai_strerror(status));
    if (!pd_endpoint_is_wildcard(found->ai_addr))
        memcpy(&rdma->own, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (rdma->own.ss_family == AF_INET && ntohl(own->sin_addr.s_addr) >> 24 == 127)
        rdma->own.ss_family = 0; /* no device has it */
    if (rdma->own.ss_family == 0 && rdma->device_name && !address_of_device(rdma->device_name, own))
        return pd_fail(error, PD_INVALID,
                       "there is no RDMA device %s with an IPv4 address (rdma link shows them)",
                       rdma->device_name);
    return PD_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void not_served(struct pd_rdma *rdma, const char *why)
{
    snprintf(rdma->why_not_served, sizeof(rdma->why_not_served), "%s", why);
    rdma->base.why_not_served = rdma->why_not_served;
}

/* An address that is no device's is no error: over `auto` there are other ways, and this process may
 * still read. Registers the pool now, before the first request could have to wait for it. */
static int open_door(struct pd_rdma *rdma, struct pd_error *error)
{
    struct sockaddr *own = (struct sockaddr *)&rdma->own;
    socklen_t length =
        own->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

    if (own->sa_family == 0) {
        not_served(rdma, "the source has no address of an RDMA device (--kv-bind, --kv-device)");
        return PD_OK;
    }
    if (rdma_create_id(rdma->channel, &rdma->door.id, &rdma->door, RDMA_PS_TCP) != 0)
        return pd_fail(error, PD_IO, "rdma_cm: %s", strerror(errno));
    if (rdma_bind_addr(rdma->door.id, own) != 0 || !rdma->door.id->verbs) {
        pd_rdma_drop(&rdma->door);
        rdma->own.ss_family = 0;
        not_served(rdma, "the source's KV data address is not of an RDMA device (--kv-bind)");
        return PD_OK;
    }
    if (rdma_listen(rdma->door.id, DOOR_BACKLOG) != 0 ||
        pd_endpoint_format(rdma_get_local_addr(rdma->door.id), length, rdma->address) != PD_OK)
        return pd_fail(error, PD_IO, "rdma_cm: listen: %s", strerror(errno));
    return pd_rdma_device_of(rdma, rdma->door.id, error) ? PD_OK : error->status;
}

static int open_channel(struct pd_rdma *rdma, struct pd_error *error)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    if (list)
        ibv_free_device_list(list);
    if (count == 0)
        return pd_fail(error, PD_UNSUPPORTED, "this machine has no RDMA device");
    rdma->channel = rdma_create_event_channel();
    if (!rdma->channel)
        return pd_fail(error, PD_UNSUPPORTED, "rdma_cm: %s (is module rdma_ucm loaded?)",
                       strerror(errno));
    set_nonblocking(rdma->channel->fd);
    if (pd_loop_add(rdma->base.loop, &rdma->events, rdma->channel->fd, EPOLLIN) != PD_OK)
        return pd_fail(error, PD_IO, "rdma: no epoll");
    return PD_OK;
}

static void destroy(struct pd_transport *transport)
{
    struct pd_rdma *rdma = (struct pd_rdma *)transport;

    pd_rdma_drop(&rdma->door);
    while (rdma->device_count > 0)
        close_device(&rdma->devices[--rdma->device_count]);
    pd_loop_remove(rdma->base.loop, &rdma->events);
    if (rdma->channel)
        rdma_destroy_event_channel(rdma->channel);
    free(rdma);
}

static const struct pd_transport_kind kind = {
    .name = "rdma",
    .window = PD_RDMA_WINDOW,
    .serve = pd_rdma_serve,
    .withdraw = pd_rdma_withdraw,
    .connect = pd_rdma_connect,
    .read = pd_rdma_read,
    .disconnect = pd_rdma_disconnect,
    .work = pd_rdma_work,
    .destroy = destroy,
};

/* A packet is sent 1 + PD_RDMA_RETRIES times, each time waited for this long: the longest time that
 * is over within `silence`, so that a peer whose device no longer answers is cut off by then. */
static uint8_t ack_timeout(uint64_t silence_ns)
{
    uint8_t exponent = TIMEOUT_LOW;

    while (exponent < TIMEOUT_HIGH &&
           (4096u << (exponent + 1)) * (uint64_t)(1 + PD_RDMA_RETRIES) <= silence_ns)
        exponent++;
    return exponent;
}

int pd_rdma_create(const struct pd_transport_options *options, struct pd_transport **transport,
                   struct pd_error *error)
{
    struct pd_rdma *rdma = calloc(1, sizeof(*rdma));
    int status;

    if (!rdma)
        return pd_fail(error, PD_NO_MEMORY, "rdma: no memory");
    rdma->base.kind = &kind;
    rdma->base.loop = options->loop;
    rdma->base.pool = options->pool;
    rdma->base.events = options->events;
    rdma->device_name = options->device && options->device[0] ? options->device : NULL;
    rdma->qps = options->queue_pairs;
    rdma->busy_poll = options->busy_poll;
    rdma->checksum = options->checksum;
    rdma->ack_timeout = ack_timeout(options->handshake_ns);
    rdma->resolve_ms = (int)(options->handshake_ns / 1000000);
    rdma->events.fd = -1;
    rdma->events.handle = on_channel;
    rdma->door.handle = pd_rdma_on_door;
    pd_list_init(&rdma->served);
    pd_list_init(&rdma->busy);
    pd_list_init(&rdma->active);
    status = open_channel(rdma, error);
    if (status == PD_OK)
        status = find_own_address(rdma, options->bind_host, error);
    if (status == PD_OK)
        status = open_door(rdma, error);
    if (status != PD_OK) {
        destroy(&rdma->base);
        return status;
    }
    *transport = &rdma->base;
    return PD_OK;
}
