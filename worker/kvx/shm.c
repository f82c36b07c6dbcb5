/* The two transports within a host: the reader maps the source's pool and copies; no byte passes a socket.
 * "shm" maps memory of the host, read-only: a pool, or a pool's stage. "gpu" maps what devices have lent,
 * and copies from device to device (lent.h).
 *
 * A seqpacket connection on an abstract unix socket carries the mapping once and is then the link's
 * data connection: its end is the link's end (9).
 *
 *     reader ▶ source   "pdkvshm1", u64 link key
 *     reader ◀ source   "pdkvmap1", and the pool's descriptors, one of each rank (SCM_RIGHTS)
 *                 gpu:  "pdkvgpu1", u64 bytes of each rank's memory; descriptors of the stages, in which
 *                       the generation words are, then those that the devices lend
 *
 * The source cannot take a mapping back, so withdraw fences nothing: a reader that was stopped may
 * still be copying when the blocks are used again. Hence the generation words (15), and hence a
 * reader is trusted with the pool as a whole, which the key and the user in the host id stand for.
 * The reader unmaps when its link is lost (22). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "worker/kvx/copy.h"
#include "worker/kvx/lent.h"
#include "worker/kvx/list.h"
#include "worker/kvx/transport.h"

#define HELLO   "pdkvshm1"
#define MAPPING "pdkvmap1"
#define LENT    "pdkvgpu1"

enum {
    MAGIC = 8,
    STRANGERS_MAX = 64, /* the oldest gives way */
    LISTEN_BACKLOG = 64,
    /* One copy at a time: a slice is a read, at most PD_READ_BYTES, a fraction of a millisecond. */
    WINDOW = 2,
    CACHED = 8 << 20, /* bytes of a transfer that are worth a place in the cache: the first ones */
};

struct shm {
    struct pd_transport base;
    bool devices; /* "gpu" */
    struct pd_watch listener;
    char name[32]; /* in the abstract namespace, without the leading zero */
    uint64_t handshake_ns, now;
    struct pd_list strangers, ends;
    size_t stranger_count;
    struct pd_list busy; /* reader ends with reads to copy, taken in turn */
};

struct hello {
    char magic[MAGIC];
    uint64_t key;
};

/* What the source answers. */
struct mapping {
    char magic[MAGIC];
    uint64_t bytes[PD_RANKS_MAX]; /* gpu */
};

struct source_end {
    struct pd_source_end base;
    uint64_t key;
    struct pd_list in_shm;
    struct connection *connection; /* NULL: the reader has not come yet */
};

struct connection {
    struct pd_watch watch;
    struct shm *shm;
    struct source_end *end; /* NULL: a stranger */
    struct pd_list in_list;
    uint64_t deadline;
};

struct reader_end {
    struct pd_reader_end base;
    struct pd_watch watch;
    struct pd_layout source;
    struct pd_mapped map; /* gpu: of the stages, for the words */
    struct pd_lent lent;  /* gpu */
    const _Atomic uint64_t *words;
    const struct pd_read *reads[WINDOW];
    size_t waiting;
    uint64_t in_a_row; /* bytes copied since there was nothing to copy */
    struct pd_list in_busy;
};

/* ---- source ---------------------------------------------------------------------------------- */

static void drop(struct connection *connection)
{
    int fd = connection->watch.fd;

    pd_loop_remove(connection->shm->base.loop, &connection->watch);
    close(fd);
    if (connection->end) {
        connection->end->connection = NULL;
    } else {
        pd_list_remove(&connection->in_list);
        connection->shm->stranger_count--;
    }
    free(connection);
}

/* Looks at every end, whatever it finds. */
static struct source_end *end_by_key(struct shm *shm, uint64_t key)
{
    struct source_end *found = NULL;

    for (struct pd_list *at = shm->ends.next; at != &shm->ends; at = at->next) {
        struct source_end *end = PD_OWNER(at, struct source_end, in_shm);

        if (pd_transport_same_key(end->key, key))
            found = end;
    }
    return found;
}

/* A record's length of a source with so many ranks. */
static size_t mapping_bytes(const struct shm *shm, uint32_t ranks)
{
    return MAGIC + (shm->devices ? ranks * sizeof(uint64_t) : 0);
}

static bool send_mapping(struct connection *connection)
{
    const struct shm *shm = connection->shm;
    const struct pd_pool *pool = shm->base.pool;
    uint32_t ranks = pool->layout.ranks, count = shm->devices ? 2 * ranks : ranks;
    struct mapping mapping;
    struct iovec piece = {&mapping, mapping_bytes(shm, ranks)};
    int fds[2 * PD_RANKS_MAX];
    union {
        char bytes[CMSG_SPACE(2 * PD_RANKS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);

    memcpy(mapping.magic, shm->devices ? LENT : MAPPING, MAGIC);
    for (uint32_t r = 0; r < ranks; r++) {
        fds[r] = pool->readers_fd[r];
        fds[ranks + r] = pool->device[r].handle;
        mapping.bytes[r] = pool->device[r].size;
    }
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    return sendmsg(connection->watch.fd, &message, MSG_NOSIGNAL) == (ssize_t)piece.iov_len;
}

/* A stranger with the key of a link that nobody has come for yet gets the mapping. */
static bool welcome(struct connection *connection, const struct hello *hello)
{
    struct source_end *end;

    if (memcmp(hello->magic, HELLO, MAGIC) != 0)
        return false;
    end = end_by_key(connection->shm, hello->key);
    if (!end || end->connection || !send_mapping(connection))
        return false;
    pd_list_remove(&connection->in_list);
    connection->shm->stranger_count--;
    connection->end = end;
    end->connection = connection;
    return true;
}

/* After the hello a reader has nothing to say here but its end. */
static void on_reader(struct pd_watch *watch, uint32_t events)
{
    struct connection *connection = PD_OWNER(watch, struct connection, watch);
    const struct pd_transport_events *raise = &connection->shm->base.events;
    struct hello hello;
    ssize_t got = recv(watch->fd, &hello, sizeof(hello), 0);

    (void)events;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (connection->end)
        raise->source_lost(raise->context, connection->end->base.link,
                           "the reader closed its data connection");
    else if (got != (ssize_t)sizeof(hello) || !welcome(connection, &hello))
        drop(connection);
}

static void admit(struct shm *shm, int fd)
{
    struct connection *connection = calloc(1, sizeof(*connection));

    if (shm->stranger_count >= STRANGERS_MAX)
        drop(PD_OWNER(shm->strangers.next, struct connection, in_list));
    if (!connection) {
        close(fd);
        return;
    }
    connection->shm = shm;
    connection->watch.handle = on_reader;
    connection->deadline = shm->now + shm->handshake_ns;
    if (pd_loop_add(shm->base.loop, &connection->watch, fd, EPOLLIN) != PD_OK) {
        close(fd);
        free(connection);
        return;
    }
    pd_list_append(&shm->strangers, &connection->in_list);
    shm->stranger_count++;
}

/* Out of descriptors: stop listening until the next tick instead of turning in circles. */
static void on_connection(struct pd_watch *watch, uint32_t events)
{
    struct shm *shm = PD_OWNER(watch, struct shm, listener);
    int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    (void)events;
    if (fd >= 0)
        admit(shm, fd);
    else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
        pd_loop_change(shm->base.loop, watch, 0);
}

static void tick(struct pd_transport *transport, uint64_t now)
{
    struct shm *shm = (struct shm *)transport;

    shm->now = now;
    pd_loop_change(shm->base.loop, &shm->listener, EPOLLIN);
    while (!pd_list_empty(&shm->strangers)) {
        struct connection *oldest = PD_OWNER(shm->strangers.next, struct connection, in_list);

        if (now < oldest->deadline)
            break;
        drop(oldest);
    }
}

static int serve(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                 uint64_t *key, struct pd_source_end **out, struct pd_error *error)
{
    struct shm *shm = (struct shm *)transport;
    struct source_end *end = calloc(1, sizeof(*end));

    if (!end || pd_transport_key(&end->key) != PD_OK) {
        free(end);
        return pd_fail(error, PD_NO_MEMORY, "shm: no memory or no random numbers for a link");
    }
    end->base = (struct pd_source_end){transport, link};
    pd_list_append(&shm->ends, &end->in_shm);
    memcpy(address, shm->name, sizeof(shm->name));
    *key = end->key;
    *out = &end->base;
    return PD_OK;
}

static void withdraw(struct pd_source_end *base)
{
    struct source_end *end = (struct source_end *)base;

    if (end->connection)
        drop(end->connection);
    pd_list_remove(&end->in_shm);
    free(end);
}

/* ---- reader ---------------------------------------------------------------------------------- */

/* The descriptors that came with the record, at most `most`; those beyond are closed. Returns how many came. */
static uint32_t take_descriptors(struct msghdr *message, int *fds, uint32_t most)
{
    uint32_t taken = 0;

    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
        size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < count; i++, taken++) {
            int next;

            memcpy(&next, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
            if (taken < most)
                fds[taken] = next;
            else
                close(next);
        }
    }
    return taken;
}

/* Maps only what cannot shrink under the reader, and is as large as the source's pool is said to
 * be. */
static const char *map_pool(struct reader_end *end, const int *fds)
{
    for (uint32_t r = 0; r < end->source.ranks; r++) {
        struct stat status;
        int seals = fcntl(fds[r], F_GET_SEALS);

        if (seals < 0 || !(seals & F_SEAL_SHRINK))
            return "the source's memory is not sealed";
        if (fstat(fds[r], &status) < 0 || status.st_size < 0 ||
            (uint64_t)status.st_size < end->source.total)
            return "the source's memory is smaller than its pool";
    }
    if (!pd_mapped_open(&end->map, fds, end->source.ranks, end->source.total, PROT_READ))
        return "the source's memory cannot be mapped";
    end->words = (const _Atomic uint64_t *)(const void *)(end->map.base + end->source.words_offset);
    return NULL;
}

/* NULL, or why what came is not what is wanted. */
static const char *take_mapping(struct reader_end *end, const struct mapping *mapping, ssize_t got,
                                const int *fds, uint32_t came)
{
    const struct shm *shm = (const struct shm *)end->base.transport;
    uint32_t ranks = end->source.ranks;
    const char *why;

    if (end->map.base || got != (ssize_t)mapping_bytes(shm, ranks) ||
        memcmp(mapping->magic, shm->devices ? LENT : MAPPING, MAGIC) != 0 ||
        came != (shm->devices ? 2 * ranks : ranks))
        return "the source sent what is not its mapping";
    why = map_pool(end, fds);
    if (!why && shm->devices)
        why = pd_lent_open(&end->lent, shm->base.pool, &end->source, fds + ranks, mapping->bytes);
    return why;
}

/* The mapping has come, or the connection has ended. */
static void on_source(struct pd_watch *watch, uint32_t events)
{
    struct reader_end *end = PD_OWNER(watch, struct reader_end, watch);
    const struct pd_transport_events *raise = &end->base.transport->events;
    struct mapping mapping;
    struct iovec piece = {&mapping, sizeof(mapping)};
    union {
        char bytes[CMSG_SPACE(2 * PD_RANKS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(watch->fd, &message, MSG_CMSG_CLOEXEC);
    const char *why = "the source closed its data connection";
    int fds[2 * PD_RANKS_MAX];
    uint32_t came;

    (void)events;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    came = got >= 0 ? take_descriptors(&message, fds, 2 * PD_RANKS_MAX) : 0;
    if (came > 0)
        why = take_mapping(end, &mapping, got, fds, came);
    for (uint32_t i = 0; i < came && i < 2 * PD_RANKS_MAX; i++)
        close(fds[i]);
    if (why)
        raise->reader_lost(raise->context, end->base.link, why);
    else
        raise->connected(raise->context, end->base.link);
}

static int set_name(struct sockaddr_un *address, const char *name, socklen_t *length)
{
    size_t bytes = strlen(name);

    if (bytes == 0 || bytes >= sizeof(address->sun_path))
        return PD_INVALID;
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, bytes);
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
    return PD_OK;
}

/* A connect to a unix socket is done or refused at once. */
static int call_source(struct reader_end *end, const struct pd_source_hello *from,
                       struct pd_error *error)
{
    struct hello hello = {.key = from->link_key};
    struct sockaddr_un address;
    socklen_t length;
    int fd;

    if (set_name(&address, from->data_address, &length) != PD_OK)
        return pd_fail(error, PD_INVALID, "the source's data address is no socket name");
    memcpy(hello.magic, HELLO, MAGIC);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return pd_fail(error, PD_IO, "shm: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, length) < 0 ||
        send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello) ||
        pd_loop_add(end->base.transport->loop, &end->watch, fd, EPOLLIN) != PD_OK) {
        pd_fail(error, PD_IO, "shm: the source's socket: %s", strerror(errno));
        close(fd);
        return PD_IO;
    }
    return PD_OK;
}

static int connect_source(struct pd_transport *transport, uint64_t link,
                          const struct pd_source_hello *hello, struct pd_reader_end **out,
                          struct pd_error *error)
{
    struct reader_end *end = calloc(1, sizeof(*end));

    if (!end)
        return pd_fail(error, PD_NO_MEMORY, "shm: no memory for a link");
    end->base = (struct pd_reader_end){transport, link, 1};
    end->source = hello->pool;
    end->watch.fd = -1;
    end->watch.handle = on_source;
    pd_list_init(&end->in_busy);
    if (call_source(end, hello, error) != PD_OK) {
        free(end);
        return error->status;
    }
    *out = &end->base;
    return PD_OK;
}

static int read_pool(struct pd_reader_end *base, const struct pd_read *read)
{
    struct reader_end *end = (struct reader_end *)base;
    struct shm *shm = (struct shm *)base->transport;

    if (end->waiting == WINDOW)
        return PD_FULL;
    if (end->waiting == 0)
        end->in_a_row = 0;
    end->reads[end->waiting++] = read;
    if (pd_list_empty(&end->in_busy))
        pd_list_append(&shm->busy, &end->in_busy);
    return PD_OK;
}

/* A short prompt is about to be used, and stays in the cache; a long one does not fit there. */
static void copy(struct reader_end *end, const struct pd_read *read)
{
    uint8_t *to = end->base.transport->pool->base;

    for (size_t i = 0; i < read->count; i++) {
        const struct pd_range *range = &read->ranges[i];

        if (end->in_a_row < CACHED)
            memcpy(to + range->destination, end->map.base + range->source, range->length);
        else
            pd_copy_past_cache(to + range->destination, end->map.base + range->source,
                               range->length);
    }
    end->in_a_row += read->bytes;
}

/* One read of one end. */
static bool work(struct pd_transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    const struct pd_read *read;
    struct reader_end *end;

    if (pd_list_empty(&shm->busy))
        return false;
    end = PD_OWNER(shm->busy.next, struct reader_end, in_busy);
    read = end->reads[0];
    if (!shm->devices) {
        copy(end, read);
    } else if (!pd_lent_read(&end->lent, read)) {
        transport->events.reader_lost(transport->events.context, end->base.link,
                                      "the KV pool's device is lost");
        return !pd_list_empty(&shm->busy);
    }
    end->waiting--;
    memmove(end->reads, end->reads + 1, end->waiting * sizeof(*end->reads));
    pd_list_remove(&end->in_busy);
    if (end->waiting > 0)
        pd_list_append(&shm->busy, &end->in_busy);
    transport->events.landed(transport->events.context, end->base.link, read);
    return !pd_list_empty(&shm->busy);
}

static uint64_t word(struct pd_reader_end *base, uint32_t block)
{
    return pd_pool_word_after_copy(&((struct reader_end *)base)->words[block]);
}

static void disconnect(struct pd_reader_end *base)
{
    struct reader_end *end = (struct reader_end *)base;
    int fd = end->watch.fd;

    pd_loop_remove(base->transport->loop, &end->watch);
    close(fd);
    pd_list_remove(&end->in_busy);
    pd_lent_close(&end->lent);
    pd_mapped_close(&end->map);
    free(end);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void destroy(struct pd_transport *transport)
{
    struct shm *shm = (struct shm *)transport;
    int fd = shm->listener.fd;

    while (!pd_list_empty(&shm->strangers))
        drop(PD_OWNER(shm->strangers.next, struct connection, in_list));
    pd_loop_remove(transport->loop, &shm->listener);
    if (fd >= 0)
        close(fd);
    free(shm);
}

static int listen_abstract(struct shm *shm, struct pd_error *error)
{
    struct sockaddr_un address;
    socklen_t length;
    uint64_t unique;
    int fd;

    if (pd_transport_key(&unique) != PD_OK)
        return pd_fail(error, PD_IO, "shm: no random numbers");
    snprintf(shm->name, sizeof(shm->name), "pd-kvx-%016llx", (unsigned long long)unique);
    if (set_name(&address, shm->name, &length) != PD_OK)
        return pd_fail(error, PD_INVALID, "shm: bad socket name");
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 ||
        listen(fd, LISTEN_BACKLOG) < 0 ||
        pd_loop_add(shm->base.loop, &shm->listener, fd, EPOLLIN) != PD_OK) {
        pd_fail(error, PD_IO, "shm: listening: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return PD_IO;
    }
    return PD_OK;
}

#define WITHIN_A_HOST                                                                              \
    .window = WINDOW, .words = true, .serve = serve, .withdraw = withdraw,                         \
    .connect = connect_source, .read = read_pool, .word = word, .disconnect = disconnect,          \
    .work = work, .tick = tick, .destroy = destroy

static const struct pd_transport_kind kind = {.name = "shm", WITHIN_A_HOST};
static const struct pd_transport_kind device_kind = {.name = "gpu", WITHIN_A_HOST};

static int create(bool devices, const struct pd_transport_options *options,
                  struct pd_transport **transport, struct pd_error *error)
{
    struct shm *shm = calloc(1, sizeof(*shm));
    int status;

    if (!shm)
        return pd_fail(error, PD_NO_MEMORY, "shm: no memory");
    shm->devices = shm->base.direct = devices;
    shm->base.kind = devices ? &device_kind : &kind;
    shm->base.loop = options->loop;
    shm->base.pool = options->pool;
    shm->base.events = options->events;
    if (options->pool->why_not_shared[0] != '\0')
        shm->base.why_not_served = options->pool->why_not_shared;
    shm->handshake_ns = options->handshake_ns;
    shm->listener.fd = -1;
    shm->listener.handle = on_connection;
    pd_list_init(&shm->strangers);
    pd_list_init(&shm->ends);
    pd_list_init(&shm->busy);
    status = listen_abstract(shm, error);
    if (status != PD_OK) {
        destroy(&shm->base);
        return status;
    }
    *transport = &shm->base;
    return PD_OK;
}

int pd_shm_create(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error)
{
    return create(false, options, transport, error);
}

int pd_gpu_create(const struct pd_transport_options *options, struct pd_transport **transport,
                  struct pd_error *error)
{
    const char *obstacle = pd_lent_obstacle(options->pool);

    if (!obstacle && options->checksum)
        obstacle = "bytes that no processor sees cannot be summed (--kv-checksum)";
    return obstacle ? pd_fail(error, PD_UNSUPPORTED, "%s", obstacle)
                    : create(true, options, transport, error);
}
