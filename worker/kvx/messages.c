#include "worker/kvx/messages.h"

#include <stdlib.h>
#include <string.h>

#include "proto/pd.pb-c.h"

/* ---- packing --------------------------------------------------------------------------------- */

static uint8_t *pack(const ProtobufCMessage *message, size_t *length)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(size ? size : 1);

    if (bytes)
        *length = protobuf_c_message_pack(message, bytes);
    return bytes;
}

static void wire_fingerprint(const struct pd_fingerprint *from, Pd__V1__Fingerprint *to)
{
    pd__v1__fingerprint__init(to);
    to->weights = (ProtobufCBinaryData){PD_DIGEST, (uint8_t *)from->weights};
    to->tokenizer = (ProtobufCBinaryData){PD_DIGEST, (uint8_t *)from->tokenizer};
    to->chat_template = (ProtobufCBinaryData){PD_DIGEST, (uint8_t *)from->chat_template};
    to->layout = (ProtobufCBinaryData){PD_DIGEST, (uint8_t *)from->layout};
}

static uint8_t *pack_reader_hello(const struct pd_reader_hello *from, size_t *length)
{
    Pd__V1__KvToSource message = PD__V1__KV_TO_SOURCE__INIT;
    Pd__V1__KvReaderHello hello = PD__V1__KV_READER_HELLO__INIT;
    Pd__V1__Fingerprint fingerprint;
    char *transports[PD_KV_TRANSPORTS];

    for (size_t i = 0; i < from->transport_count; i++)
        transports[i] = (char *)from->transports[i];
    wire_fingerprint(&from->fingerprint, &fingerprint);
    hello.protocol = from->protocol;
    hello.instance = (char *)from->instance;
    hello.boot = from->boot;
    hello.epoch = from->epoch;
    hello.source_boot = from->source_boot;
    hello.fingerprint = &fingerprint;
    hello.transports = transports;
    hello.n_transports = from->transport_count;
    hello.host_id = (char *)from->host_id;
    hello.checksum = from->checksum;
    hello.tls = from->tls;
    message.kind_case = PD__V1__KV_TO_SOURCE__KIND_HELLO;
    message.hello = &hello;
    return pack(&message.base, length);
}

uint8_t *pd_to_source_pack(const struct pd_to_source *from, size_t *length)
{
    Pd__V1__KvToSource message = PD__V1__KV_TO_SOURCE__INIT;
    Pd__V1__KvClaim claim = PD__V1__KV_CLAIM__INIT;
    Pd__V1__KvRelease release = PD__V1__KV_RELEASE__INIT;
    Pd__V1__KvHeartbeat heartbeat = PD__V1__KV_HEARTBEAT__INIT;

    switch (from->kind) {
    case PD_TO_SOURCE_UNKNOWN:
        break;
    case PD_TO_SOURCE_HELLO:
        return pack_reader_hello(&from->hello, length);
    case PD_TO_SOURCE_CLAIM:
        claim.generation = from->claim.generation;
        claim.epoch = from->claim.epoch;
        claim.secret = (ProtobufCBinaryData){PD_KVX_SECRET, (uint8_t *)from->claim.secret};
        message.kind_case = PD__V1__KV_TO_SOURCE__KIND_CLAIM;
        message.claim = &claim;
        break;
    case PD_TO_SOURCE_RELEASE:
        release.generation = from->generation;
        message.kind_case = PD__V1__KV_TO_SOURCE__KIND_RELEASE;
        message.release = &release;
        break;
    case PD_TO_SOURCE_HEARTBEAT:
        heartbeat.number = from->heartbeat;
        message.kind_case = PD__V1__KV_TO_SOURCE__KIND_HEARTBEAT;
        message.heartbeat = &heartbeat;
        break;
    }
    return pack(&message.base, length);
}

static uint8_t *pack_source_hello(const struct pd_source_hello *from, size_t *length)
{
    Pd__V1__KvFromSource message = PD__V1__KV_FROM_SOURCE__INIT;
    Pd__V1__KvSourceHello hello = PD__V1__KV_SOURCE_HELLO__INIT;
    Pd__V1__KvPoolLayout pool = PD__V1__KV_POOL_LAYOUT__INIT;
    Pd__V1__Fingerprint fingerprint;

    wire_fingerprint(&from->fingerprint, &fingerprint);
    pool.layers = from->pool.layers;
    pool.kv_heads = from->pool.kv_heads;
    pool.ranks = from->pool.ranks;
    pool.blocks = from->pool.blocks;
    pool.block_size = from->pool.block_size;
    pool.head_dim = from->pool.head_dim;
    pool.element_bytes = from->pool.element_bytes;
    pool.bytes = from->pool.bytes;
    pool.generations_offset = from->pool.words_offset;
    hello.protocol = from->protocol;
    hello.instance = (char *)from->instance;
    hello.boot = from->boot;
    hello.epoch = from->epoch;
    hello.fingerprint = &fingerprint;
    hello.transport = (char *)from->transport;
    hello.why = (char *)from->why;
    hello.data_address = (char *)from->data_address;
    hello.link_key = from->link_key;
    hello.pool = &pool;
    hello.checksum = from->checksum;
    if (from->tls)
        hello.certificate = (ProtobufCBinaryData){PD_DIGEST, (uint8_t *)from->certificate};
    message.kind_case = PD__V1__KV_FROM_SOURCE__KIND_HELLO;
    message.hello = &hello;
    return pack(&message.base, length);
}

/* A ChunkReady and what it points to. */
struct wire_ready {
    Pd__V1__KvChunkReady message;
    Pd__V1__KvChance chance[PD_KVX_CHANCES], *chances[PD_KVX_CHANCES];
};

static void wire_ready(const struct pd_chunk_ready *from, struct wire_ready *wire)
{
    Pd__V1__KvChunkReady *to = &wire->message;

    pd__v1__kv_chunk_ready__init(to);
    to->generation = from->generation;
    to->tokens = from->tokens;
    to->complete = from->complete;
    to->first_token = from->first.token;
    to->finish = (Pd__V1__FinishReason)from->first.finish;
    to->cached_tokens = from->first.cached;
    to->n_chances = from->first.chances;
    to->chances = wire->chances;
    for (uint32_t i = 0; i < from->first.chances; i++) {
        wire->chances[i] = &wire->chance[i];
        pd__v1__kv_chance__init(&wire->chance[i]);
        wire->chance[i].token = from->first.chance[i].token;
        wire->chance[i].logprob = from->first.chance[i].logprob;
    }
    to->sums_from = from->sums_from;
    to->n_sums = from->sum_count;
    to->sums = from->sums;
}

static uint8_t *pack_claimed(const struct pd_claimed *from, size_t *length)
{
    Pd__V1__KvFromSource message = PD__V1__KV_FROM_SOURCE__INIT;
    Pd__V1__KvClaimed claimed = PD__V1__KV_CLAIMED__INIT;
    struct wire_ready ready;
    Pd__V1__KvExtent *extents;
    Pd__V1__KvExtent **pointers;
    uint8_t *bytes = NULL;

    extents = calloc(from->extent_count + 1, sizeof(*extents));
    pointers = calloc(from->extent_count + 1, sizeof(*pointers));
    if (extents && pointers) {
        for (size_t i = 0; i < from->extent_count; i++) {
            pd__v1__kv_extent__init(&extents[i]);
            extents[i].first = from->extents[i].first;
            extents[i].count = from->extents[i].count;
            pointers[i] = &extents[i];
        }
        wire_ready(&from->ready, &ready);
        claimed.generation = from->generation;
        claimed.extents = pointers;
        claimed.n_extents = from->extent_count;
        claimed.prompt = from->prompt;
        claimed.n_prompt = from->prompt_count;
        claimed.block_generations = from->words;
        claimed.n_block_generations = from->word_count;
        claimed.ready = &ready.message;
        message.kind_case = PD__V1__KV_FROM_SOURCE__KIND_CLAIMED;
        message.claimed = &claimed;
        bytes = pack(&message.base, length);
    }
    free(extents);
    free(pointers);
    return bytes;
}

uint8_t *pd_from_source_pack(const struct pd_from_source *from, size_t *length)
{
    Pd__V1__KvFromSource message = PD__V1__KV_FROM_SOURCE__INIT;
    Pd__V1__KvGone gone = PD__V1__KV_GONE__INIT;
    Pd__V1__KvRevoked revoked = PD__V1__KV_REVOKED__INIT;
    Pd__V1__KvHeartbeat heartbeat = PD__V1__KV_HEARTBEAT__INIT;
    struct wire_ready ready;

    switch (from->kind) {
    case PD_FROM_SOURCE_UNKNOWN:
        break;
    case PD_FROM_SOURCE_HELLO:
        return pack_source_hello(&from->hello, length);
    case PD_FROM_SOURCE_CLAIMED:
        return pack_claimed(&from->claimed, length);
    case PD_FROM_SOURCE_GONE:
        gone.generation = from->gone.generation;
        gone.why = (char *)from->gone.why;
        message.kind_case = PD__V1__KV_FROM_SOURCE__KIND_GONE;
        message.gone = &gone;
        break;
    case PD_FROM_SOURCE_REVOKED:
        revoked.generation = from->gone.generation;
        revoked.why = (char *)from->gone.why;
        message.kind_case = PD__V1__KV_FROM_SOURCE__KIND_REVOKED;
        message.revoked = &revoked;
        break;
    case PD_FROM_SOURCE_READY:
        wire_ready(&from->ready, &ready);
        message.kind_case = PD__V1__KV_FROM_SOURCE__KIND_READY;
        message.ready = &ready.message;
        break;
    case PD_FROM_SOURCE_HEARTBEAT:
        heartbeat.number = from->heartbeat;
        message.kind_case = PD__V1__KV_FROM_SOURCE__KIND_HEARTBEAT;
        message.heartbeat = &heartbeat;
        break;
    }
    return pack(&message.base, length);
}

/* ---- unpacking: the budget ------------------------------------------------------------------- */

/* protobuf-c takes about 50 bytes for a two-byte sub-message; the budget caps the sum. */
struct budget {
    ProtobufCAllocator allocator;
    size_t left;
};

static void *budget_alloc(void *context, size_t size)
{
    struct budget *budget = context;

    if (size > budget->left)
        return NULL;
    budget->left -= size;
    return malloc(size);
}

static void budget_free(void *context, void *pointer)
{
    (void)context;
    free(pointer);
}

static void budget_init(struct budget *budget, size_t bytes)
{
    budget->allocator = (ProtobufCAllocator){budget_alloc, budget_free, budget};
    budget->left = bytes;
}

static size_t blocks_max(uint32_t max_tokens)
{
    return (size_t)max_tokens / PD_LAYOUT_BLOCK_MIN + 1;
}

/* A token id takes at most 5 bytes, an extent 18, a generation word 10, a sum 8. */
size_t pd_from_source_max(uint32_t max_tokens)
{
    return 4096 + 5 * (size_t)max_tokens + (18 + 10 + 8) * blocks_max(max_tokens);
}

/* A token id takes 4 bytes, a word 8, an extent its structure, a pointer and the parser's notes. */
static size_t from_source_budget(uint32_t max_tokens)
{
    return 32768 + 4 * (size_t)max_tokens + 256 * blocks_max(max_tokens);
}

/* ---- unpacking: fields ----------------------------------------------------------------------- */

static int take_name(const char *field, const char *from, char *to, size_t size,
                     struct pd_error *error)
{
    size_t length = strlen(from);

    if (length >= size)
        return pd_fail(error, PD_INVALID, "%s has %zu bytes, more than %zu", field, length,
                       size - 1);
    memcpy(to, from, length + 1);
    return PD_OK;
}

static int take_bytes(const char *field, const ProtobufCBinaryData *from, uint8_t *to, size_t size,
                      struct pd_error *error)
{
    if (from->len != size)
        return pd_fail(error, PD_INVALID, "%s has %zu bytes instead of %zu", field, from->len,
                       size);
    memcpy(to, from->data, size);
    return PD_OK;
}

void pd_kv_cut(char *to, size_t size, const char *from)
{
    size_t length = strnlen(from, size - 1);

    memcpy(to, from, length);
    to[length] = '\0';
}

static int take_fingerprint(const Pd__V1__Fingerprint *from, struct pd_fingerprint *to,
                            struct pd_error *error)
{
    int status;

    if (!from)
        return pd_fail(error, PD_INVALID, "hello: no fingerprint");
    status = take_bytes("fingerprint.weights", &from->weights, to->weights, PD_DIGEST, error);
    if (status == PD_OK)
        status =
            take_bytes("fingerprint.tokenizer", &from->tokenizer, to->tokenizer, PD_DIGEST, error);
    if (status == PD_OK)
        status = take_bytes("fingerprint.chat_template", &from->chat_template, to->chat_template,
                            PD_DIGEST, error);
    if (status == PD_OK)
        status = take_bytes("fingerprint.layout", &from->layout, to->layout, PD_DIGEST, error);
    return status;
}

static int take_reader_hello(const Pd__V1__KvReaderHello *from, struct pd_reader_hello *to,
                             struct pd_error *error)
{
    to->protocol = from->protocol;
    to->boot = from->boot;
    to->epoch = from->epoch;
    to->source_boot = from->source_boot;
    to->checksum = from->checksum;
    to->tls = from->tls;
    if (take_name("hello.instance", from->instance, to->instance, sizeof(to->instance), error) !=
            PD_OK ||
        take_name("hello.host_id", from->host_id, to->host_id, sizeof(to->host_id), error) !=
            PD_OK ||
        take_fingerprint(from->fingerprint, &to->fingerprint, error) != PD_OK)
        return PD_INVALID;
    if (from->n_transports > PD_KV_TRANSPORTS)
        return pd_fail(error, PD_INVALID, "hello: %zu transports, more than %d", from->n_transports,
                       PD_KV_TRANSPORTS);
    to->transport_count = from->n_transports;
    for (size_t i = 0; i < from->n_transports; i++)
        pd_kv_cut(to->transports[i], sizeof(to->transports[i]), from->transports[i]);
    return PD_OK;
}

static int take_layout(const Pd__V1__KvPoolLayout *from, struct pd_layout *to,
                       struct pd_error *error)
{
    if (!from)
        return pd_fail(error, PD_INVALID, "hello: no pool layout");
    to->layers = from->layers;
    to->kv_heads = from->kv_heads;
    to->ranks = from->ranks;
    to->blocks = from->blocks;
    to->block_size = from->block_size;
    to->head_dim = from->head_dim;
    to->element_bytes = from->element_bytes;
    if (pd_layout_derive(to, error) != PD_OK)
        return PD_INVALID;
    if (from->bytes != to->bytes || from->generations_offset != to->words_offset)
        return pd_fail(error, PD_INVALID,
                       "hello: the pool's %llu bytes, words at %llu, do not follow from its shape",
                       (unsigned long long)from->bytes,
                       (unsigned long long)from->generations_offset);
    return PD_OK;
}

static int take_source_hello(const Pd__V1__KvSourceHello *from, struct pd_source_hello *to,
                             struct pd_error *error)
{
    to->protocol = from->protocol;
    to->boot = from->boot;
    to->epoch = from->epoch;
    to->link_key = from->link_key;
    to->checksum = from->checksum;
    to->tls = from->certificate.len > 0;
    pd_kv_cut(to->why, sizeof(to->why), from->why);
    if (take_name("hello.instance", from->instance, to->instance, sizeof(to->instance), error) !=
            PD_OK ||
        take_name("hello.transport", from->transport, to->transport, sizeof(to->transport),
                  error) != PD_OK ||
        take_name("hello.data_address", from->data_address, to->data_address,
                  sizeof(to->data_address), error) != PD_OK ||
        take_fingerprint(from->fingerprint, &to->fingerprint, error) != PD_OK ||
        (to->tls && take_bytes("hello.certificate", &from->certificate, to->certificate, PD_DIGEST,
                               error) != PD_OK))
        return PD_INVALID;
    if (to->transport[0] == '\0')
        return PD_OK;
    return take_layout(from->pool, &to->pool, error);
}

static void *copy_array(const void *from, size_t count, size_t size)
{
    void *to = calloc(count + 1, size);

    if (to && count)
        memcpy(to, from, count * size);
    return to;
}

static int take_ready(const Pd__V1__KvChunkReady *from, uint32_t max_tokens,
                      struct pd_chunk_ready *to, struct pd_error *error)
{
    bool known = from->finish == PD__V1__FINISH_REASON__FINISH_STOP ||
                 from->finish == PD__V1__FINISH_REASON__FINISH_LENGTH ||
                 from->finish == PD__V1__FINISH_REASON__FINISH_TOOL_CALLS;

    to->generation = from->generation;
    to->tokens = from->tokens;
    to->complete = from->complete;
    to->first.token = from->first_token;
    to->first.finish = known ? (int)from->finish : (int)PD__V1__FINISH_REASON__FINISH_NONE;
    to->first.cached = from->cached_tokens;
    if (from->n_chances > PD_KVX_CHANCES)
        return pd_fail(error, PD_INVALID, "ready: %zu log probabilities, more than %d",
                       from->n_chances, PD_KVX_CHANCES);
    to->first.chances = (uint32_t)from->n_chances;
    for (size_t i = 0; i < from->n_chances; i++)
        to->first.chance[i] =
            (struct pd_kvx_chance){from->chances[i]->token, from->chances[i]->logprob};
    if (from->n_sums == 0)
        return PD_OK;
    if (from->n_sums > blocks_max(max_tokens) ||
        from->sums_from > blocks_max(max_tokens) - from->n_sums)
        return pd_fail(error, PD_INVALID, "ready: %zu sums from block %u, more than %u tokens have",
                       from->n_sums, from->sums_from, max_tokens);
    to->sums = copy_array(from->sums, from->n_sums, sizeof(*to->sums));
    if (!to->sums)
        return pd_fail(error, PD_NO_MEMORY, "ready: no memory");
    to->sums_from = from->sums_from;
    to->sum_count = from->n_sums;
    return PD_OK;
}

static int take_extents(const Pd__V1__KvClaimed *from, struct pd_claimed *to,
                        struct pd_error *error)
{
    for (size_t i = 0; i < from->n_extents; i++) {
        const Pd__V1__KvExtent *extent = from->extents[i];

        if (extent->count == 0 || extent->first > INT32_MAX ||
            extent->count > INT32_MAX - extent->first)
            return pd_fail(error, PD_INVALID, "claimed: extent %zu (%llu, %u) is out of any pool",
                           i, (unsigned long long)extent->first, extent->count);
        to->extents[i] = (struct pd_extent){(uint32_t)extent->first, extent->count};
    }
    to->extent_count = from->n_extents;
    return PD_OK;
}

static int take_claimed(const Pd__V1__KvClaimed *from, uint32_t max_tokens, struct pd_claimed *to,
                        struct pd_error *error)
{
    if (from->n_prompt > max_tokens)
        return pd_fail(error, PD_INVALID, "claimed: %zu prompt tokens, more than %u",
                       from->n_prompt, max_tokens);
    if (from->n_extents > blocks_max(max_tokens) ||
        from->n_block_generations > blocks_max(max_tokens))
        return pd_fail(error, PD_INVALID, "claimed: more extents or words than %u tokens can have",
                       max_tokens);
    to->generation = from->generation;
    if (from->ready && take_ready(from->ready, max_tokens, &to->ready, error) != PD_OK)
        return PD_INVALID;
    to->extents = calloc(from->n_extents + 1, sizeof(*to->extents));
    to->prompt = copy_array(from->prompt, from->n_prompt, sizeof(*to->prompt));
    to->words = copy_array(from->block_generations, from->n_block_generations, sizeof(*to->words));
    if (!to->extents || !to->prompt || !to->words)
        return pd_fail(error, PD_NO_MEMORY, "claimed: no memory");
    to->prompt_count = from->n_prompt;
    to->word_count = from->n_block_generations;
    return take_extents(from, to, error);
}

/* ---- unpacking: messages --------------------------------------------------------------------- */

static int take_to_source(const Pd__V1__KvToSource *from, struct pd_to_source *to,
                          struct pd_error *error)
{
    switch (from->kind_case) {
    case PD__V1__KV_TO_SOURCE__KIND_HELLO:
        to->kind = PD_TO_SOURCE_HELLO;
        return take_reader_hello(from->hello, &to->hello, error);
    case PD__V1__KV_TO_SOURCE__KIND_CLAIM:
        to->kind = PD_TO_SOURCE_CLAIM;
        to->claim.generation = from->claim->generation;
        to->claim.epoch = from->claim->epoch;
        return take_bytes("claim.secret", &from->claim->secret, to->claim.secret, PD_KVX_SECRET,
                          error);
    case PD__V1__KV_TO_SOURCE__KIND_RELEASE:
        to->kind = PD_TO_SOURCE_RELEASE;
        to->generation = from->release->generation;
        return PD_OK;
    case PD__V1__KV_TO_SOURCE__KIND_HEARTBEAT:
        to->kind = PD_TO_SOURCE_HEARTBEAT;
        to->heartbeat = from->heartbeat->number;
        return PD_OK;
    default:
        to->kind = PD_TO_SOURCE_UNKNOWN;
        return PD_OK;
    }
}

int pd_to_source_unpack(const uint8_t *bytes, size_t length, struct pd_to_source *message,
                        struct pd_error *error)
{
    struct budget budget;
    Pd__V1__KvToSource *wire;
    int status;

    memset(message, 0, sizeof(*message));
    if (length > PD_KV_TO_SOURCE_MAX)
        return pd_fail(error, PD_INVALID, "a message of %zu bytes, more than %d", length,
                       PD_KV_TO_SOURCE_MAX);
    budget_init(&budget, 8 * PD_KV_TO_SOURCE_MAX);
    wire = pd__v1__kv_to_source__unpack(&budget.allocator, length, bytes);
    if (!wire)
        return pd_fail(error, PD_INVALID, "bytes that are no KvToSource message");
    status = take_to_source(wire, message, error);
    pd__v1__kv_to_source__free_unpacked(wire, &budget.allocator);
    return status;
}

static int take_from_source(const Pd__V1__KvFromSource *from, uint32_t max_tokens,
                            struct pd_from_source *to, struct pd_error *error)
{
    switch (from->kind_case) {
    case PD__V1__KV_FROM_SOURCE__KIND_HELLO:
        to->kind = PD_FROM_SOURCE_HELLO;
        return take_source_hello(from->hello, &to->hello, error);
    case PD__V1__KV_FROM_SOURCE__KIND_CLAIMED:
        to->kind = PD_FROM_SOURCE_CLAIMED;
        return take_claimed(from->claimed, max_tokens, &to->claimed, error);
    case PD__V1__KV_FROM_SOURCE__KIND_GONE:
        to->kind = PD_FROM_SOURCE_GONE;
        to->gone.generation = from->gone->generation;
        pd_kv_cut(to->gone.why, sizeof(to->gone.why), from->gone->why);
        return PD_OK;
    case PD__V1__KV_FROM_SOURCE__KIND_REVOKED:
        to->kind = PD_FROM_SOURCE_REVOKED;
        to->gone.generation = from->revoked->generation;
        pd_kv_cut(to->gone.why, sizeof(to->gone.why), from->revoked->why);
        return PD_OK;
    case PD__V1__KV_FROM_SOURCE__KIND_READY:
        to->kind = PD_FROM_SOURCE_READY;
        return take_ready(from->ready, max_tokens, &to->ready, error);
    case PD__V1__KV_FROM_SOURCE__KIND_HEARTBEAT:
        to->kind = PD_FROM_SOURCE_HEARTBEAT;
        to->heartbeat = from->heartbeat->number;
        return PD_OK;
    default:
        to->kind = PD_FROM_SOURCE_UNKNOWN;
        return PD_OK;
    }
}

int pd_from_source_unpack(const uint8_t *bytes, size_t length, uint32_t max_tokens,
                          struct pd_from_source *message, struct pd_error *error)
{
    struct budget budget;
    Pd__V1__KvFromSource *wire;
    int status;

    memset(message, 0, sizeof(*message));
    if (length > pd_from_source_max(max_tokens))
        return pd_fail(error, PD_INVALID, "a message of %zu bytes, more than %zu", length,
                       pd_from_source_max(max_tokens));
    budget_init(&budget, from_source_budget(max_tokens));
    wire = pd__v1__kv_from_source__unpack(&budget.allocator, length, bytes);
    if (!wire)
        return pd_fail(error, PD_INVALID, "bytes that are no KvFromSource message");
    status = take_from_source(wire, max_tokens, message, error);
    pd__v1__kv_from_source__free_unpacked(wire, &budget.allocator);
    if (status != PD_OK)
        pd_from_source_clear(message);
    return status;
}

void pd_from_source_clear(struct pd_from_source *message)
{
    if (message->kind == PD_FROM_SOURCE_CLAIMED) {
        free(message->claimed.extents);
        free(message->claimed.prompt);
        free(message->claimed.words);
        free(message->claimed.ready.sums);
    } else if (message->kind == PD_FROM_SOURCE_READY) {
        free(message->ready.sums);
    }
    memset(message, 0, sizeof(*message));
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

static int match_digest(const char *what, const uint8_t *source, const uint8_t *reader,
                        struct pd_error *error)
{
    if (memcmp(source, reader, PD_DIGEST) == 0)
        return PD_OK;
    return pd_fail(error, PD_INVALID,
                   "%s differ: source %02x%02x%02x%02x..., reader %02x%02x%02x%02x...; serve the "
                   "same model files and layout on both workers",
                   what, source[0], source[1], source[2], source[3], reader[0], reader[1],
                   reader[2], reader[3]);
}

int pd_fingerprint_match(const struct pd_fingerprint *source, const struct pd_fingerprint *reader,
                         struct pd_error *error)
{
    if (match_digest("weights", source->weights, reader->weights, error) != PD_OK ||
        match_digest("tokenizers", source->tokenizer, reader->tokenizer, error) != PD_OK ||
        match_digest("chat templates", source->chat_template, reader->chat_template, error) !=
            PD_OK ||
        match_digest("KV layouts", source->layout, reader->layout, error) != PD_OK)
        return PD_INVALID;
    return PD_OK;
}
