/* Control streams: bytes in order, delayed; a message may come twice; a stream that is cut loses
 * what is under way, and each end notices for itself, or does not. */
#include <stdlib.h>
#include <string.h>

#include "t/kvx/world.h"

static bool d_lives(const struct stream *stream)
{
    return stream->d_open && stream->d_life == stream->d->life;
}

static bool p_lives(const struct stream *stream)
{
    return stream->established && stream->p_open && stream->p_life == stream->p->life;
}

static struct stream *stream_of(const struct node *node, uint64_t link)
{
    for (size_t i = 0; i < world.stream_count; i++) {
        struct stream *stream = &world.streams[i];

        if ((stream->d == node && stream->d_life == node->life && stream->d_link == link) ||
            (stream->p == node && stream->established && stream->p_life == node->life &&
             stream->p_link == link))
            return stream;
    }
    return NULL;
}

static bool parted(const struct stream *stream)
{
    return world.parted[stream->d->index][stream->p->index];
}

static void plan(struct stream *stream, struct node *to, enum event_kind kind, uint8_t *bytes,
                 size_t length)
{
    uint64_t *last = to == stream->p ? &stream->to_p : &stream->to_d;
    uint64_t at = world.now + kvx_draw(world.weather.message_ns);
    struct event event = {
        .kind = kind, .node = to, .stream = stream, .bytes = bytes, .length = length};

    if (parted(stream)) /* retransmitted, if anybody is still there then */
        at += world.parted_until - world.now;
    *last = at > *last ? at : *last;
    kvx_plan(*last - world.now, event);
}

/* ---- what a worker asks for ------------------------------------------------------------------ */

void kvx_stream_open(struct node *d, uint64_t link, const char *address)
{
    struct stream *stream = &world.streams[world.stream_count];

    if (d->dying)
        return;
    CHECK(world.stream_count < STREAMS, "more links than a history can need");
    world.stream_count++;
    *stream = (struct stream){.d = d, .d_life = d->life, .d_link = link};
    stream->d_open = true;
    stream->p = &world.nodes[address[1] - '0'];
    SAY("%s: opens link %llu to %s", d->name, (unsigned long long)link, stream->p->name);
    kvx_plan(kvx_draw(world.weather.message_ns),
             (struct event){.kind = EV_ESTABLISH, .node = stream->p, .stream = stream});
}

/* The first byte of the message tells a hello: doubled ones are bad manners, and end the link. */
static bool is_hello(const uint8_t *bytes, size_t length)
{
    return length > 0 && bytes[0] >> 3 == 1;
}

void kvx_stream_send(struct node *from, uint64_t link, uint8_t *bytes, size_t length)
{
    struct stream *stream = from->dying ? NULL : stream_of(from, link);
    struct node *to;

    if (!stream || stream->cut) {
        free(bytes);
        return;
    }
    CHECK(!(from == stream->d ? stream->d_closed : stream->p_closed),
          "%s sends on a stream that it has closed", from->name);
    to = from == stream->d ? stream->p : stream->d;
    if (!is_hello(bytes, length) && kvx_chance(world.weather.duplicate)) {
        uint8_t *again = malloc(length);

        memcpy(again, bytes, length);
        plan(stream, to, EV_MESSAGE, again, length);
    }
    plan(stream, to, EV_MESSAGE, bytes, length);
}

/* Behind what was sent. */
void kvx_stream_close(struct node *from, uint64_t link)
{
    struct stream *stream = from->dying ? NULL : stream_of(from, link);

    if (!stream)
        return;
    SAY("%s: ends the stream to %s", from->name,
        from == stream->d ? stream->p->name : stream->d->name);
    if (from == stream->d) {
        stream->d_open = false;
        stream->d_closed = true;
    } else {
        stream->p_open = false;
        stream->p_closed = true;
    }
    if (!stream->cut)
        plan(stream, from == stream->d ? stream->p : stream->d, EV_STREAM_ENDS, NULL, 0);
}

/* ---- misfortunes ----------------------------------------------------------------------------- */

/* One end may notice long before the other. */
static void notice(struct stream *stream, struct node *node)
{
    kvx_plan(kvx_draw(kvx_draw(2) ? world.weather.message_ns : 150 * MS),
             (struct event){.kind = EV_STREAM_ENDS, .node = node, .stream = stream});
}

void kvx_stream_cut(struct stream *stream, bool told)
{
    if (stream->cut)
        return;
    SAY("the stream of %s to %s is cut%s", stream->d->name, stream->p->name,
        told ? "" : ", silently");
    stream->cut = true;
    if (told && d_lives(stream))
        notice(stream, stream->d);
    if (told && p_lives(stream))
        notice(stream, stream->p);
}

void kvx_streams_of_dead(struct node *node)
{
    for (size_t i = 0; i < world.stream_count; i++) {
        struct stream *stream = &world.streams[i];

        if (stream->d == node && stream->d_life == node->life)
            stream->d_open = false;
        else if (stream->p == node && stream->established && stream->p_life == node->life)
            stream->p_open = false;
        else
            continue;
        kvx_stream_cut(stream, true);
    }
}

struct stream *kvx_some_stream(void)
{
    size_t start = world.stream_count ? kvx_draw(world.stream_count) : 0;

    for (size_t i = 0; i < world.stream_count; i++) {
        struct stream *stream = &world.streams[(start + i) % world.stream_count];

        if (!stream->cut && (d_lives(stream) || p_lives(stream)))
            return stream;
    }
    return NULL;
}

/* ---- events ---------------------------------------------------------------------------------- */

void kvx_establish(const struct event *event)
{
    struct stream *stream = event->stream;

    if (!d_lives(stream) || stream->cut)
        return;
    if (!world.quiet && kvx_draw(12) == 0) {
        stream->cut = true;
        stream->d_open = false;
        pd_kvx_link_down(stream->d->kvx, stream->d_link, "refused");
        return;
    }
    stream->established = stream->p_open = true;
    stream->p_life = stream->p->life;
    stream->p_link = pd_kvx_next_link_id(stream->p->kvx);
    pd_kvx_reader_up(stream->p->kvx, stream->p_link, stream->d->name);
    pd_kvx_link_up(stream->d->kvx, stream->d_link);
}

void kvx_message(const struct event *event)
{
    struct stream *stream = event->stream;
    struct node *to = event->node;

    if (!stream->cut && to == stream->p && p_lives(stream))
        pd_kvx_receive(to->kvx, stream->p_link, event->bytes, event->length);
    else if (!stream->cut && to == stream->d && d_lives(stream))
        pd_kvx_receive(to->kvx, stream->d_link, event->bytes, event->length);
    free(event->bytes);
}

void kvx_stream_ends(const struct event *event)
{
    struct stream *stream = event->stream;

    if (event->node == stream->p && p_lives(stream)) {
        stream->p_open = false;
        pd_kvx_link_down(stream->p->kvx, stream->p_link, "the stream has ended");
    } else if (event->node == stream->d && d_lives(stream)) {
        stream->d_open = false;
        pd_kvx_link_down(stream->d->kvx, stream->d_link, "the stream has ended");
    }
}
