#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/barrier.h"
#include "kernels/team.h"

struct pd_team {
    struct pd_barrier barrier;
    _Alignas(PD_BARRIER_LINE)
        pd_team_job *job; /* NULL: the threads end. Written before a barrier, read after it */
    void *context;
    pthread_t *members; /* [threads - 1] */
};

struct member {
    struct pd_team *team;
    int thread;
};

void pd_team_barrier(struct pd_team *team)
{
    pd_barrier_wait(&team->barrier);
}

static void settle(const struct pd_team *team, int thread)
{
    cpu_set_t cores, own;
    int core = -1;

    if (sched_getaffinity(0, sizeof(cores), &cores) != 0 ||
        CPU_COUNT(&cores) != (int)team->barrier.threads)
        return;
    for (int i = 0; i <= thread; i++) {
        do
            core++;
        while (!CPU_ISSET(core, &cores));
    }
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof(own), &own); /* a wish */
}

void pd_team_settle(const struct pd_team *team)
{
    settle(team, 0);
}

static void *member_main(void *argument)
{
    struct member member = *(struct member *)argument;

    free(argument);
    pthread_setname_np(pthread_self(), "kernels");
    settle(member.team, member.thread);
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
    pd_barrier_excuse(&team->barrier, team->barrier.threads - 1 - started);
    pd_team_run(team, NULL, NULL);
    for (unsigned i = 0; i < started; i++)
        pthread_join(team->members[i], NULL);
}

struct pd_team *pd_team_create(int threads)
{
    struct pd_team *team = aligned_alloc(_Alignof(struct pd_team), sizeof(*team));

    if (team == NULL)
        return NULL;
    *team = (struct pd_team){.members = NULL};
    pd_barrier_init(&team->barrier, (unsigned)threads);
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
    end_members(team, team->barrier.threads - 1);
    free(team->members);
    free(team);
}

int pd_team_threads(const struct pd_team *team)
{
    return (int)team->barrier.threads;
}
