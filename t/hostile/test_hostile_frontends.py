"""Frontends that attack a worker.
"""

import os
import random
import time

from workers import FEW, LONG, Case, main  # first: it finds t/link
from rig import DRAINING, part_messages, pd, stats, wait_for


class Frontends(Case):
    workers = {"mixed": ("--max-num-seqs", "8", "--max-num-batched-tokens", "64",
                         "--max-waiting", "32")}
    step = []

    def check(self):
        self.whole(self.mixed)
        self.ask(self.mixed)
        counters = stats(self.mixed.address)[0]
        self.assertEqual((counters["submit_bytes_held"], counters["attempts_running"]), (0, 0))

    def last_words(self, frontend):
        """How often each request has been said to be over."""
        words = {}
        for message in frontend.of_kind("failed"):
            words[message.request] = words.get(message.request, 0) + 1
        for step in frontend.of_kind("step"):
            for sequence in step.sequences:
                if sequence.HasField("finished"):
                    words[sequence.request] = words.get(sequence.request, 0) + 1
        return words

    def wait_words(self, frontend, requests):
        """Exactly one last word for each of the requests."""
        wait_for(f"{len(requests)} last words", lambda: len(self.last_words(frontend)) >=
                 len(requests))
        self.assertEqual(self.last_words(frontend), {request: 1 for request in requests})

    def submit_of(self, **fields):
        submit = pd.Submit(model="m", text=LONG * 2, **fields)
        submit.sampling.max_tokens = 8
        submit.sampling.ignore_eos = True
        return submit

    def test_submissions_with_flipped_bits(self):
        source = random.Random(11)
        frontend = self.attach(self.mixed)
        base = self.submit_of(tenant="t", request_id="r", deadline_us=10000000)
        base.sampling.stop.append(b"zzz")
        base.sampling.logit_bias.add(token=5, bias=1)
        base.sampling.logprobs = True
        base.response_format.kind = 0
        whole = base.SerializeToString()
        requests = range(1, 400 // FEW + 1)
        for request in requests:
            data = bytearray(whole)
            for _ in range(source.randint(1, 6)):
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
            for message in part_messages(request, 1, bytes(data)):
                frontend.put(message)
        for request in requests:
            if request % 2:
                frontend.cancel(request)
        self.wait_words(frontend, requests)

    def test_numbers_that_are_none(self):
        frontend = self.attach(self.mixed)
        values = [float("nan"), float("inf"), float("-inf"), -1e30, 1e30, 3e38]
        requests = 0
        for field in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                      "repetition_penalty", "typical_p"):
            for value in values:
                submit = self.submit_of()
                setattr(submit.sampling, field, value)
                requests += 1
                for message in part_messages(requests, 1, submit.SerializeToString()):
                    frontend.put(message)
        for value in values:
            submit = self.submit_of()
            submit.sampling.logit_bias.add(token=1, bias=value)
            requests += 1
            for message in part_messages(requests, 1, submit.SerializeToString()):
                frontend.put(message)
        for key, value in (("max_tokens", 2 ** 32 - 1), ("min_tokens", 2 ** 32 - 1),
                           ("top_logprobs", 2 ** 32 - 1)):
            submit = self.submit_of()
            setattr(submit.sampling, key, value)
            requests += 1
            for message in part_messages(requests, 1, submit.SerializeToString()):
                frontend.put(message)
        for request in range(1, requests + 1):
            self.assertIn(frontend.failed(request).code, (1, 2), request)

    def test_huge_prompts(self):
        frontend = self.attach(self.mixed)
        most = 7 << 20
        for request, text in enumerate((b"a" * most, b" " * most, b"\n" * most, LONG * (most // 45),
                                        "\U0001f642".encode() * (most // 4), b"1" * most), 1):
            frontend.submit(request, text=text)
            self.assertEqual(frontend.failed(request).code, 2)
        frontend.submit(7, text=os.urandom(most))
        self.assertEqual(frontend.failed(7).code, 1)
        frontend.submit(8, chat=[("user", b"x")] * 4097)
        self.assertEqual(frontend.failed(8).code, 1)
        frontend.submit(9, chat=[("user", b"<|im_end|>" * (most // 10))])
        self.assertEqual(frontend.failed(9).code, 2)
        frontend.submit(10, tokens=[1] * 1000000)
        self.assertEqual(frontend.failed(10).code, 2)
        frontend.submit(11, tokens=[2 ** 32 - 1])
        self.assertEqual(frontend.failed(11).code, 1)
        frontend.submit(12, text=bytes(9 << 20))
        self.assertEqual(frontend.failed(12).code, 1)

    def test_interleaved_parts_and_cancels_between_them(self):
        frontend = self.attach(self.mixed)
        requests = range(1, 64 // FEW + 1)
        parts = {request: list(part_messages(request, 1, self.submit_of().SerializeToString(), 16))
                 for request in requests}
        for at in range(max(len(p) for p in parts.values())):
            for request in requests:
                if at < len(parts[request]):
                    frontend.put(parts[request][at])
                if request % 3 == 0 and at == request % len(parts[request]):
                    frontend.cancel(request)
        self.wait_words(frontend, requests)

    def test_cancels_at_every_moment(self):
        source = random.Random(5)
        frontend = self.attach(self.mixed)
        requests = range(1, 200 // FEW + 1)
        for request in requests:
            submit = self.submit_of()
            submit.sampling.max_tokens = source.choice((1, 4, 64))
            for message in part_messages(request, 1, submit.SerializeToString()):
                frontend.put(message)
            if source.random() < 0.5:
                time.sleep(source.random() * 0.01)
            for cancelled in {request, source.randint(1, request)}:
                frontend.cancel(cancelled)
        for request in requests:
            frontend.cancel(request)
        self.wait_words(frontend, requests)

    def test_more_than_the_pool_holds(self):
        small = self.start("small", "--max-model-len", "256", "--max-num-seqs", "8",
                           "--max-num-batched-tokens", "64", memory="8MiB")
        frontend = self.attach(small)
        kept = 9
        requests = range(1, 2 * kept + 1)
        for request in requests:
            submit = self.submit_of()
            submit.text = b"%d " % request + LONG
            submit.sampling.max_tokens = 48
            for message in part_messages(request, 1, submit.SerializeToString()):
                frontend.put(message)
        for request in requests[kept:]:
            frontend.cancel(request)
        for request in requests[:kept]:
            self.assertEqual(len(frontend.finished(request)[1]), 48)
        self.wait_words(frontend, requests)
        self.assertGreater(stats(small.address)[0]["preemptions"], 0)
        self.whole(small)
        small.kill()

    def test_drain_under_load(self):
        leaving = self.start("leaving", "--max-num-seqs", "8", "--max-num-batched-tokens", "64",
                             "--drain-timeout", "3")
        frontend = self.attach(leaving)
        for request in range(1, 61):
            if request == 30:
                frontend.placed(8)
                leaving.child.terminate()
            submit = self.submit_of()
            submit.sampling.max_tokens = 500
            for message in part_messages(request, 1, submit.SerializeToString()):
                frontend.put(message)
        self.assertEqual(leaving.wait_exit(), 0)
        frontend.wait_status()
        words = self.last_words(frontend)
        self.assertEqual(set(words.values()), {1})
        refused = [f for f in frontend.of_kind("failed") if f.code == DRAINING]
        self.assertLessEqual(len(refused), 31)
        self.assertEqual(len(words), 60)


if __name__ == "__main__":
    main()
