/* The source's half of rdma: admits queue pairs that know a link's key, and destroys them. */
#include <stdlib.h>
#include <string.h>

#include "worker/base/log.h"
#include "worker/kvx/rdma.h"

struct source_end {
    struct pd_source_end base;
    uint64_t key;
    struct pd_list in_rdma, connections;
    size_t count;
};

struct connection {
    struct pd_rdma_owner owner;
    struct source_end *end;
    struct pd_list in_end;
};

/* Whatever comes after the accept, but that the connection stands, is its end and the link's (9). */
static void on_connection(struct pd_rdma_owner *owner, const struct pd_rdma_event *event)
{
    struct source_end *end = PD_OWNER(owner, struct connection, owner)->end;
    const struct pd_transport_events *raise = &end->base.transport->events;

    if (event->type == RDMA_CM_EVENT_ESTABLISHED || event->type == RDMA_CM_EVENT_TIMEWAIT_EXIT)
        return;
    raise->source_lost(raise->context, end->base.link,
                       event->type == RDMA_CM_EVENT_DISCONNECTED ? "the reader closed a queue pair"
                                                                 : "a queue pair was lost");
}

/* ---- the door -------------------------------------------------------------------------------- */

/* Looks at every end, whatever it finds. */
static struct source_end *end_by_key(struct pd_rdma *rdma, uint64_t key)
{
    struct source_end *found = NULL;

    for (struct pd_list *at = rdma->served.next; at != &rdma->served; at = at->next) {
        struct source_end *end = PD_OWNER(at, struct source_end, in_rdma);

        if (pd_transport_same_key(end->key, key))
            found = end;
    }
    return found;
}

static struct source_end *caller(struct pd_rdma *rdma, const struct pd_rdma_event *event)
{
    const struct pd_rdma_request *request = (const struct pd_rdma_request *)event->data;

    if (event->length < sizeof(*request) ||
        memcmp(request->magic, PD_RDMA_MAGIC, sizeof(request->magic)) != 0)
        return NULL;
    return end_by_key(rdma, pd_rdma_get(request->key, sizeof(request->key)));
}

/* A queue pair of the source posts nothing: its device answers reads by itself. */
static int accept_reader(struct pd_rdma_device *device, struct connection *connection,
                         const struct pd_rdma_event *event)
{
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .send_cq = device->idle,
        .recv_cq = device->idle,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct pd_rdma_grant grant = {.magic = {0}};
    struct rdma_conn_param answer = {.private_data = &grant, .private_data_len = sizeof(grant)};
    int most = device->limits.max_qp_rd_atom;

    memcpy(grant.magic, PD_RDMA_MAGIC, sizeof(grant.magic));
    pd_rdma_put(grant.base, (uint64_t)(uintptr_t)device->pool.region->addr, sizeof(grant.base));
    pd_rdma_put(grant.bytes, device->pool.region->length, sizeof(grant.bytes));
    pd_rdma_put(grant.rkey, device->pool.region->rkey, sizeof(grant.rkey));
    answer.responder_resources =
        event->responder_resources < most ? event->responder_resources : (uint8_t)most;
    if (rdma_create_qp(connection->owner.id, device->domain, &attributes) != 0 ||
        rdma_accept(connection->owner.id, &answer) != 0)
        return PD_IO;
    return PD_OK;
}

static bool admit(struct pd_rdma *rdma, struct source_end *end, const struct pd_rdma_event *event)
{
    struct pd_error error = {0};
    struct pd_rdma_device *device = pd_rdma_device_of(rdma, event->id, &error);
    struct connection *connection;

    if (!device) {
        pd_log(PD_LOG_WARN, "kvx", "a reader's queue pair is refused: %s", error.text);
        return false;
    }
    connection = calloc(1, sizeof(*connection));
    if (!connection)
        return false;
    connection->owner = (struct pd_rdma_owner){event->id, on_connection};
    connection->end = end;
    if (accept_reader(device, connection, event) != PD_OK) {
        if (event->id->qp)
            rdma_destroy_qp(event->id);
        free(connection);
        return false;
    }
    event->id->context = &connection->owner;
    pd_list_append(&end->connections, &connection->in_end);
    end->count++;
    return true;
}

void pd_rdma_on_door(struct pd_rdma_owner *door, const struct pd_rdma_event *event)
{
    struct pd_rdma *rdma = PD_OWNER(door, struct pd_rdma, door);
    struct source_end *end;

    if (event->type != RDMA_CM_EVENT_CONNECT_REQUEST) {
        pd_log(PD_LOG_ERROR, "kvx", "the RDMA listener at %s: %s", rdma->address,
               rdma_event_str(event->type));
        return;
    }
    end = caller(rdma, event);
    if (end && end->count < PD_RDMA_QPS_MAX && admit(rdma, end, event))
        return;
    rdma_reject(event->id, NULL, 0);
    rdma_destroy_id(event->id);
}

/* ---- ends ------------------------------------------------------------------------------------ */

int pd_rdma_serve(struct pd_transport *transport, uint64_t link, char address[PD_KV_ADDRESS],
                  uint64_t *key, struct pd_source_end **out, struct pd_error *error)
{
    struct pd_rdma *rdma = (struct pd_rdma *)transport;
    struct source_end *end = calloc(1, sizeof(*end));

    if (!end || pd_transport_key(&end->key) != PD_OK) {
        free(end);
        return pd_fail(error, PD_NO_MEMORY, "rdma: no memory or no random numbers for a link");
    }
    end->base = (struct pd_source_end){transport, link};
    pd_list_init(&end->connections);
    pd_list_append(&rdma->served, &end->in_rdma);
    memcpy(address, rdma->address, sizeof(rdma->address));
    *key = end->key;
    *out = &end->base;
    return PD_OK;
}

/* The fence: no read of this link is answered any more (9). */
void pd_rdma_withdraw(struct pd_source_end *base)
{
    struct source_end *end = (struct source_end *)base;

    while (!pd_list_empty(&end->connections)) {
        struct connection *connection = PD_OWNER(end->connections.next, struct connection, in_end);

        pd_rdma_drop(&connection->owner);
        pd_list_remove(&connection->in_end);
        free(connection);
    }
    pd_list_remove(&end->in_rdma);
    free(end);
}
