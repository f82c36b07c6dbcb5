/* Doubles of the rooms behind the link, so that the link is tested against behaviour that can be
 * scripted. They implement the rooms' own headers, and take their place when a test is linked. */
#ifndef PD_FAKES_H
#define PD_FAKES_H

#include <stdio.h>

#include "worker/engine/engine.h"
#include "worker/link/link.h"

enum { FAKE_BOS = 256, FAKE_EOS = 257, FAKE_VOCABULARY = 258 };

const struct pd_tokenizer *fake_tokenizer(void);
const struct pd_chat_template *fake_template(void);

/* An engine with a thread that makes a step every two milliseconds while something runs. What it is
 * told goes to stdout, one line per event. A request's request_id says how it behaves:
 *
 *   (any)     placed, then a letter per step (a, b, c, ...), finished after max_tokens
 *   hold      placed, then nothing until it is cancelled
 *   mute      not even placed until it is cancelled
 *   refuse    failed with CAPACITY
 *   flood     64 KiB of text per step
 *   stubborn  as (any), but goes on for 50 steps after it has been cancelled
 *
 * On the prefill route it offers a ticket, gives one letter and hands over; a later cancel takes
 * the ticket back. */
struct pd_engine *fake_engine_create(const struct pd_engine_events *events);

/* A kvx that writes down what it is told and sends every message it receives back, reversed. */
struct pd_kvx *fake_kvx_create(const struct pd_kvx_callbacks *callbacks);
void fake_kvx_destroy(struct pd_kvx *kvx);

/* One line of the fakes' log. */
void fake_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
