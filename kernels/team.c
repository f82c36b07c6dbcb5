/* The barrier counts arrivals; the last one starts a new phase and wakes whoever sleeps on the
 * phase word. `arrived` and `phase` lie in lines of their own: arrivals do not disturb those who
 * spin.
 *
 * Why no wakeup is lost: a sleeper adds itself to `sleepers` and then lets the kernel compare
 * `phase`; the last arrival changes `phase` and then reads `sleepers`. Both are sequentially
 * consistent, so one of them sees the other. */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/team.h"

/* Some tens of microseconds: longer than the gap between operators, shorter than a scheduler's
 * slice. */
enum { SPINS = 1000, LINE = 64 };

struct pd_team {
    _Alignas(LINE) atomic_uint phase;
    atomic_uint sleepers;
    _Alignas(LINE) atomic_uint arrived;
    _Alignas(LINE)
        pd_team_job *job; /* NULL: the threads end. Written before a barrier, read after it */
    void *context;
    unsigned threads;
    pthread_t *members; /* [threads - 1] */
};

struct member {
    struct pd_team *team;
    int thread;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void sleep_while(struct pd_team *team, unsigned phase)
{
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->phase) == phase)
        syscall(SYS_futex, &team->phase, FUTEX_WAIT_PRIVATE, phase, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

void pd_team_barrier(struct pd_team *team)
{
    unsigned phase = atomic_load(&team->phase);

    if (atomic_fetch_add(&team->arrived, 1) == team->threads - 1) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store(&team->phase, phase + 1);
        if (atomic_load(&team->sleepers) != 0)
            syscall(SYS_futex, &team->phase, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team->phase, memory_order_acquire) != phase)
            return;
        relax();
    }
    sleep_while(team, phase);
}

static void *member_main(void *argument)
{
    struct member member = *(struct member *)argument;

    free(argument);
    for (;;) {
        pd_team_barrier(member.team);
        if (member.team->job == NULL)
            return NULL;
        member.team->job(member.team->context, member.thread);
        pd_team_barrier(member.team);
    }
}

void pd_team_run(struct pd_team *team, pd_team_job *job, void *context)
{
    team->job = job;
    team->context = context;
    pd_team_barrier(team);
    if (job == NULL)
        return;
    job(context, 0);
    pd_team_barrier(team);
}

/* Signals are for the program's own threads. */
static bool start_member(struct pd_team *team, int thread)
{
    struct member *member = malloc(sizeof(*member));
    sigset_t all, before;
    int failed;

    if (member == NULL)
        return false;
    *member = (struct member){team, thread};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&team->members[thread - 1], NULL, member_main, member);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        free(member);
    return !failed;
}

/* Ends the members 1..started, which all wait for a job; arrives for those that were never started.
 */
static void end_members(struct pd_team *team, unsigned started)
{
    atomic_fetch_add(&team->arrived, team->threads - 1 - started);
    pd_team_run(team, NULL, NULL);
    for (unsigned i = 0; i < started; i++)
        pthread_join(team->members[i], NULL);
}

struct pd_team *pd_team_create(int threads)
{
    struct pd_team *team = aligned_alloc(LINE, (sizeof(*team) + LINE - 1) / LINE * LINE);

    if (team == NULL)
        return NULL;
    *team = (struct pd_team){.threads = (unsigned)threads};
    team->members = calloc((size_t)threads, sizeof(*team->members));
    for (int i = 1; team->members != NULL && i < threads; i++) {
        if (!start_member(team, i)) {
            end_members(team, (unsigned)i - 1);
            free(team->members);
            team->members = NULL;
        }
    }
    if (team->members == NULL) {
        free(team);
        return NULL;
    }
    return team;
}

void pd_team_destroy(struct pd_team *team)
{
    end_members(team, team->threads - 1);
    free(team->members);
    free(team);
}

int pd_team_threads(const struct pd_team *team)
{
    return (int)team->threads;
}
