
/*
 * pd_register CLUSTER;
 *
 * Answers the unary gRPC call pd.v1.Dispatcher/Register on a "listen ... http2"
 * of nginx's own.  A registration is a lease: the worker renews it at a third
 * of its life, and who does not is forgotten.  The call lands in one process;
 * it writes the lease into the shared zone and wakes the others, and each dials
 * the worker back.
 *
 * gRPC speaks of failures in its own way: HTTP status 200 and a grpc-status.
 */


#include "ngx_http_pd_register.h"
#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_grpc.h"
#include "ngx_http_pd_hello.h"
#include "ngx_http_pd_slot.h"
#include "ngx_http_pd_unpack.h"


#define NGX_HTTP_PD_REGISTER_MAX      65536    /* bytes of a message */

#define NGX_HTTP_PD_GRPC_INVALID      3
#define NGX_HTTP_PD_GRPC_EXISTS       6
#define NGX_HTTP_PD_GRPC_DENIED       7
#define NGX_HTTP_PD_GRPC_EXHAUSTED    8


static ngx_int_t ngx_http_pd_register_handler(ngx_http_request_t *r);
static void ngx_http_pd_register_body(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_register_read(ngx_http_request_t *r,
    ngx_str_t *message);
static ngx_int_t ngx_http_pd_register_apply(ngx_http_request_t *r,
    Pd__V1__RegisterRequest *request);
static ngx_int_t ngx_http_pd_register_address(ngx_http_request_t *r,
    const char *text, ngx_str_t *address);
static const char *ngx_http_pd_register_stranger(ngx_http_request_t *r,
    const char *token);
static ngx_uint_t ngx_http_pd_register_certified(ngx_http_request_t *r);
static ngx_uint_t ngx_http_pd_register_token_ok(ngx_str_t *token,
    const char *given);
static ngx_int_t ngx_http_pd_register_lease(ngx_http_request_t *r,
    ngx_str_t *address, Pd__V1__RegisterRequest *request);
static ngx_int_t ngx_http_pd_register_reply(ngx_http_request_t *r);
static ngx_int_t ngx_http_pd_register_refuse(ngx_http_request_t *r,
    ngx_uint_t status, const char *message);
static ngx_int_t ngx_http_pd_register_header(ngx_http_request_t *r,
    ngx_list_t *list, const char *name, const char *value);


char *
ngx_http_pd_register(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_pd_loc_conf_t  *plcf = conf;

    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    if (plcf->lease) {
        return "is duplicate";
    }

    value = cf->args->elts;

    plcf->lease = ngx_http_pd_cluster_mention(cf, &value[1]);
    if (plcf->lease == NULL) {
        return NGX_CONF_ERROR;
    }

    plcf->lease->register_file = cf->conf_file->file.name.data;
    plcf->lease->register_line = cf->conf_file->line;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = ngx_http_pd_register_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_pd_register_handler(ngx_http_request_t *r)
{
    ngx_int_t         rc;
    ngx_table_elt_t  *type;

    if (r->http_version != NGX_HTTP_VERSION_20 || r != r->main) {
        return NGX_HTTP_BAD_REQUEST;
    }

    if (r->method != NGX_HTTP_POST) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    type = r->headers_in.content_type;

    if (type == NULL || type->value.len < 16
        || ngx_strncasecmp(type->value.data, (u_char *) "application/grpc", 16)
           != 0)
    {
        return NGX_HTTP_UNSUPPORTED_MEDIA_TYPE;
    }

    rc = ngx_http_read_client_request_body(r, ngx_http_pd_register_body);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}


static void
ngx_http_pd_register_body(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_str_t                 message;
    ngx_http_pd_arena_t       arena;
    Pd__V1__RegisterRequest  *request;

    if (ngx_http_pd_register_read(r, &message) != NGX_OK) {
        rc = ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_INVALID,
                                         "no message of gRPC's form");
        ngx_http_finalize_request(r, rc);
        return;
    }

    ngx_memzero(&arena, sizeof(ngx_http_pd_arena_t));

    request = ngx_http_pd_unpack(&arena, &pd__v1__register_request__descriptor,
                                 message.data, message.len);

    if (request == NULL) {
        rc = ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_INVALID,
                                         "the message cannot be read");

    } else {
        rc = ngx_http_pd_register_apply(r, request);
    }

    ngx_http_pd_arena_free(&arena);

    ngx_http_finalize_request(r, rc);
}


/* the body may lie in buffers or, without a length known before, in a file */

static ngx_int_t
ngx_http_pd_register_read(ngx_http_request_t *r, ngx_str_t *message)
{
    size_t        len;
    off_t         size;
    ssize_t       n;
    u_char       *p, *body;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    if (r->request_body == NULL) {
        return NGX_ERROR;
    }

    size = 0;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    if (size < NGX_HTTP_PD_GRPC_PREFIX || size > NGX_HTTP_PD_REGISTER_MAX) {
        return NGX_ERROR;
    }

    body = ngx_pnalloc(r->pool, size);
    if (body == NULL) {
        return NGX_ERROR;
    }

    p = body;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            p = ngx_cpymem(p, b->pos, b->last - b->pos);
            continue;
        }

        if (!b->in_file) {

            /* the end of the body, which HTTP/2 may tell alone */

            continue;
        }

        len = (size_t) (b->file_last - b->file_pos);

        n = ngx_read_file(b->file, p, len, b->file_pos);

        if (n == NGX_ERROR || (size_t) n != len) {
            return NGX_ERROR;
        }

        p += len;
    }

    message->data = body + NGX_HTTP_PD_GRPC_PREFIX;
    message->len = size - NGX_HTTP_PD_GRPC_PREFIX;

    /* one message, not compressed */

    if (body[0] != 0
        || (((size_t) body[1] << 24) | (body[2] << 16) | (body[3] << 8)
            | body[4])
           != message->len)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_register_apply(ngx_http_request_t *r,
    Pd__V1__RegisterRequest *request)
{
    ngx_str_t    address;
    const char  *fault;

    fault = ngx_http_pd_register_stranger(r, request->token);

    if (fault) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "pd: refused a registration from %V: %s",
                      &r->connection->addr_text, fault);
        return ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_DENIED, fault);
    }

    if (ngx_http_pd_register_address(r, request->address, &address) != NGX_OK)
    {
        return ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_INVALID,
                                           "the address is not IP:PORT");
    }

    fault = request->hello ? ngx_http_pd_hello_check(request->hello)
                           : "there is no hello";

    if (fault && !request->leaving) {
        return ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_INVALID, fault);
    }

    return ngx_http_pd_register_lease(r, &address, request);
}


/* whoever has neither the cluster's token nor a certificate: why */

static const char *
ngx_http_pd_register_stranger(ngx_http_request_t *r, const char *token)
{
    ngx_str_t               *secret;
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);
    secret = &plcf->lease->token;

    if ((secret->len && ngx_http_pd_register_token_ok(secret, token))
        || ngx_http_pd_register_certified(r))
    {
        return NULL;
    }

    return secret->len ? "the token is wrong"
                       : "it has no client certificate, and there is no token";
}


/* the server's "ssl_verify_client" has found the client's certificate good */

static ngx_uint_t
ngx_http_pd_register_certified(ngx_http_request_t *r)
{
    ngx_http_variable_value_t  *v;

    static ngx_str_t  name = ngx_string("ssl_client_verify");

    v = ngx_http_get_variable(r, &name, ngx_hash_key(name.data, name.len));

    return v && !v->not_found && v->len == sizeof("SUCCESS") - 1
           && ngx_memcmp(v->data, "SUCCESS", v->len) == 0;
}


/* in a time that does not tell how much of it was right */

static ngx_uint_t
ngx_http_pd_register_token_ok(ngx_str_t *token, const char *given)
{
    size_t             i, len;
    volatile u_char    differs;

    len = ngx_strlen(given);

    if (len != token->len) {
        return 0;
    }

    differs = 0;

    for (i = 0; i < len; i++) {
        differs |= token->data[i] ^ (u_char) given[i];
    }

    return differs == 0;
}


/* an address without a host, or with "any", is that of the caller */

static ngx_int_t
ngx_http_pd_register_address(ngx_http_request_t *r, const char *text,
    ngx_str_t *address)
{
    u_char      *p;
    size_t       len;
    in_port_t    port;
    ngx_int_t    n;
    ngx_str_t   *peer;
    ngx_addr_t   addr;

    len = ngx_strlen(text);

    if (len > NGX_HTTP_PD_ADDRESS_MAX) {
        return NGX_ERROR;
    }

    if (len && text[0] == ':') {
        n = ngx_atoi((u_char *) text + 1, len - 1);

        if (n < 1 || n > 65535) {
            return NGX_ERROR;
        }

        port = n;

    } else {

        if (ngx_parse_addr_port(r->pool, &addr, (u_char *) text, len)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        port = ngx_inet_get_port(addr.sockaddr);

        if (port == 0) {
            return NGX_ERROR;
        }

        if (!ngx_inet_wildcard(addr.sockaddr)) {
            address->len = len;
            address->data = ngx_pnalloc(r->pool, len);

            if (address->data == NULL) {
                return NGX_ERROR;
            }

            ngx_memcpy(address->data, text, len);
            return NGX_OK;
        }
    }

    peer = &r->connection->addr_text;

    p = ngx_pnalloc(r->pool, peer->len + sizeof("[]:65535"));
    if (p == NULL) {
        return NGX_ERROR;
    }

    address->data = p;
    address->len = ngx_sprintf(p, ngx_strlchr(peer->data,
                                              peer->data + peer->len, ':')
                                  ? "[%V]:%ui" : "%V:%ui",
                               peer, (ngx_uint_t) port)
                   - p;

    return NGX_OK;
}


static ngx_int_t
ngx_http_pd_register_lease(ngx_http_request_t *r, ngx_str_t *address,
    Pd__V1__RegisterRequest *request)
{
    ngx_uint_t               fresh;
    ngx_http_pd_zone_t      *zone;
    ngx_http_pd_worker_t    *worker, *other;
    ngx_http_pd_cluster_t   *cluster;
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);
    cluster = plcf->lease;
    zone = cluster->main->zone->data;

    ngx_http_pd_zone_lock(zone);

    worker = cluster->shared_id
             ? ngx_http_pd_zone_worker_add(zone, cluster->shared, address)
             : NULL;

    if (worker == NULL) {
        ngx_http_pd_zone_unlock(zone);
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "pd: no place is left for worker \"%V\"", address);
        return ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_EXHAUSTED,
                                           "no place is left for a worker");
    }

    other = request->leaving ? NULL
                : ngx_http_pd_hello_namesake(zone, worker, request->hello);

    if (other) {
        ngx_http_pd_zone_unlock(zone);
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "pd: refused a registration from %V: \"%V\" claims the "
                      "name \"%s\" of worker \"%*s\"",
                      &r->connection->addr_text, address,
                      request->hello->instance, (size_t) other->address_len,
                      other->address);
        return ngx_http_pd_register_refuse(r, NGX_HTTP_PD_GRPC_EXISTS,
                                           "the name is another worker's");
    }

    fresh = (worker->lease == 0);

    if (request->leaving) {
        worker->lease = 0;
        fresh = !fresh;

    } else {
        worker->lease = ngx_http_pd_now_us()
                        + (uint64_t) cluster->lease * 1000;

        if (!worker->known) {
            ngx_http_pd_hello_learn(zone, worker, request->hello);
        }
    }

    zone->sh->leases++;

    if (fresh) {
        zone->sh->changes++;
        ngx_http_pd_slot_wake_all(zone);
    }

    ngx_http_pd_zone_unlock(zone);

    if (fresh) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "pd: worker \"%V\" %s cluster \"%V\"", address,
                      request->leaving ? "has left" : "has registered with",
                      &cluster->name);
    }

    return ngx_http_pd_register_reply(r);
}


static ngx_int_t
ngx_http_pd_register_reply(ngx_http_request_t *r)
{
    size_t                   len;
    ngx_int_t                rc;
    ngx_buf_t               *b;
    ngx_chain_t              out;
    Pd__V1__RegisterReply    reply = PD__V1__REGISTER_REPLY__INIT;
    ngx_http_pd_loc_conf_t  *plcf;

    plcf = ngx_http_get_module_loc_conf(r, ngx_http_pd_module);

    reply.lease_ms = plcf->lease->lease;

    len = pd__v1__register_reply__get_packed_size(&reply);

    b = ngx_create_temp_buf(r->pool, NGX_HTTP_PD_GRPC_PREFIX + len);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_http_pd_grpc_prefix(b->last, len);
    b->last += pd__v1__register_reply__pack(&reply, b->last);
    b->last_buf = 1;
    b->last_in_chain = 1;

    r->headers_out.status = NGX_HTTP_OK;
    ngx_str_set(&r->headers_out.content_type, "application/grpc");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->expect_trailers = 1;

    if (ngx_http_pd_register_header(r, &r->headers_out.trailers,
                                    "grpc-status", "0")
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK) {
        return rc;
    }

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


/* a response of headers alone */

static ngx_int_t
ngx_http_pd_register_refuse(ngx_http_request_t *r, ngx_uint_t status,
    const char *message)
{
    u_char  text[NGX_INT_T_LEN + 1];

    *ngx_sprintf(text, "%ui", status) = '\0';

    r->headers_out.status = NGX_HTTP_OK;
    ngx_str_set(&r->headers_out.content_type, "application/grpc");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->header_only = 1;

    if (ngx_http_pd_register_header(r, &r->headers_out.headers, "grpc-status",
                                    (char *) text)
        != NGX_OK
        || ngx_http_pd_register_header(r, &r->headers_out.headers,
                                       "grpc-message", message)
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_send_header(r);
}


static ngx_int_t
ngx_http_pd_register_header(ngx_http_request_t *r, ngx_list_t *list,
    const char *name, const char *value)
{
    ngx_str_t         s;
    ngx_table_elt_t  *h;

    h = ngx_list_push(list);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->lowcase_key = (u_char *) name;

    s.data = (u_char *) value;
    s.len = ngx_strlen(value);

    h->value.data = ngx_pstrdup(r->pool, &s);
    h->value.len = s.len;

    return h->value.data ? NGX_OK : NGX_ERROR;
}
