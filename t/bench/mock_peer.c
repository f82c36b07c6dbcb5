/* The back ends of what ngx_pd is measured beside: as cheap as can be, no model.
 *
 *     mock_peer unary                   gRPC over HTTP/2 (libnghttp2): whatever a call sends, it gets one
 *                                       message of 80 bytes and grpc-status 0
 *     mock_peer events [interval=MS]    HTTP/1.1: a request for /events/N is answered with N server-sent
 *                                       events as chunks of their own: the first at once, then one for
 *                                       every stream at every tick
 *     mock_peer chat [interval=MS]      HTTP/1.1, as an engine behind a router for chat requests: GET is
 *                                       answered with a few words about the engine; POST with
 *                                       max_tokens words, as events if "stream" is true, else at once
 *
 * One thread, one epoll. Sockets block: a peer whose answers do not fit into a socket's buffer is
 * measuring something else. Prints "port N" and serves until its input ends. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { READ_BYTES = 16384, HEAD_BYTES = 16384, MESSAGE_BYTES = 80, CONNECTIONS_MAX = 4096 };

struct connection {
    int fd;
    nghttp2_session *session; /* unary */
    long left;                /* events still to send */
    size_t head_length;
    char head[HEAD_BYTES + 1]; /* what has come of the request; chat: with its body */
};

struct kind {
    const char *name;
    bool (*speak)(struct connection *c, const uint8_t *bytes, size_t length); /* false: drop it */
    bool (*end)(struct connection *c); /* behind the last event; false: drop it */
};

static struct connection *connections[CONNECTIONS_MAX]; /* by file descriptor */
static const struct kind *kind;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void drop(struct connection *c)
{
    connections[c->fd] = NULL;
    nghttp2_session_del(c->session);
    close(c->fd);
    free(c);
}

static bool send_all(const struct connection *c, const void *bytes, size_t length)
{
    return send(c->fd, bytes, length, MSG_NOSIGNAL) == (ssize_t)length;
}

/* ---- unary -------------------------------------------------------------------------------------- */

#define HEADER(name, value)                                                                        \
    {                                                                                              \
        (uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1,                \
            NGHTTP2_NV_FLAG_NONE                                                                   \
    }

static ssize_t give_message(nghttp2_session *session, int32_t stream, uint8_t *buffer,
                            size_t length, uint32_t *flags, nghttp2_data_source *source,
                            void *context)
{
    static const nghttp2_nv trailer[] = {HEADER("grpc-status", "0")};

    (void)source;
    (void)context;
    if (length < 5 + MESSAGE_BYTES)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    memset(buffer, 'x', 5 + MESSAGE_BYTES);
    memcpy(buffer, (uint8_t[]){0, 0, 0, 0, MESSAGE_BYTES}, 5);
    *flags = NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    nghttp2_submit_trailer(session, stream, trailer, 1);
    return 5 + MESSAGE_BYTES;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    static const nghttp2_nv headers[] = {HEADER(":status", "200"),
                                         HEADER("content-type", "application/grpc")};
    nghttp2_data_provider body = {.read_callback = give_message};

    (void)context;
    if (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS)
        return 0;
    if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    return nghttp2_submit_response(session, frame->hd.stream_id, headers, 2, &body);
}

static nghttp2_session *session_create(void)
{
    nghttp2_session_callbacks *callbacks;
    nghttp2_session *session;

    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_server_new(&session, callbacks, NULL);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, NULL, 0);
    return session;
}

static bool speak_http2(struct connection *c, const uint8_t *bytes, size_t length)
{
    const uint8_t *out;
    ssize_t n;

    if (!c->session)
        c->session = session_create();
    if (nghttp2_session_mem_recv(c->session, bytes, length) < 0)
        return false;
    while ((n = nghttp2_session_mem_send(c->session, &out)) > 0)
        if (!send_all(c, out, (size_t)n))
            return false;
    return n == 0;
}

/* ---- events ------------------------------------------------------------------------------------- */

static const char event_stream[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                   "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n";

static bool send_chunk(struct connection *c, const char *data, size_t length)
{
    char chunk[1024];

    return send_all(
        c, chunk,
        (size_t)snprintf(chunk, sizeof(chunk), "%zx\r\n%.*s\r\n", length, (int)length, data));
}

/* One event; behind the last one the end of its kind. */
static bool send_event(struct connection *c)
{
    static const char event[] = "data: "
                                "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":"
                                "\"chat.completion.chunk\","
                                "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,"
                                "\"delta\":{\"content\":\"word \"},"
                                "\"logprobs\":null,\"finish_reason\":null}]}\n\n";

    if (!send_chunk(c, event, sizeof(event) - 1))
        return false;
    return --c->left > 0 || kind->end(c);
}

static bool collect(struct connection *c, const uint8_t *bytes, size_t length)
{
    if (length > HEAD_BYTES - c->head_length)
        return false;
    memcpy(c->head + c->head_length, bytes, length);
    c->head_length += length;
    c->head[c->head_length] = 0;
    return true;
}

/* Collects the head, ignores the body. */
static bool speak_events(struct connection *c, const uint8_t *bytes, size_t length)
{
    const char *count;

    if (c->left > 0)
        return true;
    if (!collect(c, bytes, length))
        return false;
    if (!strstr(c->head, "\r\n\r\n"))
        return true;
    count = strstr(c->head, "/events/");
    c->left = count ? atol(count + 8) : 0;
    return c->left > 0 && send_all(c, event_stream, sizeof(event_stream) - 1) &&
           send_all(c, "Connection: close\r\n\r\n", 21) && send_event(c);
}

static bool end_events(struct connection *c)
{
    send_all(c, "0\r\n\r\n", 5);
    return false;
}

/* ---- chat --------------------------------------------------------------------------------------- */

static bool send_json(struct connection *c, const char *json)
{
    char response[READ_BYTES];
    int length = snprintf(response, sizeof(response),
                          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\n\r\n%s",
                          strlen(json), json);

    return length < (int)sizeof(response) && send_all(c, response, (size_t)length);
}

/* A whole answer of so many words. */
static bool send_answer(struct connection *c, long words)
{
    static const char word[] = "word ";
    char text[4096], json[8192];
    size_t length = 0;

    while (words-- > 0 && length + sizeof(word) < sizeof(text))
        length += (size_t)sprintf(text + length, "%s", word);
    snprintf(
        json, sizeof(json),
        "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\","
        "\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
        "\"assistant\",\"content\":\"%.*s\"},\"logprobs\":null,\"finish_reason\":\"length\"}],"
        "\"usage\":{\"prompt_tokens\":75,\"completion_tokens\":16,\"total_tokens\":91},"
        "\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_engine_id\":\"e\","
        "\"remote_block_ids\":[1,2,3],\"remote_host\":\"127.0.0.1\",\"remote_port\":1}}",
        (int)length, text);
    return send_json(c, json);
}

/* The number behind `name` in the request's body, or `otherwise`. */
static long number(const char *body, const char *name, long otherwise)
{
    const char *found = strstr(body, name);

    return found ? atol(found + strlen(name) + (found[strlen(name)] == ' ')) : otherwise;
}

static bool answer_chat(struct connection *c, const char *body)
{
    long words = number(body, "\"max_tokens\":", 16);

    if (!strstr(body, "\"stream\":true") && !strstr(body, "\"stream\": true"))
        return send_answer(c, words);
    c->left = words;
    return send_all(c, event_stream, sizeof(event_stream) - 1) && send_all(c, "\r\n", 2) &&
           send_event(c);
}

/* Collects whole requests, one at a time. */
static bool speak_chat(struct connection *c, const uint8_t *bytes, size_t length)
{
    static const char about[] =
        "{\"status\":\"ok\",\"model_path\":\"m\",\"model_id\":\"m\","
        "\"is_generation\":true,\"object\":\"list\",\"data\":[{\"id\":\"m\","
        "\"object\":\"model\",\"owned_by\":\"mock\"}]}";
    const char *size, *body;

    if (!collect(c, bytes, length))
        return false;
    if (!(body = strstr(c->head, "\r\n\r\n")))
        return true;
    body += 4;
    size = strcasestr(c->head, "\r\ncontent-length:");
    if (size && size < body && strlen(body) < (size_t)atol(size + 17))
        return true;
    c->head_length = 0;
    return strncmp(c->head, "POST", 4) ? send_json(c, about) : answer_chat(c, body);
}

static bool end_chat(struct connection *c)
{
    static const char done[] = "data: [DONE]\n\n";

    return send_chunk(c, done, sizeof(done) - 1) && send_all(c, "0\r\n\r\n", 5);
}

static void tick(int timer)
{
    uint64_t times;

    if (read(timer, &times, sizeof(times)) != sizeof(times))
        die("timer");
    for (int fd = 0; fd < CONNECTIONS_MAX; fd++)
        if (connections[fd] && connections[fd]->left > 0 && !send_event(connections[fd]))
            drop(connections[fd]);
}

/* ---- the process -------------------------------------------------------------------------------- */

static void watch(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll");
}

static void welcome(int epoll, int listener)
{
    int fd = accept(listener, NULL, NULL), one = 1;

    if (fd < 0 || fd >= CONNECTIONS_MAX)
        die("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    connections[fd] = calloc(1, sizeof(struct connection));
    connections[fd]->fd = fd;
    watch(epoll, fd);
}

static void serve(struct connection *c)
{
    uint8_t bytes[READ_BYTES];
    ssize_t n = recv(c->fd, bytes, sizeof(bytes), 0);

    if (n <= 0 || !kind->speak(c, bytes, (size_t)n))
        drop(c);
}

static int listen_anywhere(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 1024) < 0)
        die("listen");
    getsockname(fd, (struct sockaddr *)&address, &length);
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static int timer_create_ms(long interval)
{
    struct timespec period = {interval / 1000, interval % 1000 * 1000000};
    struct itimerspec times = {period, period};
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);

    if (fd < 0 || timerfd_settime(fd, 0, &times, NULL) < 0)
        die("timer");
    return fd;
}

static const struct kind kinds[] = {
    {"unary", speak_http2, NULL},
    {"events", speak_events, end_events},
    {"chat", speak_chat, end_chat},
};

int main(int argc, char **argv)
{
    int epoll = epoll_create1(0), listener, timer = -1;
    struct epoll_event event;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (argc > 1 && !strcmp(argv[1], kinds[i].name))
            kind = &kinds[i];
    if (!kind ||
        (kind->end && (argc < 3 || strncmp(argv[2], "interval=", 9) || atol(argv[2] + 9) <= 0))) {
        fprintf(stderr, "usage: mock_peer unary | mock_peer events|chat interval=MS\n");
        return 2;
    }
    if (kind->end) {
        timer = timer_create_ms(atol(argv[2] + 9));
        watch(epoll, timer);
    }
    watch(epoll, STDIN_FILENO);
    watch(epoll, listener = listen_anywhere());
    while (epoll_wait(epoll, &event, 1, -1) == 1) {
        if (event.data.fd == STDIN_FILENO)
            return 0;
        if (event.data.fd == listener)
            welcome(epoll, listener);
        else if (event.data.fd == timer)
            tick(timer);
        else if (connections[event.data.fd])
            serve(connections[event.data.fd]);
    }
    die("epoll_wait");
}
