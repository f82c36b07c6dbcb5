/* The state file's lines: whatever the bytes, a file is taken or refused, a table is never overrun, and
 * what a zone that took them writes is taken by a fresh one, which then writes the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ngx_http_pd_cluster.h"
#include "ngx_http_pd_ready.h"
#include "ngx_http_pd_state_lines.h"
#include "ngx_http_pd_verdict.h"
#include "ngx_http_pd_vitals.h"
#include "ngx_shim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CLUSTERS = 2, WORKERS = 4, ACCOUNTS = 8, SECOND = 1000000 };

static void require(int truth)
{
    if (!truth)
        abort();
}

/* ---- the zone, small ---- */

void ngx_http_pd_zone_lock(ngx_http_pd_zone_t *zone)
{
    (void)zone;
}

void ngx_http_pd_zone_unlock(ngx_http_pd_zone_t *zone)
{
    (void)zone;
}

ngx_http_pd_worker_t *ngx_http_pd_zone_worker_add(ngx_http_pd_zone_t *zone, ngx_uint_t cluster,
                                                  ngx_str_t *address)
{
    ngx_http_pd_worker_t *worker = zone->sh->workers;

    require(cluster < CLUSTERS && address->len <= NGX_HTTP_PD_ADDRESS_MAX);
    for (ngx_uint_t i = 0; i < zone->sh->nworkers; i++, worker++)
        if (worker->cluster == cluster && worker->address_len == address->len &&
            memcmp(worker->address, address->data, address->len) == 0)
            return worker;
    if (zone->sh->nworkers == WORKERS)
        return NULL;
    worker->id = ++zone->sh->nworkers;
    worker->cluster = (uint16_t)cluster;
    worker->address_len = address->len;
    memcpy(worker->address, address->data, address->len);
    return worker;
}

void ngx_http_pd_vitals_restore(ngx_http_pd_worker_t *worker, time_t left)
{
    require(left > 0);
    worker->vital = NGX_HTTP_PD_EJECTED;
    worker->until = shim_clock_us + (uint64_t)left * SECOND;
}

void ngx_http_pd_ready_restore(ngx_http_pd_zone_t *zone, ngx_http_pd_cluster_t *conf, uint64_t left,
                               uint64_t rounds)
{
    ngx_http_pd_readiness_t *ready = &zone->sh->clusters[conf->shared].ready;

    require(left <= 86400);
    ready->away = 1;
    ready->until = shim_clock_us + left * SECOND;
    ready->rounds = (uint32_t)rounds;
}

/* A window of two days, as coarse as may be. */
void ngx_http_pd_verdict_restore(ngx_http_pd_zone_cluster_t *cluster, uint64_t age,
                                 uint64_t finished, uint64_t failed)
{
    require(age < 86400);
    cluster->parts[0].finished = (uint32_t)finished;
    cluster->parts[0].failed = (uint32_t)failed;
    cluster->span = age;
}

ngx_uint_t ngx_http_pd_verdict_part(ngx_http_pd_zone_cluster_t *cluster, ngx_uint_t i,
                                    uint64_t *age)
{
    *age = cluster->span;
    return i == 0;
}

/* ---- one life of it ---- */

struct life {
    ngx_http_pd_main_conf_t conf;
    ngx_http_pd_cluster_t cluster[CLUSTERS], *clusters[CLUSTERS];
    ngx_shm_zone_t shm;
    ngx_http_pd_zone_t zone;
};

static struct life *life_create(void)
{
    static u_char names[CLUSTERS] = {'a', 'b'};
    struct life *life = calloc(1, sizeof *life);
    ngx_http_pd_shared_t *shared = calloc(1, sizeof *shared);

    shared->naccounts = ACCOUNTS;
    shared->accounts = calloc(ACCOUNTS, sizeof *shared->accounts);
    shared->nclusters = CLUSTERS;
    for (int i = 0; i < CLUSTERS; i++) {
        life->clusters[i] = &life->cluster[i];
        life->cluster[i].name = (ngx_str_t){1, &names[i]};
        life->cluster[i].registration = i == 0;
        life->cluster[i].lease = 10000;
        life->cluster[i].shared = (ngx_uint_t)i;
        life->cluster[i].shared_id = (uint64_t)i + 1;
        shared->clusters[i].id = (uint64_t)i + 1;
        shared->clusters[i].name_len = 1;
        shared->clusters[i].name[0] = names[i];
    }
    life->zone.sh = shared;
    life->shm.data = &life->zone;
    life->conf.zone = &life->shm;
    life->conf.clusters.elts = life->clusters;
    life->conf.clusters.nelts = CLUSTERS;
    return life;
}

static void life_destroy(struct life *life)
{
    free(life->zone.sh->accounts);
    free(life->zone.sh);
    free(life);
}

/* The bytes as they are; or, begun with a zero, lines of a file that is whole, in which a byte that is no
 * ASCII stands for a word. */
static u_char *file_of(const uint8_t *data, size_t *length)
{
    static const char *const words[] = {"lease 1:9 1764441234 a\n",
                                        "ejected 1:9 1764441250 a\n",
                                        "out 3 1764441260 b\n",
                                        "ended 148 2 1764441225 a\n",
                                        "account 81c2d4e07f3a9b65 600 17 200000 5321 1764441230\n",
                                        "lease 2:9 1764441229 a\n",
                                        "lease ",
                                        "ejected ",
                                        "ended ",
                                        "out ",
                                        "account ",
                                        "seed ",
                                        "master ",
                                        "1:9 ",
                                        "2:9 ",
                                        "1764441229 ",
                                        "1764441290 ",
                                        "18446744073709551615 ",
                                        "4294967296 ",
                                        "0 ",
                                        "a\n",
                                        "b\n"};
    enum { WORDS = sizeof words / sizeof *words, LONGEST = 64 };
    u_char *file = malloc(LONGEST * (*length + 1)), *to = file;

    if (*length && *data == 0) {
        to = ngx_cpymem(to, NGX_HTTP_PD_STATE_HEAD, sizeof NGX_HTTP_PD_STATE_HEAD - 1);
        for (size_t i = 1; i < *length; i++) {
            const char *word = words[data[i] % WORDS];

            if (data[i] < 0x80)
                *to++ = data[i];
            else
                to = ngx_cpymem(to, word, strlen(word));
        }
        to = ngx_cpymem(to, NGX_HTTP_PD_STATE_TAIL, sizeof NGX_HTTP_PD_STATE_TAIL - 1);
    } else {
        to = ngx_cpymem(to, data, *length);
    }
    *length = (size_t)(to - file);
    return realloc(file, *length ? *length : 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static u_char written[2][NGX_HTTP_PD_STATE_MAX];
    struct life *life = life_create();
    size_t length = size;
    u_char *file = file_of(data, &length), *last[2];

    if (ngx_http_pd_state_known(file, file + length)) {
        (void)ngx_http_pd_state_master(file, file + length);
        (void)ngx_http_pd_state_apply(&life->conf, file, file + length);
    }
    free(file);
    for (ngx_uint_t i = 0; i < life->zone.sh->nworkers; i++)
        require(life->zone.sh->workers[i].lease > shim_clock_us);
    for (int i = 0; i < 2; i++) {
        last[i] = ngx_http_pd_state_write(&life->zone, written[i]);
        life_destroy(life);
        life = life_create();
        require(ngx_http_pd_state_known(written[i], last[i]));
        require(ngx_http_pd_state_apply(&life->conf, written[i], last[i]) == NGX_OK);
    }
    require(last[0] - written[0] == last[1] - written[1]);
    require(memcmp(written[0], written[1], (size_t)(last[0] - written[0])) == 0);
    life_destroy(life);
    return 0;
}
