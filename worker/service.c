#include "worker/service.h"

#include <errno.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "worker/base/clock.h"
#include "worker/link/address.h"
#include "worker/link/link.h"
#include "worker/metrics.h"
#include "worker/model/ranks.h"
#include "worker/sizing.h"
#include "worker/version.h"

enum { TOKEN_BYTES_MAX = 256, TRANSPORTS_MAX = 4, PROGRESS_NS = 1000000000 };

struct pd_service {
    const struct pd_options *options;
    struct pd_sizing sizing;
    struct pd_model_files *files;
    struct pd_device *device;
    struct pd_device_info info;
    struct pd_kv_pool pools[PD_RANKS_MAX]; /* of each rank, alike */
    struct pd_model *model;
    struct pd_export memory[PD_RANKS_MAX]; /* fd -1: none */

    bool grpc_is_up, engine_runs;
    struct pd_link *link;
    struct pd_engine *engine;
    struct pd_kvx *kvx;
    struct pd_metrics *metrics; /* NULL: none */
    struct pd_link_identity identity;
    struct pd_link_registration registration;
    const char *transports[TRANSPORTS_MAX];
    char address[PD_ADDRESS_MAX + 1];    /* listened on */
    char reachable[PD_ADDRESS_MAX + 1];  /* what peers dial */
    char registered[PD_ADDRESS_MAX + 1]; /* what dispatchers dial */
    char instance[129], numerics[129], token[TOKEN_BYTES_MAX + 1];
};

/* ---- progress ----------------------------------------------------------------------------------- */

/* Loading calls this from several threads at once; one of them a second says something. */
struct progress {
    pthread_mutex_t lock;
    uint64_t said_ns;
    void (*poll)(void);
};

static void say_progress(void *context, const char *stage, uint64_t done, uint64_t total)
{
    struct progress *progress = context;
    uint64_t now = pd_clock_ns();

    if (progress->poll)
        progress->poll();
    pthread_mutex_lock(&progress->lock);
    if (total && now - progress->said_ns >= PROGRESS_NS) {
        progress->said_ns = now;
        pd_log(PD_LOG_INFO, "model", "%s: %d %%", stage,
               (int)(100.0 * (double)done / (double)total));
    }
    pthread_mutex_unlock(&progress->lock);
}

/* ---- loading ------------------------------------------------------------------------------------ */

static int read_token(struct pd_service *service, struct pd_error *error)
{
    const char *path = service->options->dispatcher_token_file;
    char line[TOKEN_BYTES_MAX + 2] = "";
    FILE *file;

    if (!*path)
        return PD_OK;
    file = fopen(path, "re");
    if (!file)
        return pd_fail(error, PD_IO, "--dispatcher-token-file %s: %s", path, strerror(errno));
    if (!fgets(line, sizeof(line), file))
        line[0] = '\0';
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    if (!*line || strlen(line) > TOKEN_BYTES_MAX)
        return pd_fail(error, PD_INVALID,
                       "--dispatcher-token-file %s: its first line must have 1 to %d bytes", path,
                       TOKEN_BYTES_MAX);
    strcpy(service->token, line);
    return PD_OK;
}

static int usable_cores(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int open_device(struct pd_service *service, struct pd_error *error)
{
    const struct pd_options *options = service->options;
    char why[1024] = "";
    struct pd_device_options device = {
        .kind = options->device,
        .threads = (int)options->threads,
        .ranks = service->sizing.ranks,
        .isa = options->isa,
        .precision = (enum pd_precision)options->matmul_precision,
        .eager = options->enforce_eager,
        .deterministic = options->deterministic,
        .cuda_enable = options->cuda_enable,
        .cuda_libraries = options->cuda_libraries,
        .cuda_cache = options->cuda_cache,
        .max_tokens = (int)options->max_num_batched_tokens,
        .max_seqs = (int)options->max_num_seqs,
        .max_model_len = service->sizing.max_model_len,
        .block_size = (int)options->block_size,
        .vocabulary = pd_model_files_config(service->files)->vocabulary,
    };

    if (pd_device_open(&device, &service->device, why, sizeof(why)) != PD_KERNEL_OK)
        return pd_fail(error, PD_UNSUPPORTED, "--device %s: %s", options->device, why);
    pd_device_describe(service->device, &service->info);
    pd_log(PD_LOG_INFO, "worker", "device: %s%s%s", service->info.name,
           *service->info.libraries != '\0' ? "; " : "", service->info.libraries);
    return PD_OK;
}

/* Of each rank. */
static size_t rank_pool_bytes(const struct pd_service *service)
{
    return pd_kvx_pool_bytes(&service->sizing.pool, service->sizing.ranks);
}

static int make_pools(struct pd_service *service, struct pd_error *error)
{
    size_t bytes = rank_pool_bytes(service);
    char size[32];

    for (int r = 0; r < service->sizing.ranks; r++) {
        struct pd_device *device = pd_device_rank(service->device, r);

        service->pools[r] = service->sizing.pool;
        if (pd_buffer_create(device, PD_BUFFER_KV, bytes, &service->pools[r].buffer) !=
            PD_KERNEL_OK)
            return pd_fail(error, PD_NO_MEMORY,
                           "no KV pool of %s: %s; --kv-cache-memory makes it smaller",
                           pd_size_text(bytes, size), pd_device_error(device));
    }
    return PD_OK;
}

static int load_model(struct pd_service *service, void (*poll)(void), struct pd_error *error)
{
    struct progress progress = {.said_ns = pd_clock_ns(), .poll = poll};
    int threads = (int)service->options->threads;
    struct pd_model_options options = {
        .max_model_len = service->sizing.max_model_len,
        .max_tokens = (int)service->options->max_num_batched_tokens,
        .max_seqs = (int)service->options->max_num_seqs,
        .pool = service->pools,
        .threads = threads ? threads : usable_cores(),
        .weight_cache = service->options->weight_cache,
        .progress = say_progress,
        .context = &progress,
    };
    int status;

    pthread_mutex_init(&progress.lock, NULL);
    status = pd_model_load(service->files, service->device, &options, &service->model, error);
    pthread_mutex_destroy(&progress.lock);
    return status;
}

static int open_files(struct pd_service *service, struct pd_error *error)
{
    const struct pd_options *options = service->options;

    if (strcmp(options->load_format, "dummy") != 0)
        return pd_model_files_open(options->model, &service->files, error);
    pd_log(PD_LOG_WARN, "model",
           "--load-format dummy: the weights are random, and so is every answer");
    return pd_model_files_make(options->model, (uint64_t)options->seed, (int)options->threads,
                               &service->files, error);
}

static int decide_sizes(struct pd_service *service, struct pd_error *error)
{
    const struct pd_model_config *config = pd_model_files_config(service->files);
    struct pd_sizing_room room;
    int status = pd_sizing_measure(service->options, service->files, &room, error);

    if (status == PD_OK)
        status = pd_sizing_decide(service->options, config, &room, &service->sizing, error);

    if (status == PD_OK && service->sizing.len_was_reduced)
        pd_log(PD_LOG_WARN, "worker",
               "the KV pool holds %d tokens, the model could take %d: --kv-cache-memory makes room",
               service->sizing.max_model_len, config->context);
    return status;
}

int pd_service_load(const struct pd_options *options, void (*poll)(void), struct pd_service **out,
                    struct pd_error *error)
{
    struct pd_service *service = calloc(1, sizeof(*service));
    int status;

    if (!service)
        return pd_fail(error, PD_NO_MEMORY, "out of memory");
    service->options = options;
    for (int r = 0; r < PD_RANKS_MAX; r++)
        service->memory[r].fd = -1;
    status = read_token(service, error);
    if (status == PD_OK)
        status = open_files(service, error);
    if (status == PD_OK)
        status = decide_sizes(service, error);
    if (status == PD_OK)
        status = open_device(service, error);
    if (status == PD_OK)
        status = make_pools(service, error);
    if (status == PD_OK)
        status = load_model(service, poll, error);
    if (status != PD_OK)
        pd_service_destroy(service);
    else
        *out = service;
    return status;
}

/* ---- --check ------------------------------------------------------------------------------------ */

static void print_digest(FILE *out, const char *name, const uint8_t digest[PD_DIGEST])
{
    fprintf(out, "  %-14s ", name);
    for (int i = 0; i < PD_DIGEST; i++)
        fprintf(out, "%02x", digest[i]);
    fputc('\n', out);
}

/* How many ranks there are changes bits only where the model's sums are not cut for so many. */
static void name_numerics(const struct pd_service *service, char *text, size_t size)
{
    int ranks = service->sizing.ranks;
    bool exact = service->info.ranks_are_exact &&
                 pd_model_slices(pd_model_files_config(service->files)) % ranks == 0;
    char tensor_parallel[16] = "";

    if (ranks > 1 && !exact)
        snprintf(tensor_parallel, sizeof(tensor_parallel), " tp=%d", ranks);
    snprintf(text, size, "%.82s kv=%s pd=%s%s", service->info.numerics,
             pd_dtype_name(service->sizing.pool.type), PD_VERSION, tensor_parallel);
}

static void describe_ranks(const struct pd_service *service, FILE *out)
{
    const struct pd_model_config *config = pd_model_files_config(service->files);
    int ranks = service->sizing.ranks;
    char weights[32], pool[32];

    for (int r = 0; ranks > 1 && r < ranks; r++) {
        struct pd_model_share share = pd_model_share_of(config, r, ranks);

        fprintf(out,
                "rank %d           weights %s in the files, KV pool %s, heads %d to %d, KV heads "
                "%d to %d\n",
                r, pd_size_text(pd_model_files_rank_bytes(service->files, r, ranks), weights),
                pd_size_text(rank_pool_bytes(service), pool), share.first_head,
                share.first_head + share.heads - 1, share.first_kv_head,
                share.first_kv_head + share.kv_heads - 1);
    }
}

void pd_service_describe(const struct pd_service *service, FILE *out)
{
    const struct pd_model_config *config = pd_model_files_config(service->files);
    const struct pd_fingerprint *print = pd_model_fingerprint(service->model);
    const struct pd_options *options = service->options;
    static const char *const roles[] = {"prefill", "decode", "mixed"};
    char size[32], numerics[129];

    name_numerics(service, numerics, sizeof(numerics));
    fprintf(out, "model            %s\n", options->model);
    fprintf(out, "served as        %s, role %s\n", options->served_model_name,
            roles[options->role]);
    fprintf(out, "architecture     %s%s%s%s\n", config->architecture, *config->name ? " (" : "",
            config->name, *config->name ? ")" : "");
    fprintf(out,
            "shape            %d layers, hidden %d, feed forward %d, %d heads, %d KV heads of %d, "
            "vocabulary %d\n",
            config->layers, config->hidden, config->feed_forward, config->heads, config->kv_heads,
            config->head_dim, config->vocabulary);
    fprintf(out, "weights          %s in the files\n", pd_size_text(config->weight_bytes, size));
    fprintf(out, "chat template    %s\n",
            pd_model_files_template(service->files) ? "yes" : "none: chat is refused");
    fprintf(out, "fingerprint (SHA-256)\n");
    print_digest(out, "weights", print->weights);
    print_digest(out, "tokenizer", print->tokenizer);
    print_digest(out, "chat template", print->chat_template);
    print_digest(out, "layout", print->layout);
    fprintf(out, "numerics         %s\n", numerics);
    fprintf(out, "device           %s\n", service->info.name);
    if (*service->info.libraries != '\0')
        fprintf(out, "libraries        %s\n", service->info.libraries);
    fprintf(out, "KV pool          %s: %lld blocks of %d tokens, %s\n",
            pd_size_text((uint64_t)service->sizing.ranks * rank_pool_bytes(service), size),
            (long long)service->sizing.pool.blocks, service->sizing.pool.block_size,
            pd_dtype_name(service->sizing.pool.type));
    describe_ranks(service, out);
    fprintf(out, "longest sequence %d tokens (the model: %d)\n", service->sizing.max_model_len,
            config->context);
    fprintf(out, "per step         %lld tokens, %lld sequences\n",
            (long long)options->max_num_batched_tokens, (long long)options->max_num_seqs);
}

/* ---- serving ------------------------------------------------------------------------------------ */

/* Who this worker is to others, now that its port is known. */
static int name_addresses(struct pd_service *service, struct pd_error *error)
{
    const struct pd_options *options = service->options;
    const char *host = *options->kv_bind ? options->kv_bind : options->host;
    int port = pd_link_port(service->link);

    if (!pd_address_format(options->host, port, service->address, sizeof(service->address)) ||
        !pd_address_format(host, port, service->reachable, sizeof(service->reachable)))
        return pd_fail(error, PD_INVALID, "--host %s is too long", options->host);
    if (pd_address_is_wildcard(options->host))
        snprintf(service->registered, sizeof(service->registered), ":%d", port);
    else
        strcpy(service->registered, service->address);
    snprintf(service->instance, sizeof(service->instance), "%.128s",
             *options->name ? options->name : service->reachable);
    return PD_OK;
}

static int draw_boot(struct pd_service *service, struct pd_error *error)
{
    do {
        if (getrandom(&service->identity.boot, sizeof(service->identity.boot), 0) !=
            sizeof(service->identity.boot))
            return pd_fail(error, PD_IO, "the system gives no random numbers: %s", strerror(errno));
    } while (service->identity.boot == 0);
    return PD_OK;
}

static void fill_identity(struct pd_service *service)
{
    const struct pd_options *options = service->options;
    struct pd_link_identity *identity = &service->identity;

    name_numerics(service, service->numerics, sizeof(service->numerics));
    identity->instance = service->instance;
    identity->model = options->served_model_name;
    identity->zone = options->zone;
    identity->revision = options->revision;
    identity->numerics_id = service->numerics;
    identity->address = service->registered;
    identity->role = (enum pd_role)options->role;
    identity->fingerprint = *pd_model_fingerprint(service->model);
    identity->max_model_len = (uint32_t)service->sizing.max_model_len;
    identity->block_size = (uint32_t)options->block_size;
    identity->max_num_seqs = (uint32_t)options->max_num_seqs;
    identity->vocabulary = (uint32_t)pd_model_files_config(service->files)->vocabulary;
    identity->max_num_batched_tokens = (uint32_t)options->max_num_batched_tokens;
    identity->kv_blocks = (uint64_t)service->sizing.pool.blocks;
    identity->max_submit_bytes = (uint64_t)options->max_submit_bytes;
    identity->request_timeout_s = (uint32_t)options->request_timeout;
    identity->tokenizer = pd_model_files_tokenizer(service->files);
    identity->chat_template = pd_model_files_template(service->files);
    service->registration = (struct pd_link_registration){
        options->dispatchers, (size_t)options->dispatcher_count, service->token};
}

static int make_link(struct pd_service *service, struct pd_error *error)
{
    const struct pd_options *options = service->options;
    struct pd_link_listen where = {.host = options->host,
                                   .port = (int)options->port,
                                   .tls_cert = options->tls_cert,
                                   .tls_key = options->tls_key,
                                   .tls_ca = options->tls_ca};

    /* gRPC writes lines of its own to stderr; whoever wants them says so. */
    setenv("GRPC_VERBOSITY", "NONE", 0);
    grpc_init();
    service->grpc_is_up = true;
    return pd_link_create(&where, &service->link, error);
}

static int make_engine(struct pd_service *service, struct pd_error *error)
{
    const struct pd_options *options = service->options;
    struct pd_engine_options engine = {
        .role = (enum pd_role)options->role,
        .instance = service->instance,
        .kv_address = service->reachable,
        .boot = service->identity.boot,
        .max_model_len = service->sizing.max_model_len,
        .max_tokens = (int)options->max_num_batched_tokens,
        .max_seqs = (int)options->max_num_seqs,
        .block_size = (int)options->block_size,
        .kv_blocks = service->sizing.pool.blocks,
        .prefix_caching = options->prefix_caching,
        .max_waiting = (int)options->max_waiting,
        .chunk_ms = (int)options->prefill_chunk_ms,
    };

    pd_link_engine_events(service->link, &engine.events);
    return pd_engine_create(&engine, service->model, pd_model_files_config(service->files),
                            service->device, &service->engine, error);
}

static int make_kvx(struct pd_service *service, struct pd_error *error)
{
    const struct pd_options *options = service->options;
    struct pd_kvx_options kvx = {
        .instance = service->instance,
        .boot = service->identity.boot,
        .fingerprint = service->identity.fingerprint,
        .pool = service->sizing.pool,
        .ranks = service->sizing.ranks,
        .kv_heads = pd_model_files_config(service->files)->kv_heads,
        .transport = options->kv_transport,
        .bind_host = *options->kv_bind ? options->kv_bind : options->host,
        .device = options->kv_device,
        .queue_pairs = (uint32_t)options->kv_qps,
        .busy_poll = options->kv_busy_poll,
        .checksum = options->kv_checksum,
        .tls_cert = options->kv_tls ? options->tls_cert : NULL,
        .tls_key = options->tls_key,
        .tls_ca = options->tls_ca,
        .max_model_len = (uint32_t)service->sizing.max_model_len,
    };

    for (int r = 0; r < service->sizing.ranks; r++) {
        if (pd_buffer_export(service->pools[r].buffer, &service->memory[r]) != PD_KERNEL_OK)
            return pd_fail(error, PD_UNSUPPORTED, "the KV pool cannot be shown to others: %s",
                           pd_device_error(pd_device_rank(service->device, r)));
        kvx.memory[r] = service->memory[r];
    }
    pd_engine_kvx_callbacks(service->engine, &kvx.callbacks);
    pd_link_kvx_callbacks(service->link, &kvx.callbacks);
    if (pd_kvx_create(&kvx, &service->kvx, error) != PD_OK)
        return error->status;
    service->identity.kv_transports = service->transports;
    service->identity.kv_transport_count =
        pd_kvx_transports(service->kvx, service->transports, TRANSPORTS_MAX);
    return PD_OK;
}

static int start_metrics(struct pd_service *service, struct pd_error *error)
{
    static const char *const roles[] = {"prefill", "decode", "mixed"};
    const struct pd_options *options = service->options;
    struct pd_metrics_identity identity = {
        .instance = service->instance,
        .model = options->served_model_name,
        .role = roles[options->role],
        .version = PD_VERSION,
        .numerics_id = service->numerics,
        .block_size = (uint32_t)options->block_size,
    };

    if (!options->metrics_port)
        return PD_OK;
    return pd_metrics_start(options->host, (int)options->metrics_port, &identity, service->engine,
                            &service->metrics, error);
}

int pd_service_start(struct pd_service *service, struct pd_error *error)
{
    int status = draw_boot(service, error);

    if (status == PD_OK)
        status = make_link(service, error);
    if (status == PD_OK)
        status = name_addresses(service, error);
    if (status != PD_OK)
        return status;
    fill_identity(service);
    status = make_engine(service, error);
    if (status == PD_OK)
        status = make_kvx(service, error);
    if (status == PD_OK)
        status = pd_engine_start(service->engine, service->kvx, error);
    if (status != PD_OK)
        return status;
    service->engine_runs = true;
    status = pd_link_start(service->link, &service->identity, &service->registration,
                           service->engine, service->kvx, error);
    return status == PD_OK ? start_metrics(service, error) : status;
}

const char *pd_service_address(const struct pd_service *service)
{
    return service->address;
}

int pd_service_port(const struct pd_service *service)
{
    return pd_link_port(service->link);
}

void pd_service_log_ready(const struct pd_service *service)
{
    static const char *const roles[] = {"prefill", "decode", "mixed"};
    char size[32];

    pd_log(PD_LOG_INFO, "pd-worker",
           "ready address=%s role=%s model=%s instance=%s max_model_len=%d kv_blocks=%lld (%s)",
           service->address, roles[service->options->role], service->options->served_model_name,
           service->instance, service->sizing.max_model_len, (long long)service->sizing.pool.blocks,
           pd_size_text((uint64_t)service->sizing.ranks * rank_pool_bytes(service), size));
}

/* ---- the end ------------------------------------------------------------------------------------ */

void pd_service_drain(struct pd_service *service, uint32_t deadline_ms)
{
    pd_link_drain(service->link, deadline_ms);
    pd_engine_drain(service->engine);
}

uint32_t pd_service_asked_drain_ms(const struct pd_service *service)
{
    return pd_link_asked_drain_ms(service->link);
}

bool pd_service_idle(const struct pd_service *service)
{
    return pd_engine_idle(service->engine) && pd_link_idle(service->link);
}

bool pd_service_lost(const struct pd_service *service, char *why, size_t size)
{
    return pd_engine_lost(service->engine, why, size);
}

void pd_service_destroy(struct pd_service *service)
{
    pd_metrics_stop(service->metrics);
    if (service->engine_runs)
        pd_engine_cut(service->engine);
    /* The end of its links frees what a peer holds, and would perhaps hold for long. */
    if (service->link && service->engine_runs && service->kvx)
        pd_link_release_kvx(service->link);
    if (service->engine_runs)
        pd_engine_stop(service->engine);
    if (service->kvx)
        pd_kvx_destroy(service->kvx);
    if (service->link)
        pd_link_destroy(service->link);
    if (service->engine)
        pd_engine_destroy(service->engine);
    if (service->grpc_is_up)
        grpc_shutdown_blocking();
    for (int r = 0; r < PD_RANKS_MAX; r++)
        if (service->memory[r].fd >= 0)
            close(service->memory[r].fd);
    if (service->model)
        pd_model_destroy(service->model);
    for (int r = 0; r < PD_RANKS_MAX; r++)
        if (service->pools[r].buffer)
            pd_buffer_destroy(service->pools[r].buffer);
    if (service->device)
        pd_device_close(service->device);
    if (service->files)
        pd_model_files_close(service->files);
    free(service);
}
