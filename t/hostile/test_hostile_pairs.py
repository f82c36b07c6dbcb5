"""Two workers, one of which is stopped, dies or leaves.
"""

import random
import signal
import time

from workers import LONG, Case, main  # first: it finds t/link
from peers import Reader
from rig import DECODE, PREFILL, TICKET, stats, wait_for


class Pairs(Case):
    transport = "tcp"

    def setUp(self):
        for role in ("prefill", "decode"):
            setattr(self, role, self.start(f"{role}-{self.id()}", "--role", role, "--kv-transport",
                                           self.transport, "--max-num-batched-tokens", "64",
                                           "--max-num-seqs", "16", "--drain-timeout", "1",
                                           step=[]))
        self.source, self.reader = self.attach(self.prefill), self.attach(self.decode)

    def hand_over(self, request, text=LONG * 300):
        """A hand-off in whose middle the prompt is still being computed."""
        self.source.submit(request, text=text, route=PREFILL)
        ticket = self.source.placed(request).ticket
        self.reader.submit(request, route=DECODE, ticket=ticket)
        self.reader.placed(request)
        wait_for("bytes on their way", lambda: [link for link in stats(
            self.decode.address)[1].load.links if link.bytes])

    def test_a_stopped_reader(self):
        self.hand_over(1)
        self.decode.child.send_signal(signal.SIGSTOP)
        self.source.cancel(1)
        self.whole(self.prefill)
        self.decode.child.send_signal(signal.SIGCONT)
        self.assertEqual(self.reader.failed(1).code, TICKET)
        self.whole(self.decode)
        self.hand_over(2)

    def test_a_stopped_source(self):
        self.hand_over(1)
        self.prefill.child.send_signal(signal.SIGSTOP)
        self.assertEqual(self.reader.failed(1).code, TICKET)
        self.whole(self.decode)
        self.prefill.child.send_signal(signal.SIGCONT)
        self.source.cancel(1)
        self.whole(self.prefill)
        self.hand_over(2)

    def test_a_killed_reader(self):
        self.hand_over(1)
        self.decode.child.kill()
        self.source.cancel(1)
        self.whole(self.prefill)

    def test_a_killed_source(self):
        self.hand_over(1)
        self.prefill.child.kill()
        self.assertEqual(self.reader.failed(1).code, TICKET)
        self.whole(self.decode)

    def test_cancels_on_both_sides(self):
        source = random.Random(3)
        requests = range(1, 25)
        for request in requests:
            self.source.submit(request, text=b"%d " % request + LONG * source.randint(1, 8),
                               route=PREFILL)
            self.reader.submit(request, route=DECODE, max_tokens=source.choice((1, 8)),
                               ticket=self.source.placed(request).ticket)
            for frontend in (self.source, self.reader):
                if source.random() < 0.4:
                    frontend.cancel(source.randint(1, request))
            time.sleep(source.random() * 0.02)
        for request in requests:
            self.source.cancel(request)
            self.reader.cancel(request)
        self.whole(self.prefill)
        self.whole(self.decode)

    def test_a_reader_that_keeps_a_ticket_does_not_hold_up_the_end(self):
        hello = self.source.wait_hello()
        keeper = Reader(self.prefill.address,
                        Reader.hello_for(hello, transports=(self.transport,)))
        self.addCleanup(keeper.close)
        self.source.submit(1, text=LONG, route=PREFILL)
        keeper.claim(self.source.placed(1).ticket)
        keeper.wait_kind("claimed")
        self.prefill.child.terminate()
        wait_for("the drain's end", lambda: "still busy" in self.prefill.text())
        start = time.monotonic()
        self.assertEqual(self.prefill.wait_exit(60), 0)
        self.assertLess(time.monotonic() - start, 15)


class SharedPairs(Pairs):
    transport = "shm"
    # The control stream's end is the same.
    test_a_killed_reader = test_a_killed_source = None
    test_a_reader_that_keeps_a_ticket_does_not_hold_up_the_end = None


if __name__ == "__main__":
    main()
