/* What gRPC's locks cost.
 *
 * gRPC locks with abseil, and a build of abseil with assertions, as Debian's is, keeps a graph of which
 * lock was ever held under which, and looks into it at each one, to abort where two threads could wait
 * for each other. That is a tool for those who write gRPC; of a message that comes and is answered it takes a
 * tenth of the instructions. */
#ifndef PD_LOCKS_H
#define PD_LOCKS_H

/* Takes the watch off all locks of the process, where there is one and it can be found by its name in Debian's build.
 * Any thread, at any time. */
void pd_locks_unwatched(void);

#endif
