
/*
 * What all nginx processes know together: the clusters, the workers with their
 * last load reports, the processes themselves, and one record for each request
 * that was admitted.
 *
 * The tables have a fixed size and lie in one piece of the zone; nothing is
 * allocated after the start.  All of it is read and written under one lock,
 * the zone's slab mutex, which is the only lock that nginx frees if its holder
 * dies.  Whoever locks and finds "dirty" set knows that this has happened, and
 * rebuilds lists and sums from the records.
 *
 * Every counter is a sum over records, and a record belongs to a process: to
 * forget a dead process means to drop its records, and no count is ever wrong
 * for long.
 */


#ifndef _NGX_HTTP_PD_ZONE_H_INCLUDED_
#define _NGX_HTTP_PD_ZONE_H_INCLUDED_


#include "ngx_http_pd_cluster.h"


#define NGX_HTTP_PD_ZONE_CLUSTERS    64
#define NGX_HTTP_PD_ZONE_WORKERS     256
#define NGX_HTTP_PD_ZONE_SLOTS       1024    /* NGX_MAX_PROCESSES */
#define NGX_HTTP_PD_ZONE_ACCOUNTS    8       /* one part in so many */
#define NGX_HTTP_PD_ZONE_PAIRS       256     /* that fail; the oldest goes */
#define NGX_HTTP_PD_ZONE_FRONTENDS   128     /* others; the oldest goes */
#define NGX_HTTP_PD_ZONE_MIN         (512 * 1024)

#define NGX_HTTP_PD_NEAR             4       /* workers that know a prompt */
#define NGX_HTTP_PD_HOLDERS          5       /* and that a point remembers */
#define NGX_HTTP_PD_WAYS             4       /* points in a set */
#define NGX_HTTP_PD_RATIOS           256
#define NGX_HTTP_PD_PARTS            20      /* of a window of outcomes */

#define NGX_HTTP_PD_MODEL_MAX        256
#define NGX_HTTP_PD_INSTANCE_MAX     128
#define NGX_HTTP_PD_DIGESTS          128     /* four of SHA-256 */

#define NGX_HTTP_PD_NONE             0xffff        /* no worker */
#define NGX_HTTP_PD_NIL              0xffffffff    /* end of a list */


/* a worker's numbers; each set by whom its comment says */

typedef struct {
    uint64_t     id;                  /* of this entry, never reused; 0: free */
    ngx_uint_t   cluster;

    /* the configuration, or the registration */

    uint8_t      address_len;
    u_char       address[NGX_HTTP_PD_ADDRESS_MAX];
    uint8_t      labelled;            /* the file says zone= */
    uint8_t      zone_len;
    u_char       zone[NGX_HTTP_PD_NAME_MAX];
    uint8_t      asserted;            /* role= of the file, or UNKNOWN */
    uint8_t      configured;
    uint8_t      down;
    uint8_t      backup;
    uint32_t     weight;
    uint32_t     max_streams;
    uint64_t     lease;               /* end, us of our clock; 0: none */

    /* its last hello */

    uint8_t      tried;               /* somebody has tried to reach it */
    uint8_t      known;               /* it has said hello once */
    uint8_t      misplaced;           /* its zone is not the file's */
    uint8_t      role;
    uint8_t      offers;              /* what it has in its cache, if asked */
    uint8_t      draining;
    uint16_t     model_len;
    u_char       model[NGX_HTTP_PD_MODEL_MAX];
    uint64_t     model_hash;
    uint8_t      instance_len;
    u_char       instance[NGX_HTTP_PD_INSTANCE_MAX];
    u_char       digests[NGX_HTTP_PD_DIGESTS];
    uint64_t     boot;
    uint32_t     max_model_len;
    uint32_t     block_size;
    uint32_t     max_num_seqs;
    uint64_t     kv_blocks;

    /* its newest load report */

    uint64_t     taken;               /* the worker's count of reports */
    uint64_t     steps;
    uint64_t     reported;            /* us of our clock; 0: never */
    uint64_t     queued_tokens;
    uint64_t     kv_free;
    uint64_t     kv_reserved;
    uint64_t     kv_growth;           /* of those free, for answers to come */
    uint32_t     running;
    uint32_t     waiting;
    uint32_t     step_us;
    uint32_t     token_us_x1000;      /* of a prompt */

    /* sums over records; rebuilt after a death */

    uint32_t     jobs;
    uint32_t     unseen_jobs;         /* not in the report yet */
    uint64_t     unseen_tokens;       /* of prompts, not in the report yet */
    uint64_t     held_blocks;         /* promised, not in the report (yet) */
    uint64_t     growing_blocks;      /* of these, of answers in the report */
    uint32_t     unseen;              /* list of submissions, see load.h */

    uint64_t     chosen;              /* order of the last choice, for ties */

    /* is it fit? see ngx_http_pd_vitals.h */

    uint8_t      vital;
    uint8_t      hung;                /* has work and makes no step */
    uint8_t      kept;                /* was to be ejected as the last one */
    uint8_t      canary;              /* one is on its way */
    uint32_t     faults;              /* in a row */
    uint32_t     ejections;           /* that count for the next one */
    uint64_t     trusted;             /* us: then they count no more */
    uint32_t     answers;             /* see ngx_http_pd_tally.h */
    uint32_t     failed;              /* of these, by its fault */
    uint64_t     tallied;             /* us: both were halved */
    uint64_t     revision;            /* hash of its --revision; 0: none */
    uint64_t     died;                /* boot whose death is in "faults" */
    uint64_t     stepped;             /* highest step counter */
    uint64_t     moved;               /* us: made a step, or had no need */
    uint64_t     until;               /* us: is let be until then */
    uint64_t     back;                /* us: slow start since; 0: none */
    uint64_t     turn;                /* of round_robin */
    uint64_t     name_hash;           /* for policy "hash" */
    uint16_t     cache;               /* its cache's number: none is two's */
} ngx_http_pd_worker_t;


typedef enum {
    NGX_HTTP_PD_RECORD_FREE = 0,
    NGX_HTTP_PD_RECORD_QUEUED,
    NGX_HTTP_PD_RECORD_GRANTED,       /* has workers; its process shall know */
    NGX_HTTP_PD_RECORD_RUNNING
} ngx_http_pd_record_state_e;


/* a submission that its worker's reports do not include yet */

typedef struct {
    uint64_t     stream;              /* 0: it has not begun, or was seen */
    uint64_t     number;              /* among the stream's submissions */
    uint32_t     next;                /* of the worker's list */
    uint32_t     prev;
} ngx_http_pd_unseen_t;


/* what a tenant has had of a model: see ngx_http_pd_account.h */

typedef struct {
    uint64_t     key;                 /* who, of what; 0: free */
    uint64_t     updated;             /* us of our clock: debts are as of it */
    uint64_t     debts[2];            /* requests, tokens */
    uint32_t     limits[2];           /* a minute; 0: none */
    uint32_t     live;                /* records */
    uint32_t     duration;            /* of a request, smoothed, ms */
    uint64_t     finish[NGX_HTTP_PD_CLASSES];  /* see ngx_http_pd_queue.h */
} ngx_http_pd_account_t;


/* one admitted request */

typedef struct {
    uint64_t     number;              /* the job's, in its process */
    uint64_t     model;               /* hash of the name, 0: any */
    uint64_t     since;               /* queued or granted, us of our clock */

    ngx_rbtree_node_t  node;          /* of the queue; key: its place there */
    uint64_t     cost;                /* of its place */
    uint32_t     next;                /* free list or grants */
    uint32_t     bytes;               /* of its prompt */
    uint8_t      class;

    uint16_t     slot;
    uint8_t      cluster;
    uint8_t      state;

    /* what it needs */

    uint64_t     admitted;            /* us of our clock */
    uint32_t     account;             /* whose it is */
    uint32_t     estimate;            /* tokens of its prompt, as reserved */
    uint32_t     reserved;            /* tokens, all in all */
    uint8_t      metered;             /* counts against limits */

    uint32_t     prompt;              /* tokens: an estimate, then exact */
    uint32_t     output;              /* tokens still to come */
    uint8_t      split;               /* not to a decode worker alone */
    uint8_t      single;              /* one token: no decode worker */
    uint8_t      grouped;             /* only workers of this revision */
    uint64_t     revision;
    uint16_t     canary;              /* 1 + the worker it is for; 0: none */

    /* what it has */

    uint8_t      unseen_prefill;      /* charges not in a report yet */
    uint8_t      unseen_decode;
    uint8_t      handed;              /* decode gets the prompt's KV */
    uint8_t      prefilled;           /* prefill has done its part */
    uint16_t     prefill;             /* workers, or NGX_HTTP_PD_NONE */
    uint16_t     decode;
    uint16_t     owner;               /* has more of the prompt than prefill,
                                         see borrow.h; or NGX_HTTP_PD_NONE */
    uint16_t     avoid[3];            /* workers that have refused it */

    /* where it had better go, see affinity.h and policy.h */

    uint16_t     stuck[2];            /* workers of its session, or NONE */
    uint64_t     key;                 /* of policy "hash", 0: none */
    struct {
        uint16_t  worker;             /* or NONE */
        uint16_t  share;              /* of the prompt, of 1024 */
    } near[NGX_HTTP_PD_NEAR];
    uint32_t     limit;               /* tokens to be computed on a decode
                                         worker; more: redirect; 0: any */
    uint8_t      reason;              /* ngx_http_pd_reason_e */

    ngx_http_pd_unseen_t  unseen[2];  /* by prefill, by decode */
} ngx_http_pd_record_t;


/* why a request goes where it goes */

typedef enum {
    NGX_HTTP_PD_REASON_PAIR = 0,
    NGX_HTTP_PD_REASON_REDIRECTED,    /* a decode worker found it too long */
    NGX_HTTP_PD_REASON_SHORT,
    NGX_HTTP_PD_REASON_CACHED,        /* what is not in the cache is short */
    NGX_HTTP_PD_REASON_MIXED          /* no pair had room */
} ngx_http_pd_reason_e;


/* a point of a prompt, or a session, and who had to do with it last */

typedef struct {
    uint16_t                 worker;
    uint16_t                 cache;   /* its number then */
} ngx_http_pd_holder_t;


typedef struct {
    uint64_t                 hash;
    uint32_t                 used;
    ngx_http_pd_holder_t     holder[NGX_HTTP_PD_HOLDERS];
} ngx_http_pd_known_t;


typedef struct {
    ngx_http_pd_known_t      entry[NGX_HTTP_PD_WAYS];
} ngx_http_pd_known_set_t;


typedef struct {
    uint64_t     key;                 /* of model and tenant; 0: free */
    uint32_t     ratio;               /* 1/256 bytes per token */
} ngx_http_pd_ratio_t;


/* those of one class who wait in a cluster */

typedef struct {
    ngx_rbtree_t       tree;          /* of records, by their place */
    ngx_rbtree_node_t  sentinel;
    uint64_t           now;           /* place of the last one served */
    uint64_t           last;          /* the end of all that were placed */
    uint64_t           bytes;         /* of prompts */
    uint64_t           model;         /* that all wait for, or -1 */
    uint32_t           queued;
} ngx_http_pd_line_t;


/* for the counters: how a request has ended, and how an answer has moved */

typedef enum {
    NGX_HTTP_PD_ANSWERED = 0,
    NGX_HTTP_PD_FAILED,
    NGX_HTTP_PD_LEFT,                 /* its client has */
    NGX_HTTP_PD_LOST,                 /* its process has died */
    NGX_HTTP_PD_OUTCOMES
} ngx_http_pd_outcome_e;


/* what of a KV transfer takes time, each by itself */

typedef enum {
    NGX_HTTP_PD_KV_WAIT = 0,          /* the next chunk was not ready */
    NGX_HTTP_PD_KV_WIRE,              /* reads were under way */
    NGX_HTTP_PD_KV_EXPOSED,           /* the client waited */
    NGX_HTTP_PD_KV_TIMES
} ngx_http_pd_kv_time_e;


/* how it ended that another worker was asked for a prompt's beginning */

typedef enum {
    NGX_HTTP_PD_BORROWED = 0,
    NGX_HTTP_PD_COMPUTED,             /* all the same */
    NGX_HTTP_PD_BORROWS
} ngx_http_pd_borrow_e;


typedef enum {
    NGX_HTTP_PD_MOVED_EXACT = 0,
    NGX_HTTP_PD_MOVED_APPROXIMATE,    /* to workers of other numerics */
    NGX_HTTP_PD_MOVED_ANEW,           /* nothing had come of it */
    NGX_HTTP_PD_MOVES
} ngx_http_pd_move_e;


#define NGX_HTTP_PD_REFUSALS    5     /* of ngx_http_pd_refused_e, no canary */


/* a group of workers that gets a part of the requests */

typedef struct {
    uint64_t     hash;
    uint32_t     weight;
    int64_t      current;             /* of the round robin */
} ngx_http_pd_revision_t;


/* how requests have ended in a part of a window: see ngx_http_pd_verdict.h */

typedef struct {
    uint64_t     number;              /* of the part, since long ago */
    uint32_t     finished;
    uint32_t     failed;
} ngx_http_pd_part_t;


/* whether this frontend is in: see ngx_http_pd_ready.h */

typedef struct {
    uint8_t      pairs;               /* each model has a usable one */
    uint8_t      degraded;            /* in, though too few finish */
    uint8_t      away;
    uint32_t     rounds;              /* in a row */
    uint32_t     asked;               /* canaries of this round ... */
    uint32_t     sang;                /* ... that were answered well */
    uint64_t     until;               /* us: out at least so long */
    uint64_t     pace;                /* us between canaries */
    uint64_t     next;                /* us: the next canary's turn */
    uint64_t     singing;             /* us: one is on its way since; 0: none */
    uint64_t     back;                /* us: in again since */
} ngx_http_pd_readiness_t;


typedef struct {
    uint64_t     id;                  /* of this entry, never reused; 0: free */
    uint8_t      configured;
    uint8_t      policy;              /* ngx_http_pd_policy_e */
    uint64_t     turn[4];             /* of round_robin, by role */
    uint8_t      name_len;
    u_char       name[NGX_HTTP_PD_NAME_MAX];
    uint32_t     direct_threshold;    /* tokens, 0: off, or ..._AUTO */
    uint32_t     borrow_threshold;    /* likewise */

    /* the queue: see ngx_http_pd_queue.h */

    ngx_http_pd_line_t  lines[NGX_HTTP_PD_CLASSES];
    uint32_t     queued;              /* in both */
    uint32_t     passed;              /* grants since standard's last turn */
    uint64_t     moved;               /* us of our clock: last grant */
    uint64_t     waited;              /* us in which somebody waited ... */
    uint64_t     grants;              /* ... and what was granted then */

    ngx_uint_t   nrevisions;
    ngx_http_pd_revision_t  revisions[NGX_HTTP_PD_REVISIONS];
    uint64_t     failover_due;        /* us: the next turn to go elsewhere */

    /* counters, canaries left out: see ngx_http_pd_metrics.c */

    uint64_t     admitted;
    uint64_t     refused[NGX_HTTP_PD_REFUSALS];
    uint64_t     ended[NGX_HTTP_PD_OUTCOMES];
    uint64_t     moves[NGX_HTTP_PD_MOVES];
    uint64_t     gave_up;             /* failed, since they could not move */
    uint64_t     paced;               /* moves that had to wait */
    uint64_t     unpromised;          /* over pd_failover_buffer */
    uint64_t     kv_transfers;        /* as decode workers tell of them */
    uint64_t     kv_bytes;
    uint64_t     kv_us[NGX_HTTP_PD_KV_TIMES];
    uint64_t     borrows[NGX_HTTP_PD_BORROWS];
    uint64_t     borrowed_tokens;

    uint64_t     span;                /* us of a part; 0: not counted */
    ngx_http_pd_part_t       parts[NGX_HTTP_PD_PARTS];
    ngx_http_pd_readiness_t  ready;
} ngx_http_pd_zone_cluster_t;


/* a process of nginx */

typedef struct {
    ngx_pid_t    pid;                 /* 0: free */
    ngx_fd_t     wake;                /* eventfd of all generations, or -1 */
    ngx_uint_t   stalled;             /* it did not take a grant */
    ngx_uint_t   leaving;             /* nginx has asked it to */
    uint32_t     grants;              /* records granted to it */
    uint64_t     attached[NGX_HTTP_PD_ZONE_WORKERS / 64];
} ngx_http_pd_slot_t;


/* hand-offs between two workers have failed */

typedef struct {
    uint64_t     prefill;             /* ids of the workers; 0: free */
    uint64_t     decode;
    uint64_t     touched;             /* us: last failure */
    uint64_t     until;               /* us: is left out until then */
    uint64_t     faults;              /* in a row */
    uint64_t     down;                /* so the decode worker says, since */
} ngx_http_pd_pair_t;


/* another frontend of a cluster: see ngx_http_pd_frontends.h */

typedef struct {
    uint64_t     hash;                /* of its frontend_id; 0: free */
    uint64_t     cluster;             /* id of ours that it was heard of in */
    uint64_t     heard;               /* us: last word of it */
    uint32_t     requests;            /* of its window */
    uint32_t     finished;
    uint8_t      away;
} ngx_http_pd_frontend_t;


typedef struct {
    ngx_uint_t                   dirty;

    u_char                       frontend_id[33];
    uint64_t                     seed;         /* of model_hash */
    uint64_t                     generation;
    uint64_t                     changes;      /* of the set of workers */
    uint64_t                     leases;       /* changes of what the state
                                                  file has, but accounts */
    uint64_t                     saved;        /* of these the file has */
    uint64_t                     claim;        /* on the file, see state.c */
    uint64_t                     last_id;
    uint64_t                     last_order;
    ngx_fd_t                     liveness;     /* memfd, a byte per slot */

    ngx_uint_t                   nclusters;    /* entries ever used */
    ngx_uint_t                   nworkers;
    uint32_t                     nrecords;     /* that fit */
    uint32_t                     fresh;        /* from here on: never used */
    uint32_t                     free;         /* list of those given back */

    ngx_uint_t                   naccounts;
    uint64_t                     charges;      /* changes of accounts */
    uint64_t                     settled;      /* of these the file has */
    ngx_http_pd_account_t       *accounts;     /* behind the records */
    ngx_http_pd_known_set_t     *known;        /* behind the records */
    ngx_uint_t                   nknown;
    uint32_t                     known_clock;
    ngx_http_pd_ratio_t          ratios[NGX_HTTP_PD_RATIOS];

    ngx_http_pd_zone_cluster_t   clusters[NGX_HTTP_PD_ZONE_CLUSTERS];
    ngx_http_pd_worker_t         workers[NGX_HTTP_PD_ZONE_WORKERS];
    ngx_http_pd_slot_t           slots[NGX_HTTP_PD_ZONE_SLOTS];
    ngx_uint_t                   npairs;       /* in use, at most */
    ngx_http_pd_pair_t           pairs[NGX_HTTP_PD_ZONE_PAIRS];
    ngx_http_pd_frontend_t       frontends[NGX_HTTP_PD_ZONE_FRONTENDS];
    ngx_http_pd_record_t         records[1];
} ngx_http_pd_shared_t;


/* one configuration's view of it, in the master and in each process */

typedef struct ngx_http_pd_zone_s  ngx_http_pd_zone_t;

struct ngx_http_pd_zone_s {
    ngx_http_pd_shared_t        *sh;
    ngx_slab_pool_t             *shpool;
    ngx_cycle_t                 *cycle;
    uint64_t                     generation;
    ngx_uint_t                   slot;         /* after enter */
    ngx_str_t                    state;        /* file, or empty */
    unsigned                     entered:1;
    unsigned                     fresh:1;      /* not from a configuration
                                                  before */
    ngx_http_pd_zone_t          *previous;     /* configuration's view */
    ngx_event_t                 *self;         /* posted to wake this process */

    /* the zone's files, to be closed by the last configuration that has it */

    unsigned                     owner:1;
    ngx_uint_t                   nfiles;
    ngx_fd_t                     files[NGX_HTTP_PD_ZONE_SLOTS + 1];
};


/* pd_zone NAME:SIZE [state=PATH] */
char *ngx_http_pd_zone_directive(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the new configuration's clusters and workers take their places */
void ngx_http_pd_zone_configure(ngx_http_pd_main_conf_t *pmcf,
    ngx_log_t *log);

void ngx_http_pd_zone_lock(ngx_http_pd_zone_t *zone);
void ngx_http_pd_zone_unlock(ngx_http_pd_zone_t *zone);

/* the rest is called under the lock */

uint64_t ngx_http_pd_zone_hash(ngx_http_pd_zone_t *zone, ngx_str_t *model);

/* the worker if the entry is still the one that was meant, or NULL */
ngx_http_pd_worker_t *ngx_http_pd_zone_worker(ngx_http_pd_zone_t *zone,
    ngx_uint_t index, uint64_t id);

/* finds or makes the entry of an address; NULL: the table is full */
ngx_http_pd_worker_t *ngx_http_pd_zone_worker_add(ngx_http_pd_zone_t *zone,
    ngx_uint_t cluster, ngx_str_t *address);


#define ngx_http_pd_worker_index(zone, worker)                               \
    ((ngx_uint_t) ((worker) - (zone)->sh->workers))


#endif /* _NGX_HTTP_PD_ZONE_H_INCLUDED_ */
