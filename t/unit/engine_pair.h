/* Two labs and a wire: a source and a reader that hand prompts over by the double of kvx.
 *
 * One pair at a time: open it, set hooks and holds, start, ask, close. Closing waits for rest on both
 * sides and checks that no fence was broken. */
#ifndef PD_TEST_ENGINE_PAIR_H
#define PD_TEST_ENGINE_PAIR_H

#include "t/unit/double_kvx.h"
#include "t/unit/engine_lab.h"

extern struct double_net *net;
extern struct lab source, reader;

/* The two may differ in shape. */
void open_pair(const struct lab_options *prefill, const struct lab_options *decode);
void start_pair(void);
void close_pair(void);

struct pd_request *prefill_request(uint64_t id, const char *text, uint32_t max_tokens);
/* The same request for the reader, with the ticket that the source has given. */
struct pd_request *decode_request(uint64_t id, uint32_t max_tokens);
/* For the reader, with a ticket that nobody gave. */
struct pd_request *no_ticket_request(uint64_t id, uint32_t tokens, uint32_t block_size);

/* Sampling in which every mistake shows. */
void warm(struct pd_sampling *sampling, uint64_t seed);

/* A greedy request of LAB_SPLIT tokens over both, which must go well. */
enum { LAB_SPLIT = 30 };
void run_pair(uint64_t id, const char *text);

/* What both said, as the dispatcher puts it together: answer[first] from the source, then
 * answer[first..length) from the reader. */
void expect_pair(uint64_t id, const int32_t *answer, int first, int length);
void expect_failure(struct lab *lab, uint64_t id, int code);

/* For double_net_wait. */
bool one_fetch(const struct double_counts *counts);

#endif
