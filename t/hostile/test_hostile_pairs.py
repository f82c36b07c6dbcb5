"""Two workers, one of which is stopped, dies or leaves.
"""

import random
import signal
import time

from workers import FEW, LONG, Case, main  # first: it finds t/link
from peers import Reader
from rig import DECODE, PREFILL, TICKET, stats, wait_for


ARGUMENTS = ("--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--drain-timeout", "1")


class Pair(Case):
    """A prefill worker, `prefill`, and a decode worker, `decode`, each with a frontend."""

    step = []

    def attach_both(self):
        self.source, self.reader = self.attach(self.prefill), self.attach(self.decode)

    def bytes_read(self):
        return sum(link.bytes for link in stats(self.decode.address)[1].load.links)

    def hand_over(self, request, text=LONG * 300):
        """A hand-off in whose middle the prompt is still being computed."""
        before = self.bytes_read()
        self.source.submit(request, text=text, route=PREFILL)
        ticket = self.source.placed(request).ticket
        self.reader.submit(request, route=DECODE, ticket=ticket)
        self.reader.placed(request)
        wait_for("bytes on their way", lambda: self.bytes_read() > before)


class Pairs(Pair):
    workers = {role: ("--role", role, "--kv-transport", "tcp", *ARGUMENTS)
               for role in ("prefill", "decode")}

    def setUp(self):
        super().setUp()
        self.attach_both()

    def check(self):
        self.whole(self.prefill)
        self.whole(self.decode)

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

    def test_cancels_on_both_sides(self):
        source = random.Random(3)
        requests = range(1, 24 // FEW + 1)
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


class SharedPairs(Pairs):
    workers = {role: ("--role", role, "--kv-transport", "shm", *ARGUMENTS)
               for role in ("prefill", "decode")}


class Deaths(Pair):
    """Workers of its own for each test, since not all of them survive it."""

    def start_one(self, role):
        worker = self.start(f"{role}-{self.id()}", "--role", role, "--kv-transport", "tcp",
                            *ARGUMENTS)
        setattr(self, role, worker)
        self.addCleanup(worker.kill)

    def start_both(self):
        self.start_one("prefill")
        self.start_one("decode")
        self.attach_both()

    def test_a_killed_reader(self):
        self.start_both()
        self.hand_over(1)
        self.decode.child.kill()
        self.source.cancel(1)
        self.whole(self.prefill)

    def test_a_killed_source(self):
        self.start_both()
        self.hand_over(1)
        self.prefill.child.kill()
        self.assertEqual(self.reader.failed(1).code, TICKET)
        self.whole(self.decode)

    def test_a_reader_that_keeps_a_ticket_does_not_hold_up_the_end(self):
        self.start_one("prefill")
        source = self.attach(self.prefill)
        hello = source.wait_hello()
        keeper = Reader(self.prefill.address, Reader.hello_for(hello))
        self.addCleanup(keeper.close)
        source.submit(1, text=LONG, route=PREFILL)
        keeper.claim(source.placed(1).ticket)
        keeper.wait_kind("claimed")
        self.prefill.child.terminate()
        wait_for("the drain's end", lambda: "still busy" in self.prefill.text())
        self.assertEqual(self.prefill.wait_exit(), 0)
        self.assertNotIn("still in transfer", self.prefill.text())


if __name__ == "__main__":
    main()
