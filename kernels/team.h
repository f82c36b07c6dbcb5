/* A team: threads that run one function together, again and again, with cheap barriers inside it.
 *
 *     thread 0 (the caller of pd_team_run)   job ──┬── barrier ──┬── ... ──┬── returns
 *     thread 1                               job ──┼── barrier ──┼── ... ──┼── sleeps
 *     thread 2                               job ──┴── barrier ──┴── ... ──┘ */
#ifndef PD_TEAM_H
#define PD_TEAM_H

struct pd_team;

typedef void pd_team_job(void *context, int thread);

/* Starts threads - 1 threads; the thread that calls pd_team_run is number 0. NULL if there is no
 * memory or the system refuses a thread. */
struct pd_team *pd_team_create(int threads);

/* For the thread that is going to call pd_team_run, once: it stays on a core of its own, as the others do,
 * if this process has exactly as many cores as the team has threads. A system that finds all cores busy
 * wakes a thread where the one sits that wakes it, and two threads on one core wait for each other at every
 * barrier. With more cores or fewer, the system places them. */
void pd_team_settle(const struct pd_team *team);

/* No job may be running. */
void pd_team_destroy(struct pd_team *team);

/* Runs job(context, thread) on every thread and returns when all have returned. */
void pd_team_run(struct pd_team *team, pd_team_job *job, void *context);

/* Inside a job: returns when every thread has called it. What was written before is seen after. */
void pd_team_barrier(struct pd_team *team);

int pd_team_threads(const struct pd_team *team);

#endif
