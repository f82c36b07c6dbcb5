#include "worker/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "worker/link/address.h"

enum kind {
    TEXT,
    NUMBER,   /* int64_t within [low, high] */
    BYTES,    /* int64_t with an optional binary suffix, within [low, high] */
    FRACTION, /* double in (0, 1] */
    CHOICE,   /* int: index into `choices` */
    WORD,     /* const char *: one of `choices` */
    SWITCH,   /* bool: --x or --no-x */
    ACTION,   /* bool: --x */
    ADDRESSES /* dispatchers: may be given several times */
};

enum group { SERVICE, MODEL, MEMORY, SCHEDULING, DEVICE, TRANSFER, SECURITY, RUNNING, GROUPS };

static const char *const group_titles[GROUPS] = {
    "Service", "Model", "KV memory", "Scheduling", "Device", "KV hand-off", "Security", "Running"};

static const char *const roles[] = {"prefill", "decode", "mixed", NULL};
static const char *const kv_dtypes[] = {"auto", "f32", "f16", "bf16", NULL};
static const char *const load_formats[] = {"auto", "dummy", NULL};
static const char *const devices[] = {"cpu", "cuda", "reference", NULL};
static const char *const isas[] = {"auto", "baseline", "avx2", "avx512",
                                   "vnni", "bf16",     "amx",  NULL};
static const char *const precisions[] = {"f32", "int8", "int12", "bf16", "auto", NULL};
static const char *const transports[] = {"auto", "gpu", "shm", "rdma", "tcp", NULL};
static const char *const levels[] = {"debug", "info", "warn", "error", NULL};

struct flag {
    const char *name, *value; /* `value`: what the help calls it */
    enum group group;
    enum kind kind;
    size_t offset;
    const char *initial; /* read like an argument before argv is; NULL: zero, false, empty */
    const char *shown;   /* the default as the help tells it; NULL: `initial` */
    int64_t low, high;
    const char *const *choices;
    const char *help;
};

#define AT(member) offsetof(struct pd_options, member)
#define TIB        ((int64_t)1 << 40)

/* In the order of the help. */
static const struct flag flags[] = {
    {"role", "ROLE", SERVICE, CHOICE, AT(role), "mixed", NULL, 0, 0, roles,
     "prefill computes prompts and offers their KV; decode reads it and streams the answers; "
     "mixed does both in one process"},
    {"host", "ADDRESS", SERVICE, TEXT, AT(host), "127.0.0.1", NULL, 0, 253, NULL,
     "address to listen on"},
    {"port", "PORT", SERVICE, NUMBER, AT(port), "9000", NULL, 0, 65535, NULL,
     "port to listen on; 0 lets the system choose (see --port-file)"},
    {"port-file", "PATH", SERVICE, TEXT, AT(port_file), NULL, NULL, 0, 4095, NULL,
     "write the port that is listened on to this file once the worker is ready"},
    {"metrics-port", "PORT", SERVICE, NUMBER, AT(metrics_port), NULL, "off", 1, 65535, NULL,
     "serve Prometheus metrics at this port of --host, where that is a private address, else of "
     "127.0.0.1"},
    {"dispatcher-address", "HOST:PORT", SERVICE, ADDRESSES, AT(dispatchers), NULL, NULL, 0, 0, NULL,
     "register with the dispatcher (nginx) at this address; may be given several times"},
    {"dispatcher-token-file", "PATH", SERVICE, TEXT, AT(dispatcher_token_file), NULL, NULL, 0, 4095,
     NULL, "file with the secret that registrations carry (first line)"},
    {"name", "NAME", SERVICE, TEXT, AT(name), NULL, "host:port", 0, 128, NULL,
     "what this worker is called in logs, metrics and tickets"},
    {"zone", "LABEL", SERVICE, TEXT, AT(zone), NULL, "none", 0, 64, NULL,
     "topology label; the dispatcher prefers pairs of one zone"},
    {"revision", "LABEL", SERVICE, TEXT, AT(revision), NULL, "none", 0, 64, NULL,
     "label of this roll-out, shown to operators"},

    {"model", "PATH", MODEL, TEXT, AT(model), NULL, "required", 0, 4095, NULL,
     "a .gguf file, or a directory with config.json, safetensors and tokenizer.json or .model"},
    {"load-format", "FORMAT", MODEL, WORD, AT(load_format), "auto", NULL, 0, 0, load_formats,
     "dummy: no weights are read; random ones of the shape in --model's config.json are made"},
    {"seed", "N", MODEL, NUMBER, AT(seed), "0", NULL, 0, INT64_MAX, NULL,
     "of the weights of --load-format dummy: the same number makes the same weights everywhere"},
    {"weight-cache", "DIR", MODEL, TEXT, AT(weight_cache), NULL, "none", 0, 4095, NULL,
     "share repacked weights with the host's other workers through files in DIR, best under "
     "/dev/shm; the CPU's only"},
    {"served-model-name", "NAME", MODEL, TEXT, AT(served_model_name), NULL, "--model as given", 0,
     256, NULL, "name that requests use for the model"},
    {"max-model-len", "TOKENS", MODEL, NUMBER, AT(max_model_len), NULL,
     "what model and KV memory allow", 1, 1 << 24, NULL, "longest prompt plus answer"},
    {"tensor-parallel-size", "N", MODEL, NUMBER, AT(tensor_parallel_size), "1", NULL, 1, 8, NULL,
     "ranks that compute the model together: GPUs, or shares of the cores"},

    {"kv-cache-memory", "BYTES", MEMORY, BYTES, AT(kv_cache_memory), NULL,
     "1GiB, at most half of the memory that is free", 1, 1024 * TIB, NULL,
     "size of the KV pool on the CPU, such as 512MiB or 4GiB"},
    {"gpu-memory-utilization", "SHARE", MEMORY, FRACTION, AT(gpu_memory_utilization), NULL,
     "0.9 on a GPU", 0, 0, NULL, "share of a GPU's memory for weights and KV (--device cuda)"},
    {"kv-cache-dtype", "TYPE", MEMORY, CHOICE, AT(kv_cache_dtype), "auto", "auto, which is f16", 0,
     0, kv_dtypes, "type of the values in the KV pool; pairs must agree"},
    {"block-size", "TOKENS", MEMORY, NUMBER, AT(block_size), "16", NULL, 8, 32, NULL,
     "tokens in a KV block: 8, 16 or 32"},
    {"enable-prefix-caching", NULL, MEMORY, SWITCH, AT(prefix_caching), "true", "on", 0, 0, NULL,
     "keep the KV of finished prompts and find equal beginnings again"},

    {"max-num-batched-tokens", "TOKENS", SCHEDULING, NUMBER, AT(max_num_batched_tokens), "512",
     NULL, 1, 65536, NULL,
     "most tokens computed in one step: larger steps for throughput, smaller for steady streams"},
    {"max-num-seqs", "N", SCHEDULING, NUMBER, AT(max_num_seqs), "64", NULL, 1, 4096, NULL,
     "most sequences that run at once"},
    {"max-waiting", "N", SCHEDULING, NUMBER, AT(max_waiting), "256", NULL, 1, 65536, NULL,
     "most sequences that wait; beyond it requests are refused, so that the dispatcher picks "
     "again"},
    {"enable-chunked-prefill", NULL, SCHEDULING, SWITCH, AT(chunked_prefill), "true", "on", 0, 0,
     NULL, "compute prompts in chunks between the steps of running answers; always on"},
    {"prefill-chunk-ms", "MS", SCHEDULING, NUMBER, AT(prefill_chunk_ms), "25", NULL, 1, 10000, NULL,
     "a step of prompts alone takes about so long, but has 32 tokens at least: with less, short "
     "prompts wait less for long ones; with more, long ones are computed a little faster"},
    {"request-timeout", "SECONDS", SCHEDULING, NUMBER, AT(request_timeout), "3600", NULL, 1, 86400,
     NULL,
     "longest time from a request's arrival to its last token; its own deadline can be shorter"},
    {"max-submit-bytes", "BYTES", SCHEDULING, BYTES, AT(max_submit_bytes), "8MiB", NULL, 4096,
     (int64_t)256 << 20, NULL, "largest submission that is accepted"},

    {"device", "DEVICE", DEVICE, WORD, AT(device), "cpu", NULL, 0, 0, devices,
     "where the model runs; reference is plain loops, for tests"},
    {"threads", "N", DEVICE, NUMBER, AT(threads), NULL, "one per usable core", 1, 1024, NULL,
     "size of the CPU's team"},
    {"isa", "PATH", DEVICE, WORD, AT(isa), "auto", NULL, 0, 0, isas,
     "highest instruction path that the CPU may use; avx2 to vnni compute equal bits, bf16 and amx "
     "attend in bf16 unless --matmul-precision is f32"},
    {"matmul-precision", "TYPE", DEVICE, CHOICE, AT(matmul_precision), "auto", NULL, 0, 0,
     precisions,
     "what products on the CPU are computed in: int8 or int12 (integers of 8 or 12 bits with a "
     "scale for each 32 values, 8 twice where they are too few; auto: int12 on processors with "
     "AMX, else int8), bf16 (needs AMX; for models in bf16 or f16, and long prompts) or f32, "
     "slower and exact; workers must agree to compute equal bits"},
    {"enforce-eager", NULL, DEVICE, SWITCH, AT(enforce_eager), NULL, "off", 0, 0, NULL,
     "on a GPU, launch every kernel by itself instead of replaying recorded steps"},
    {"deterministic", NULL, DEVICE, SWITCH, AT(deterministic), NULL, "off", 0, 0, NULL,
     "on a GPU, compute a token to the same bits whatever else is in its step, as the CPU does: "
     "slower"},
    {"cuda-enable", "NAMES", DEVICE, TEXT, AT(cuda_enable), NULL, "none", 0, 255, NULL,
     "use these libraries' paths on a GPU although none has shown them yet: names separated by "
     "commas, or all"},
    {"cuda-libraries", "DIR", DEVICE, TEXT, AT(cuda_libraries), NULL, "none", 0, 4095, NULL,
     "folder where cuBLASLt and NCCL are looked for first, before the CUDA toolkit and the nvidia "
     "wheels of the Python at hand"},
    {"cuda-cache", "DIR", DEVICE, TEXT, AT(cuda_cache), NULL, "none", 0, 511, NULL,
     "folder that keeps which of cuBLASLt's algorithms is the quickest for which shape, so that "
     "the "
     "next start need not time them"},

    {"kv-transport", "NAME", TRANSFER, WORD, AT(kv_transport), "auto", NULL, 0, 0, transports,
     "how KV is read from a prefill worker; auto: shm on one host, rdma where both ends have it, "
     "else tcp"},
    {"kv-bind", "ADDRESS", TRANSFER, TEXT, AT(kv_bind), NULL, "--host", 0, 253, NULL,
     "address that other workers read KV from, where it is not --host: of a faster network, of an "
     "RDMA device, or any of its own where --host is 0.0.0.0 or ::; control streams stay at "
     "--host"},
    {"kv-device", "NAME", TRANSFER, TEXT, AT(kv_device), NULL, "the one that --kv-bind is of", 0,
     63, NULL, "RDMA device to use, such as mlx5_0 (rdma link shows them)"},
    {"kv-qps", "N", TRANSFER, NUMBER, AT(kv_qps), "2", NULL, 1, 16, NULL,
     "RDMA queue pairs of a link: more for paths that spread connections over several wires"},
    {"kv-busy-poll", NULL, TRANSFER, SWITCH, AT(kv_busy_poll), "false", "off", 0, 0, NULL,
     "spend a core on RDMA completions while reads are in flight, to hear of them sooner"},
    {"kv-checksum", NULL, TRANSFER, SWITCH, AT(kv_checksum), "false", "off", 0, 0, NULL,
     "trust KV from a prefill worker only with its checksum of every block (XXH3)"},

    {"kv-tls", NULL, TRANSFER, SWITCH, AT(kv_tls), "false", "off", 0, 0, NULL,
     "encrypt KV data connections over tcp with --tls-cert, --tls-key and --tls-ca; on both ends, "
     "and "
     "no rdma then"},

    {"tls-cert", "PATH", SECURITY, TEXT, AT(tls_cert), NULL, NULL, 0, 4095, NULL,
     "certificate chain (PEM): serve and connect with TLS; needs --tls-key"},
    {"tls-key", "PATH", SECURITY, TEXT, AT(tls_key), NULL, NULL, 0, 4095, NULL,
     "private key (PEM)"},
    {"tls-ca", "PATH", SECURITY, TEXT, AT(tls_ca), NULL, NULL, 0, 4095, NULL,
     "authorities (PEM) that peers must be signed by: makes TLS mutual"},

    {"check", NULL, RUNNING, ACTION, AT(check), NULL, NULL, 0, 0, NULL,
     "load and verify everything, print what would be served, exit 0 or 1"},
    {"drain-timeout", "SECONDS", RUNNING, NUMBER, AT(drain_timeout), "30", NULL, 0, 86400, NULL,
     "how long SIGTERM waits for running answers; a second SIGTERM ends at once"},
    {"log-level", "LEVEL", RUNNING, CHOICE, AT(log_level), "info", NULL, 0, 0, levels,
     "least important lines that are logged"},
    {"help", NULL, RUNNING, ACTION, AT(help), NULL, NULL, 0, 0, NULL, "print this and exit"},
    {"version", NULL, RUNNING, ACTION, AT(version), NULL, NULL, 0, 0, NULL,
     "print the version and exit"},
};

enum { FLAGS = sizeof(flags) / sizeof(*flags) };

/* ---- suggestions --------------------------------------------------------------------------------
 */

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace) that turn a into b; '_' counts as '-'. Names are short: 64 at
 * most. */
static int distance(const char *a, const char *b)
{
    int row[65], width = (int)strlen(b);

    if (strlen(a) > 64 || width > 64)
        return 1000;
    for (int j = 0; j <= width; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= width; j++) {
            char c = a[i - 1] == '_' ? '-' : a[i - 1];
            int best = min_of(diagonal + (c != b[j - 1]), 1 + min_of(row[j], row[j - 1]));

            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[width];
}

static const char *nearest_flag(const char *name)
{
    const char *best = NULL;
    int least = 1 + (int)strlen(name) / 3;

    for (int i = 0; i < FLAGS; i++) {
        int edits = distance(name, flags[i].name);

        if (edits < least || (edits == least && !best)) {
            least = edits;
            best = flags[i].name;
        }
    }
    for (int i = 0; !best && i < FLAGS; i++)
        if (strlen(name) >= 4 && strstr(flags[i].name, name))
            best = flags[i].name;
    return best;
}

static int unknown_flag(const char *argument, struct pd_error *error)
{
    char name[65];
    size_t length = strcspn(argument + strspn(argument, "-"), "=");
    const char *near;

    snprintf(name, sizeof(name), "%.*s", (int)min_of((int)length, 64),
             argument + strspn(argument, "-"));
    near = nearest_flag(strncmp(name, "no-", 3) ? name : name + 3);
    if (near)
        return pd_fail(error, PD_INVALID, "unknown flag --%s: did you mean --%s?", name, near);
    return pd_fail(error, PD_INVALID, "unknown flag --%s: pd-worker --help lists all flags", name);
}

/* ---- values -------------------------------------------------------------------------------------
 */

static int parse_number(const struct flag *flag, const char *text, int64_t *out,
                        struct pd_error *error)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < flag->low || value > flag->high)
        return pd_fail(error, PD_INVALID, "--%s wants a whole number from %lld to %lld, not \"%s\"",
                       flag->name, (long long)flag->low, (long long)flag->high, text);
    *out = value;
    return PD_OK;
}

static int parse_bytes(const struct flag *flag, const char *text, int64_t *out,
                       struct pd_error *error)
{
    static const char *const suffixes[] = {"", "KiB", "MiB", "GiB", "TiB"};
    char *end;
    double value, bytes = -1;

    errno = 0;
    value = strtod(text, &end);
    for (int i = 0; end != text && !errno && i < 5; i++)
        if (!strcmp(end, suffixes[i]))
            bytes = value * (double)((int64_t)1 << (10 * i));
    if (!(bytes >= (double)flag->low && bytes <= (double)flag->high))
        return pd_fail(error, PD_INVALID,
                       "--%s wants bytes such as 8MiB or 4GiB (KiB, MiB, GiB, TiB or no suffix), "
                       "not \"%s\"",
                       flag->name, text);
    *out = (int64_t)bytes;
    return PD_OK;
}

static int parse_fraction(const struct flag *flag, const char *text, double *out,
                          struct pd_error *error)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value > 0 && value <= 1))
        return pd_fail(error, PD_INVALID, "--%s wants a share above 0 and up to 1, not \"%s\"",
                       flag->name, text);
    *out = value;
    return PD_OK;
}

static int parse_choice(const struct flag *flag, const char *text, int *index,
                        struct pd_error *error)
{
    char list[128] = "";

    for (int i = 0; flag->choices[i]; i++) {
        if (!strcmp(flag->choices[i], text)) {
            *index = i;
            return PD_OK;
        }
        snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", i ? ", " : "",
                 flag->choices[i]);
    }
    return pd_fail(error, PD_INVALID, "--%s wants one of %s, not \"%s\"", flag->name, list, text);
}

static int add_dispatcher(struct pd_options *options, const char *text, struct pd_error *error)
{
    struct pd_address address;

    if (!pd_address_parse(text, &address))
        return pd_fail(error, PD_INVALID,
                       "--dispatcher-address wants HOST:PORT such as 10.0.0.1:9100, not \"%s\"",
                       text);
    if (options->dispatcher_count == PD_DISPATCHERS_MAX)
        return pd_fail(error, PD_INVALID, "--dispatcher-address may be given at most %d times",
                       PD_DISPATCHERS_MAX);
    options->dispatchers[options->dispatcher_count++] = text;
    return PD_OK;
}

/* A string other than the empty one, within the flag's bound. */
static int parse_text(const struct flag *flag, const char *text, const char **out,
                      struct pd_error *error)
{
    if (!*text)
        return pd_fail(error, PD_INVALID, "--%s is given without a value", flag->name);
    if (flag->high && strlen(text) > (size_t)flag->high)
        return pd_fail(error, PD_INVALID, "--%s is longer than %lld bytes", flag->name,
                       (long long)flag->high);
    *out = text;
    return PD_OK;
}

static int set(const struct flag *flag, const char *text, struct pd_options *options,
               struct pd_error *error)
{
    void *target = (char *)options + flag->offset;
    int index = 0, status;

    switch (flag->kind) {
    case TEXT:
        return parse_text(flag, text, target, error);
    case NUMBER:
        return parse_number(flag, text, target, error);
    case BYTES:
        return parse_bytes(flag, text, target, error);
    case FRACTION:
        return parse_fraction(flag, text, target, error);
    case CHOICE:
        return parse_choice(flag, text, target, error);
    case WORD:
        status = parse_choice(flag, text, &index, error);
        if (status == PD_OK)
            *(const char **)target = flag->choices[index];
        return status;
    case SWITCH:
    case ACTION:
        *(bool *)target = !strcmp(text, "true");
        return PD_OK;
    case ADDRESSES:
        return add_dispatcher(options, text, error);
    }
    return pd_fail(error, PD_INVALID, "--%s cannot be set", flag->name);
}

/* ---- the command line ---------------------------------------------------------------------------
 */

static const struct flag *find_flag(const char *name, size_t length)
{
    for (int i = 0; i < FLAGS; i++)
        if (strlen(flags[i].name) == length && !memcmp(flags[i].name, name, length))
            return &flags[i];
    return NULL;
}

struct argument {
    const struct flag *flag;
    const char *value;
};

/* Reads argv[*at] and, where it takes one, its value; moves *at past both. */
static int read_argument(int argc, char **argv, int *at, struct argument *out,
                         struct pd_error *error)
{
    const char *text = argv[(*at)++];
    const char *name = text + 2, *equals;
    size_t length;

    if (!strcmp(text, "-h"))
        name = "help";
    else if (strncmp(text, "--", 2))
        return *text == '-' ? unknown_flag(text, error)
                            : pd_fail(error, PD_INVALID,
                                      "\"%s\" stands alone: write --model %s if it is the model",
                                      text, text);
    equals = strchr(name, '=');
    length = equals ? (size_t)(equals - name) : strlen(name);
    out->value = "true";
    out->flag = find_flag(name, length);
    if (!out->flag && length > 3 && !strncmp(name, "no-", 3)) {
        out->flag = find_flag(name + 3, length - 3);
        out->value = "false";
        if (out->flag && out->flag->kind != SWITCH)
            out->flag = NULL;
    }
    if (!out->flag)
        return unknown_flag(text, error);
    if (out->flag->kind == SWITCH || out->flag->kind == ACTION) {
        if (equals)
            return pd_fail(error, PD_INVALID, "--%s takes no value: write --%s%s%s",
                           out->flag->name, out->flag->name,
                           out->flag->kind == SWITCH ? " or --no-" : "",
                           out->flag->kind == SWITCH ? out->flag->name : "");
        return PD_OK;
    }
    if (!equals && (*at == argc || !strncmp(argv[*at], "--", 2)))
        return pd_fail(error, PD_INVALID, "--%s needs a value: write --%s %s", out->flag->name,
                       out->flag->name, out->flag->value);
    out->value = equals ? equals + 1 : argv[(*at)++];
    return PD_OK;
}

static int check_service(const struct pd_options *o, struct pd_error *error)
{
    if (!pd_address_host_valid(o->host))
        return pd_fail(error, PD_INVALID, "--host wants an address or a host name, not \"%s\"",
                       o->host);
    if (*o->kv_bind && (!pd_address_host_valid(o->kv_bind) || pd_address_is_wildcard(o->kv_bind)))
        return pd_fail(error, PD_INVALID,
                       "--kv-bind wants one address that other workers can connect to, not \"%s\"",
                       o->kv_bind);
    if (pd_address_is_wildcard(o->host) && !*o->kv_bind && o->role != PD_OPTION_DECODE)
        return pd_fail(error, PD_INVALID,
                       "--host %s listens on every address, so decode workers cannot be told where "
                       "to read KV: add --kv-bind with the address that they reach",
                       o->host);
    if (*o->dispatcher_token_file && !o->dispatcher_count)
        return pd_fail(
            error, PD_INVALID,
            "--dispatcher-token-file is of use only with --dispatcher-address HOST:PORT");
    if (!*o->tls_cert != !*o->tls_key)
        return pd_fail(error, PD_INVALID, "--tls-cert and --tls-key go together: add --tls-%s",
                       *o->tls_cert ? "key" : "cert");
    if (*o->tls_ca && !*o->tls_cert)
        return pd_fail(error, PD_INVALID, "--tls-ca needs --tls-cert and --tls-key");
    if (o->kv_tls && !*o->tls_cert)
        return pd_fail(error, PD_INVALID, "--kv-tls needs --tls-cert and --tls-key");
    if (o->kv_tls && strcmp(o->kv_transport, "rdma") == 0)
        return pd_fail(error, PD_INVALID,
                       "--kv-tls encrypts tcp only, not --kv-transport rdma: leave one of them");
    return PD_OK;
}

static int check_engine(const struct pd_options *o, struct pd_error *error)
{
    if (!*o->model)
        return pd_fail(error, PD_INVALID,
                       "no model is named: write --model PATH (a .gguf file or a directory)");
    if (o->gpu_memory_utilization > 0 && strcmp(o->device, "cuda"))
        return pd_fail(error, PD_INVALID,
                       "--gpu-memory-utilization is for --device cuda; on the CPU write "
                       "--kv-cache-memory with the size of the KV pool, such as 4GiB");
    if (!o->chunked_prefill)
        return pd_fail(error, PD_INVALID,
                       "--no-enable-chunked-prefill: prompts are always computed in chunks here; "
                       "--max-num-batched-tokens sets their size");
    if (o->block_size != 8 && o->block_size != 16 && o->block_size != 32)
        return pd_fail(error, PD_INVALID, "--block-size wants 8, 16 or 32, not %lld",
                       (long long)o->block_size);
    if (o->max_num_seqs > o->max_num_batched_tokens)
        return pd_fail(error, PD_INVALID,
                       "--max-num-seqs %lld needs --max-num-batched-tokens of at least as many: "
                       "each running answer takes one token of every step (now %lld)",
                       (long long)o->max_num_seqs, (long long)o->max_num_batched_tokens);
    return PD_OK;
}

static void set_defaults(struct pd_options *options)
{
    struct pd_error never;

    memset(options, 0, sizeof(*options));
    for (int i = 0; i < FLAGS; i++) {
        if (flags[i].kind == TEXT)
            *(const char **)((char *)options + flags[i].offset) = "";
        if (flags[i].initial)
            set(&flags[i], flags[i].initial, options, &never);
    }
}

int pd_options_parse(int argc, char **argv, struct pd_options *options, struct pd_error *error)
{
    const char *given[FLAGS] = {0};
    struct argument argument = {NULL, NULL};
    int status = PD_OK;

    set_defaults(options);
    for (int at = 1; at < argc;) {
        status = read_argument(argc, argv, &at, &argument, error);
        if (status != PD_OK)
            return status;
        if (argument.flag->kind != ADDRESSES) {
            const char **before = &given[argument.flag - flags];

            if (*before && strcmp(*before, argument.value))
                return pd_fail(error, PD_INVALID, "--%s is given twice, as %s and as %s: keep one",
                               argument.flag->name, *before, argument.value);
            *before = argument.value;
        }
        status = set(argument.flag, argument.value, options, error);
        if (status != PD_OK)
            return status;
    }
    if (options->help || options->version)
        return PD_OK;
    status = check_engine(options, error);
    if (status == PD_OK)
        status = check_service(options, error);
    if (!*options->served_model_name)
        options->served_model_name = options->model;
    return status;
}

/* ---- help ---------------------------------------------------------------------------------------
 */

enum { HELP_WIDTH = 96, HELP_INDENT = 34 };

/* Prints words, broken at HELP_WIDTH, with the cursor already at `column`. */
static void print_words(FILE *out, const char *text, int column)
{
    while (*text) {
        int length = (int)strcspn(text, " ");

        if (column > HELP_INDENT && column + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        }
        column += fprintf(out, "%s%.*s", column > HELP_INDENT ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
}

static void print_flag(FILE *out, const struct flag *flag)
{
    char text[512], *end = text, *limit = text + sizeof(text);
    const char *shown = flag->shown ? flag->shown : flag->initial;
    int column = fprintf(out, "  --%s%s%s%s", flag->kind == SWITCH ? "[no-]" : "", flag->name,
                         flag->value ? " " : "", flag->value ? flag->value : "");

    if (column > HELP_INDENT - 2) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_INDENT - column, "");
    end += snprintf(end, sizeof(text), "%s", flag->help);
    if (flag->choices) {
        end += snprintf(end, (size_t)(limit - end), " (");
        for (int i = 0; flag->choices[i]; i++)
            end += snprintf(end, (size_t)(limit - end), "%s%s", i ? ", " : "", flag->choices[i]);
        end += snprintf(end, (size_t)(limit - end), ")");
    }
    if (shown)
        snprintf(end, (size_t)(limit - end), " [%s]", shown);
    print_words(out, text, HELP_INDENT);
    fputc('\n', out);
}

void pd_options_help(FILE *out)
{
    fputs("Usage: pd-worker --model PATH [--role prefill|decode|mixed] [flags]\n\n"
          "Serves a large language model to nginx with ngx_http_pd_module. A prefill worker "
          "computes\n"
          "prompts, a decode worker reads their KV cache and streams the answers, a mixed worker "
          "does\n"
          "both. Give one pair the same model and --kv-cache-dtype.\n\n"
          "  pd-worker --model model.gguf --role prefill --port 9001\n"
          "  pd-worker --model model.gguf --role decode  --port 9002\n\n"
          "and in nginx.conf:\n\n"
          "  pd_cluster chat {\n"
          "      worker 127.0.0.1:9001 role=prefill;\n"
          "      worker 127.0.0.1:9002 role=decode;\n"
          "  }\n",
          out);
    for (int group = 0; group < GROUPS; group++) {
        fprintf(out, "\n%s\n", group_titles[group]);
        for (int i = 0; i < FLAGS; i++)
            if ((int)flags[i].group == group)
                print_flag(out, &flags[i]);
    }
    fputs("\nDefaults stand in brackets. A flag may also be written --flag=value. SIGTERM drains: "
          "no new\n"
          "requests, running ones end, then the worker exits.\n",
          out);
}
