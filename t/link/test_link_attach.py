"""Attach as worker/link/README.md promises it: hello, requests, refusals, parts, cancels, ends."""

import grpc

from case import Case
from rig import (CANCELLED, CAPACITY, CONTEXT_LENGTH, DECODE, DRAINING, INTERNAL, INVALID, OFFER,
                 PREFILL, TICKET, part_messages, pd, stats, wait_for)

CODE = grpc.StatusCode
LONG = b"x" * 3000  # more than the link's own thread takes upon itself


class Hello(Case):
    def test_hello_and_reports(self):
        frontend = self.frontend(hello=pd.FrontendHello(protocol=1, protocol_min=1,
                                                        frontend_id="f", report_interval_ms=100))
        hello = frontend.wait_hello()
        self.assertEqual(frontend.received[0].WhichOneof("kind"), "hello")
        self.assertEqual((hello.protocol, hello.protocol_min, hello.instance, hello.model,
                          hello.boot, hello.role), (1, 1, "fake", "m", 77, 3))
        self.assertEqual(hello.fingerprint.weights, b"\xaa" * 32)
        self.assertEqual(list(hello.kv_transports), ["shm", "tcp"])
        self.assertEqual(sorted(hello.capabilities), ["chat", "logprobs", "offer"])
        self.assertEqual((hello.zone, hello.revision, hello.max_submit_bytes),
                         ("z1", "r1", 256 * 1024))
        report = frontend.wait_load(lambda load: load.number >= 3, "three reports of an idle worker")
        self.assertEqual((report.kv_free, report.last_submission, report.draining), (900, 0, False))
        self.assertEqual([(link.peer, link.up, link.transport, link.bytes) for link in report.links],
                         [("prefill-0", True, "shm", 12345)])
        numbers = [load.number for load in frontend.of_kind("load")]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    def test_a_later_version_that_still_speaks_ours(self):
        frontend = self.frontend(hello=pd.FrontendHello(protocol=2, protocol_min=1))
        frontend.wait_hello()

    def test_versions_that_do_not_meet(self):
        for highest, lowest in ((3, 2), (0, 0)):
            frontend = self.frontend(hello=pd.FrontendHello(protocol=highest, protocol_min=lowest))
            code, details = frontend.wait_status()
            self.assertEqual(code, CODE.FAILED_PRECONDITION)
            self.assertIn(f"protocol {lowest} to {highest}, this worker 1 to 1", details)

    def test_bounds(self):
        bad = (pd.FrontendHello(protocol=1, frontend_id="x" * 65),
               pd.FrontendHello(protocol=1, slot=1024),
               pd.FrontendHello(protocol=1, capabilities=["c"] * 65),
               pd.FrontendHello(protocol=1, capabilities=["c" * 65]),
               pd.FrontendHello(protocol=1, report_interval_ms=99),
               pd.FrontendHello(protocol=1, report_interval_ms=10001))
        for hello in bad:
            frontend = self.frontend(hello=hello)
            self.assertEqual(frontend.wait_status()[0], CODE.INVALID_ARGUMENT, hello)
        self.assertEqual(self.counter("messages_bad"), len(bad))
        self.assert_alive()

    def test_the_first_message_must_be_hello_and_only_the_first(self):
        frontend = self.frontend(hello=None)
        frontend.put(pd.ToWorker(heartbeat=pd.Heartbeat(number=1)))
        self.assertEqual(frontend.wait_status()[0], CODE.INVALID_ARGUMENT)
        frontend = self.frontend()
        frontend.put(pd.ToWorker(hello=pd.FrontendHello(protocol=1)))
        code, details = frontend.wait_status()
        self.assertEqual((code, details), (CODE.INVALID_ARGUMENT, "a second hello"))

    def test_unknown_kinds_and_heartbeats_are_ignored(self):
        frontend = self.frontend()
        frontend.put(b"\xa2\x06\x03abc")  # field 100
        frontend.put(pd.ToWorker(heartbeat=pd.Heartbeat(number=1)))
        frontend.submit(1, text=b"x", max_tokens=1)
        self.assertEqual(frontend.finished(1)[0], b"a")

    def test_frontends_hear_of_each_other(self):
        beat = lambda frontend, **health: frontend.put(pd.ToWorker(heartbeat=pd.Heartbeat(
            number=1, health=pd.FrontendHealth(**health) if health else None)))
        one, two, old = (self.frontend(hello=pd.FrontendHello(protocol=1, frontend_id=name))
                         for name in ("one", "two", "old"))
        beat(one, frontend_id="two", requests=40, finished=38, away=True)
        beat(old)
        def heard():  # streams are not in step
            beat(two, requests=10, finished=10)
            return two.of_kind("frontends")
        wait_for("word of the others", heard)
        self.assertEqual([(other.frontend_id, other.requests, other.finished, other.away)
                          for other in two.of_kind("frontends")[-1].others],
                         [("one", 40, 38, True)])
        # If the other was heard first, this one was told of it; of itself never.
        for word in one.of_kind("frontends"):
            self.assertEqual([other.frontend_id for other in word.others], ["two"])


class Requests(Case):
    def test_text(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"hi<s>", max_tokens=4, request_id="r-1", tenant="acme",
                        deadline_us=5_000_000)
        text, ids, finished = frontend.finished(1)
        self.assertEqual((text, ids), (b"abcd", [97, 98, 99, 100]))
        self.assertEqual((finished.reason, finished.prompt_tokens, finished.completion_tokens),
                         (2, 5, 4))
        self.assertEqual((finished.timing.queue_us, finished.timing.kv_transport), (11, "shm"))
        placed = frontend.placed(1)
        self.assertEqual((placed.prompt_tokens, placed.cached_tokens), (5, 3))
        self.assertFalse(placed.HasField("ticket"))
        self.assertEqual([s.position for s in frontend.steps(1)], [0, 1, 2, 3])
        # A user's "<s>" stays five bytes of text: no special token.
        line = self.worker.wait_line("submit", "request=1 ")
        self.assertIn("id=r-1 tenant=acme tokens=104,105,60,115,62 count=5", line)
        self.assertIn("deadline_ms=5000 class=standard traceparent=", line)

    def test_labels_reach_the_engine(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", traceparent="00-ab-cd-01")
        self.assertIn("class=standard traceparent=00-ab-cd-01",
                      self.worker.wait_line("submit", "request=1 "))
        frontend.submit(3, text=b"x", request_id="r-3", traceparent="00-ab-cd-01", max_tokens=5)
        frontend.submit(4, tokens=[999], request_id="r-4", traceparent="00-ab-cd-02")
        frontend.failed(4)
        self.assertTrue(self.worker.logged("intake: ", " request=3 attempt=1 id=r-3 traceparent="
                                           "00-ab-cd-01 class=standard tenant=- accepted: 1 tokens, "
                                           "at most 5 to come"))
        self.assertTrue(self.worker.logged("intake: ", " request=4 attempt=1 id=r-4 traceparent="
                                           "00-ab-cd-02 refused: prompt: the model has no token"))
        submit = pd.Submit(model="m", text=b"x")
        setattr(submit, "class", 1)
        for message in part_messages(2, 1, submit.SerializeToString()):
            frontend.put(message)
        self.assertIn("class=interactive", self.worker.wait_line("submit", "request=2 "))

    def test_every_request_has_a_deadline(self):
        """The worker's own where the request names none, or a later one."""
        frontend = self.frontend()
        for request, deadline_us in ((1, 0), (2, 2 ** 64 - 1), (3, 3600 * 10 ** 6 + 1)):
            frontend.submit(request, text=b"x", deadline_us=deadline_us)
            self.assertIn("deadline_ms=3600000 ",
                          self.worker.wait_line("submit", f"request={request} "))

    def test_chat_goes_through_the_template(self):
        frontend = self.frontend()
        frontend.submit(1, chat=[("user", b"<s>")], max_tokens=1)
        frontend.finished(1)
        expected = ([256] + list(b"user:") + list(b"<s>") + list(b"\n") + [256] +
                    list(b"assistant:"))
        line = self.worker.wait_line("submit", "request=1 ")
        self.assertIn(f"tokens={','.join(map(str, expected[:24]))} count={len(expected)}", line)

    def test_token_ids(self):
        frontend = self.frontend()
        frontend.submit(1, tokens=[5, 6, 257], max_tokens=1)
        frontend.finished(1)
        self.assertIn("tokens=5,6,257 count=3", self.worker.wait_line("submit", "request=1 "))

    def test_default_length_is_what_fits(self):
        frontend = self.frontend()
        frontend.submit(1, tokens=[5] * 100, max_tokens=0, request_id="hold")
        self.assertIn(f"max_tokens={65536 - 100}", self.worker.wait_line("submit", "request=1 "))

    def test_many_at_once_share_steps(self):
        frontend = self.frontend()
        for request in range(1, 33):
            frontend.submit(request, text=b"x", max_tokens=20)
        for request in range(1, 33):
            self.assertEqual(frontend.finished(request)[0], b"abcdefghijklmnopqrst")
        largest = max(len(step.sequences) for step in frontend.of_kind("step"))
        self.assertGreater(largest, 8, "sequences of a stream share a message")
        for step in frontend.of_kind("step"):
            self.assertGreater(step.load.number, 0, "every step carries a report")
        self.assertEqual(self.counter("attempts_running"), 0)
        self.assertEqual(self.counter("submit_bytes_held"), 0)

    def test_two_frontends_do_not_hear_each_other(self):
        one, two = self.frontend(), self.frontend()
        one.submit(1, text=b"x", max_tokens=30)
        two.submit(1, text=b"x", max_tokens=5)
        self.assertEqual(len(one.finished(1)[1]), 30)
        self.assertEqual(len(two.finished(1)[1]), 5)

    def test_logprobs(self):
        frontend = self.frontend()
        submit = pd.Submit(model="m", text=b"x")
        submit.sampling.max_tokens = 2
        submit.sampling.logprobs = True
        submit.sampling.top_logprobs = 2
        for message in part_messages(1, 1, submit.SerializeToString()):
            frontend.put(message)
        frontend.finished(1)
        first = frontend.steps(1)[0].logprobs[0]
        self.assertEqual((first.token, first.text, first.logprob), (97, b"a", -0.5))
        self.assertEqual([(top.token, top.text, top.logprob) for top in first.top],
                         [(98, b"b", -1.0), (99, b"c", -1.5)])

    def test_refusal_of_the_engine(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", request_id="refuse")
        failed = frontend.failed(1)
        self.assertEqual((failed.code, failed.message, failed.retry_after_ms),
                         (CAPACITY, "no room", 1500))
        self.assertEqual(self.counter("failures_capacity"), 1)

    def test_prefill_and_decode_routes(self):
        frontend = self.frontend()
        frontend.submit(1, route=PREFILL, text=b"prompt")
        ticket = frontend.placed(1).ticket
        self.assertEqual((ticket.instance, ticket.generation, ticket.tokens, ticket.block_size,
                          ticket.secret), ("fake", 4711, 6, 16, b"\x07" * 16))
        text, _, finished = frontend.finished(1)
        self.assertEqual((text, finished.reason), (b"a", 0))
        frontend.submit(1, attempt=2, route=DECODE, ticket=ticket)
        frontend.finished(1, 2)
        self.assertIn("ticket=fake", self.worker.wait_line("submit", "request=1 attempt=2 "))
        # The attempt is handed over, not forgotten: its ticket can still be taken back, once.
        frontend.cancel(1)
        self.worker.wait_line("revoke request=1")
        frontend.cancel(1)
        frontend.submit(3, text=b"x")
        frontend.finished(3)
        self.assertEqual(len(self.worker.seen("cancel", "request=1 attempt=1")), 1)

    def test_an_offer_is_handed_over_at_once(self):
        frontend = self.frontend()
        self.assertIn("offer", frontend.wait_hello().capabilities)
        frontend.submit(1, route=OFFER, text=b"prompt")
        self.assertEqual(frontend.placed(1).ticket.generation, 4711)
        text, _, finished = frontend.finished(1)
        self.assertEqual((text, finished.reason, finished.completion_tokens), (b"", 0, 0))
        frontend.cancel(1)
        self.worker.wait_line("revoke request=1")

    def test_a_ticket_to_borrow_from(self):
        """What cannot be read is no fault of the request's."""
        frontend = self.frontend()
        print_ = pd.Fingerprint(weights=b"w" * 32, tokenizer=b"t" * 32, chat_template=b"c" * 32, layout=b"l" * 32)
        good = pd.Ticket(instance="d", address="10.0.0.1:9000", tokens=32, block_size=16, secret=b"s" * 16,
                         fingerprint=print_)
        frontend.submit(1, route=PREFILL, text=b"prompt", ticket=good, ticket_wait_ms=100)
        placed = frontend.placed(1)
        self.assertEqual((placed.borrowed_tokens, placed.borrow_failed), (32, "d"))
        for request, (field, value) in enumerate((("address", "xds:///x"), ("secret", b"short"), ("block_size", 64),
                                                  ("tokens", 1 << 31)), 2):
            bad = pd.Ticket()
            bad.CopyFrom(good)
            setattr(bad, field, value)
            frontend.submit(request, route=PREFILL, text=b"prompt", ticket=bad)
            self.assertEqual(frontend.placed(request).borrowed_tokens, 0)

    def test_generated_tokens_of_an_earlier_attempt(self):
        frontend = self.frontend()
        frontend.submit(1, attempt=2, text=b"x", max_tokens=5,
                        generated=pd.TokenList(ids=[97, 98]))
        frontend.finished(1, 2)
        self.assertIn("generated=2", self.worker.wait_line("submit", "request=1 "))

    def test_a_ticket_covers_what_was_generated(self):
        """It counts once against the longest sequence: as a part of the answer."""
        frontend = self.frontend()
        most = frontend.wait_hello().max_model_len
        frontend.submit(1, route=PREFILL, text=b"prompt")
        ticket = frontend.placed(1).ticket
        ticket.tokens = most - 10
        fields = {"route": DECODE, "ticket": ticket,
                  "generated": pd.TokenList(ids=[97] * 20)}
        for request, max_tokens in ((2, 30), (3, 0)):
            frontend.submit(request, max_tokens=max_tokens, **fields)
            self.assertIn("max_tokens=30", self.worker.wait_line("submit", f"request={request} "))
        frontend.submit(4, max_tokens=31, **fields)
        self.assertEqual(frontend.failed(4).code, CONTEXT_LENGTH)
        ticket.tokens = 20
        frontend.submit(5, max_tokens=30, **fields)
        self.assertEqual(frontend.failed(5).code, TICKET)

    def test_last_submission_counts_what_the_engine_has_seen(self):
        frontend = self.frontend(hello=pd.FrontendHello(protocol=1, report_interval_ms=100))
        frontend.wait_hello()
        frontend.submit(1, text=b"x", max_tokens=1)
        frontend.submit(2, text=b"x", request_id="mute")
        frontend.submit(3, text=b"x", max_tokens=1)
        frontend.finished(3)
        report = frontend.wait_load(lambda load: load.number > frontend.steps(3)[-1].position + 4)
        self.assertEqual(report.last_submission, 1, "the second one is not placed")
        frontend.cancel(2)
        self.assertEqual(frontend.failed(2).code, CANCELLED)
        frontend.wait_load(lambda load: load.last_submission == 3, "a report that counts all three")


    def test_a_report_says_what_it_includes_of_the_frontends_other_streams(self):
        hello = lambda frontend, stream: pd.FrontendHello(
            protocol=1, frontend_id=frontend, stream=stream, report_interval_ms=100)
        first, second = self.frontend(hello=hello("f", 7)), self.frontend(hello=hello("f", 8))
        stranger, nameless = self.frontend(hello=hello("g", 9)), self.frontend(hello=hello("f", 0))
        for frontend in (first, second, stranger, nameless):
            frontend.wait_hello()
        for frontend in (second, stranger, nameless):
            frontend.submit(1, text=b"x", max_tokens=1)
            frontend.finished(1)
        report = first.wait_load(lambda load: load.seen, "a report that speaks of the second stream")
        self.assertEqual([(seen.stream, seen.last_submission) for seen in report.seen], [(8, 1)])
        report = second.wait_load(lambda load: load.last_submission == 1, "the second's own")
        self.assertEqual(len(report.seen), 0, "the first has submitted nothing")
        self.assertEqual(len(nameless.wait_load(lambda load: load.number > 2, "more").seen), 0)
        taken = sorted((load.taken for frontend in (first, second, stranger, nameless)
                        for load in frontend.of_kind("load")))
        self.assertEqual(len(taken), len(set(taken)), "each report has a number of its own")

    def test_reports_come_soon_while_a_prompt_is_computed(self):
        frontend = self.frontend(hello=pd.FrontendHello(protocol=1, report_interval_ms=10000))
        frontend.wait_hello()
        frontend.wait_load(lambda load: load.number == 1, "the first report")
        frontend.submit(1, text=b"x", request_id="mute")
        frontend.wait_load(lambda load: load.number >= 4, "three more, long before ten seconds are over")


class Refusals(Case):
    def refused(self, code, param, *words, route=0, **fields):
        self.request = getattr(self, "request", 0) + 1
        if not hasattr(self, "refusing"):
            self.refusing = self.frontend()
        submit = fields.pop("submit", None) or pd.Submit(model="m", route=route, **fields)
        for message in part_messages(self.request, 1, submit.SerializeToString()):
            self.refusing.put(message)
        failed = self.refusing.failed(self.request)
        self.assertEqual((failed.code, failed.param), (code, param), failed)
        for word in words:
            self.assertIn(word, failed.message)
        self.assertLessEqual(len(failed.message), 512)
        return failed

    def sampling(self, **fields):
        return dict(text=b"x", sampling=pd.Sampling(**fields))

    def test_prompts(self):
        self.refused(INVALID, "prompt", "empty")
        self.refused(INVALID, "messages", "0 entries", chat=pd.ChatPrompt())
        self.refused(INVALID, "prompt", "two forms", text=b"x", tokens=pd.TokenList(ids=[1]))
        self.refused(INVALID, "prompt", "no token 258", tokens=pd.TokenList(ids=[1, 258]))
        self.refused(INVALID, "prompt", "UTF-8", text=b"a\xff")
        self.refused(INVALID, "messages", "knows no role evil",
                     chat=pd.ChatPrompt(messages=[pd.ChatMessage(role="evil", content=b"x")]))
        self.refused(INVALID, "messages.role", "32",
                     chat=pd.ChatPrompt(messages=[pd.ChatMessage(role="r" * 33)]))
        self.refused(INVALID, "messages", "4097",
                     chat=pd.ChatPrompt(messages=[pd.ChatMessage(role="user")] * 4097))
        self.refused(INVALID, "model", "serves m, not n", submit=pd.Submit(model="n", text=b"x"))
        # 513 bytes would end inside a character; a message that is no UTF-8 could not be read at all.
        self.refused(INVALID, "model", "serves m", submit=pd.Submit(model="é" * 128, text=b"x"))
        self.refused(INVALID, "request_id", "64", text=b"x", request_id="r" * 65)
        self.refused(INVALID, "tool_choice", text=b"",
                     chat=pd.ChatPrompt(messages=[pd.ChatMessage(role="user")],
                                        tool_choice_json=b'"required"'))

    def test_context_length(self):
        failed = self.refused(CONTEXT_LENGTH, "prompt", "maximum context length is 65536 tokens",
                              "more than 65536 tokens", text=b"x" * 70000)
        self.assertEqual(failed.prompt_tokens, 0)
        failed = self.refused(CONTEXT_LENGTH, "prompt", "resulted in 66000 tokens",
                              tokens=pd.TokenList(ids=[1] * 66000))
        self.assertEqual(failed.prompt_tokens, 66000)
        failed = self.refused(CONTEXT_LENGTH, "max_tokens",
                              "requested 65537 tokens (3 in the prompt, 65534 in the completion)",
                              text=b"abc", sampling=pd.Sampling(max_tokens=65534))
        self.assertEqual(failed.prompt_tokens, 3)

    def test_sampling(self):
        self.refused(INVALID, "temperature", **self.sampling(temperature=2.5))
        self.refused(INVALID, "temperature", **self.sampling(temperature=float("nan")))
        self.refused(INVALID, "top_p", **self.sampling(top_p=-0.1))
        self.refused(INVALID, "stop", "16", **self.sampling(stop=[b"x"] * 17))
        self.refused(INVALID, "stop", "1 to 256", **self.sampling(stop=[b""]))
        self.refused(INVALID, "stop_token_ids", **self.sampling(stop_token_ids=[1] * 65))
        self.refused(INVALID, "stop_token_ids", **self.sampling(stop_token_ids=[4000000000]))
        self.refused(INVALID, "top_logprobs", **self.sampling(logprobs=True, top_logprobs=21))
        self.refused(INVALID, "logit_bias",
                     **self.sampling(logit_bias=[pd.LogitBias(token=1)] * 1025))
        self.refused(INVALID, "logit_bias",
                     **self.sampling(logit_bias=[pd.LogitBias(token=1, bias=101)]))
        self.refused(INVALID, "response_format", text=b"x",
                     response_format=pd.ResponseFormat(kind=1))
        self.refused(INTERNAL, "", "generated already", text=b"x",
                     generated=pd.TokenList(ids=[1, 1]), sampling=pd.Sampling(max_tokens=2))

    def test_tickets(self):
        print_ = pd.Fingerprint(weights=b"w" * 32, tokenizer=b"t" * 32, chat_template=b"c" * 32,
                                layout=b"l" * 32)
        good = pd.Ticket(instance="p", address="10.0.0.1:9000", tokens=5, block_size=16,
                         secret=b"s" * 16, fingerprint=print_)
        self.refused(TICKET, "", "no ticket", route=DECODE)
        for field, value in (("address", "unix:/run/docker.sock"), ("address", "xds:///x"),
                             ("address", "a" * 300 + ":1"), ("instance", "i" * 129),
                             ("secret", b"short"), ("block_size", 64), ("block_size", 0),
                             ("tokens", 0), ("tokens", 1 << 31)):
            ticket = pd.Ticket()
            ticket.CopyFrom(good)
            setattr(ticket, field, value)
            self.refused(TICKET, "", "ticket", route=DECODE, ticket=ticket)
        ticket = pd.Ticket()
        ticket.CopyFrom(good)
        ticket.fingerprint.layout = b"short"
        self.refused(TICKET, "", "malformed", route=DECODE, ticket=ticket)
        self.refused(INTERNAL, "", "carries a prompt", route=DECODE, ticket=good, text=b"x")

    def test_a_submit_that_is_no_message(self):
        frontend = self.frontend()
        for request, data in enumerate((b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x00" * 99),
                                       1):
            for message in part_messages(request, 1, data):
                frontend.put(message)
            self.assertEqual(frontend.failed(request).code, INVALID)
        self.assert_alive()

    def test_small_bytes_that_ask_for_much_memory(self):
        frontend = self.frontend()
        # 120,000 empty LogitBias of two bytes each; a struct costs a hundred times that.
        sampling = b"\x7a\x00" * 120000
        data = pd.Submit(model="m", text=b"x").SerializeToString()
        data += b"\x7a" + bytes([len(sampling) & 0x7f | 0x80, len(sampling) >> 7 & 0x7f | 0x80,
                                 len(sampling) >> 14]) + sampling
        for message in part_messages(1, 1, data):
            frontend.put(message)
        self.assertEqual(frontend.failed(1).code, INVALID)
        self.assert_alive()


class Roles(Case):
    options = {"role": "prefill", "kvx": 0}

    def test_a_prefill_worker_does_not_decode(self):
        frontend = self.frontend()
        self.assertEqual(frontend.wait_hello().role, 1)
        frontend.submit(1, text=b"x")
        self.assertEqual(frontend.failed(1).code, INTERNAL)
        frontend.submit(2, route=PREFILL, text=b"x")
        frontend.finished(2)

    def test_any_worker_offers_what_it_has(self):
        frontend = self.frontend()
        frontend.submit(1, route=OFFER, text=b"x")
        frontend.finished(1)

    def test_no_kv_links_without_kvx(self):
        stream = self.raw("/pd.v1.Kv/Link", b"x")
        self.assertEqual(stream.wait_status()[0], CODE.UNAVAILABLE)


class Cancels(Case):
    def test_while_parts_are_coming(self):
        frontend = self.frontend()
        messages = list(part_messages(1, 1, b"x" * 100000))
        frontend.put(messages[0])
        frontend.cancel(1)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        for message in messages[1:]:
            frontend.put(message)
        frontend.submit(2, text=b"x")
        frontend.finished(2)
        self.assertEqual(len(frontend.of_kind("failed")), 1)
        self.assertEqual(self.counter("submit_bytes_held"), 0)

    def test_while_it_runs(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", max_tokens=60000)
        wait_for("a few tokens", lambda: len(frontend.steps(1)) > 3)
        frontend.cancel(1)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        self.worker.wait_line("cancel", "request=1 attempt=1")
        tokens = len(frontend.steps(1))
        frontend.submit(2, text=b"x", max_tokens=10)
        frontend.finished(2)
        self.assertEqual(len(frontend.steps(1)), tokens, "nothing comes after the last word")

    def test_nothing_but_the_last_word_after_a_cancel(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", max_tokens=60000, request_id="stubborn")
        wait_for("a few tokens", lambda: len(frontend.steps(1)) > 3)
        frontend.cancel(1)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        position = int(self.worker.wait_line("position request=1 is").split()[-1])
        # The engine went on for 50 steps; what it had said when the cancel came may have been sent.
        self.assertLess(len(frontend.steps(1)), position + 25)

    def test_while_intake_works_on_it(self):
        frontend = self.frontend()
        frontend.submit(1, chat=[("slow", LONG)] * 5, request_id="hold")
        frontend.submit(2, text=b"x", request_id="hold")  # queues behind it
        frontend.cancel(2)  # first: intake may not have begun the other yet, and then does not
        frontend.cancel(1)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        self.assertEqual(frontend.failed(2).code, CANCELLED)
        self.assertFalse(self.worker.seen("submit", "request=2 "), "it was not worked on")

    def test_a_short_one_does_not_pass_a_long_one(self):
        frontend = self.frontend()
        frontend.submit(1, chat=[("slow", LONG)])
        frontend.submit(2, text=b"x")
        frontend.finished(1)
        frontend.finished(2)
        self.assertIn("request=1 ", self.worker.seen("submit")[0])

    def test_the_stream_ends_while_intake_works(self):
        frontend = self.frontend()
        frontend.submit(1, chat=[("slow", LONG)], request_id="hold")
        wait_for("the submission", lambda: self.counter("submissions") == 1)
        frontend.close()
        self.worker.wait_line("forget")
        self.worker.wait_line("submit", "request=1 ")
        wait_for("nothing that runs", lambda: stats(self.worker.address)[1].load.running == 0)

    def test_at_once_many_times(self):
        """A cancel that chases its submission through assembly, intake and engine is never lost."""
        frontend = self.frontend()
        for request in range(1, 301):
            frontend.submit(request, text=b"y" * 3000, request_id="hold")
            frontend.cancel(request)
        for request in range(1, 301):
            self.assertEqual(frontend.failed(request).code, CANCELLED)
        self.assertEqual(self.counter("attempts_running"), 0)
        self.assertEqual(stats(self.worker.address)[1].load.running, 0)

    def test_unknown_and_repeated_cancels_reach_nobody(self):
        frontend = self.frontend()
        for request in range(1000):
            frontend.cancel(request + 10)
        frontend.submit(1, text=b"x", request_id="hold")
        frontend.placed(1)
        for _ in range(100):
            frontend.cancel(1)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        self.assertEqual(len(self.worker.seen("cancel ")), 1)


class Ends(Case):
    def test_a_lost_stream_takes_its_sequences_with_it_and_no_others(self):
        one, two = self.frontend(), self.frontend()
        for request in range(1, 6):
            one.submit(request, text=b"x", request_id="hold")
            two.submit(request, text=b"x", request_id="hold")
        for request in range(1, 6):
            one.placed(request)
            two.placed(request)
        one.close()
        self.worker.wait_line("forget")
        wait_for("five that are left", lambda: stats(self.worker.address)[1].load.running == 5)
        self.assertEqual(self.counter("attempts_running"), 5)
        self.assertEqual(len(self.worker.seen("forget")), 1)
        two.cancel(1)
        self.assertEqual(two.failed(1).code, CANCELLED)

    def test_a_half_closed_stream_is_over(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", request_id="hold")
        frontend.placed(1)
        frontend.put(None)
        self.assertEqual(frontend.wait_status()[0], CODE.OK)
        self.worker.wait_line("forget")

    def test_lost_in_the_middle_of_intake(self):
        for _ in range(20):
            frontend = self.frontend()
            for request in range(20):
                frontend.submit(request, text=b"y" * 2000, request_id="hold")
            frontend.close()
        wait_for("nothing that runs", lambda: stats(self.worker.address)[1].load.running == 0 and
                 self.counter("attaches_now") == 0)
        self.assertEqual(self.counter("attempts_running"), 0)
        wait_for("the memory to come back", lambda: self.counter("submit_bytes_held") == 0)

    def test_a_frontend_that_does_not_read_is_cut(self):
        slow, neighbour = self.frontend(), self.frontend()
        slow.gate.clear()
        slow.submit(1, text=b"x", request_id="flood", max_tokens=60000)
        wait_for("the cut", lambda: self.counter("attaches_cut") == 1)
        self.worker.wait_line("forget")
        neighbour.submit(1, text=b"x", max_tokens=20)
        neighbour.finished(1)
        slow.gate.set()
        self.assertEqual(slow.wait_status()[0], CODE.RESOURCE_EXHAUSTED)
        self.assertTrue(self.worker.logged("the frontend does not read"))

    def test_as_many_frontends_as_there_are_places(self):
        quiet = pd.FrontendHello(protocol=1, report_interval_ms=10000)
        streams = [self.frontend(hello=quiet) for _ in range(256)]
        for stream in streams:
            stream.wait_hello()
        code, details = self.frontend(hello=pd.FrontendHello(protocol=1)).wait_status()
        self.assertEqual(code, CODE.RESOURCE_EXHAUSTED)
        self.assertIn("as many frontends", details)
        streams[17].close()
        wait_for("a free place", lambda: self.counter("attaches_now") == 255)
        self.assert_alive()
        self.assertEqual(self.counter("attaches_refused"), 1)

    def test_drain(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", max_tokens=200)
        frontend.placed(1)
        self.worker.tell("drain 5000")
        drain = wait_for("the drain", lambda: frontend.of_kind("drain"))[0]
        self.assertEqual(drain.deadline_ms, 5000)
        frontend.submit(2, text=b"x")
        self.assertEqual(frontend.failed(2).code, DRAINING)
        self.assertEqual(len(frontend.finished(1)[1]), 200, "what runs goes on")
        frontend.wait_load(lambda load: load.draining)
        late = self.frontend()
        wait_for("the drain, told to a newcomer", lambda: late.of_kind("drain"))

    def test_a_frontend_that_drains(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", max_tokens=100)
        frontend.put(pd.ToWorker(drain=pd.FrontendDrain()))
        self.assertEqual(len(frontend.finished(1)[1]), 100)
        frontend.submit(2, text=b"x")
        self.assertEqual(frontend.failed(2).code, INTERNAL)

    def test_the_worker_leaves_with_streams_open(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", request_id="hold")
        frontend.placed(1)
        kv = self.raw("/pd.v1.Kv/Link", b"abc")
        wait_for("an answer", lambda: kv.received)
        self.assertEqual(self.worker.quit(), 0)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        self.assertEqual(frontend.wait_status(), (CODE.UNAVAILABLE, "this worker leaves"))
        self.assertEqual(kv.wait_status(), (CODE.UNAVAILABLE, "this worker leaves"))
