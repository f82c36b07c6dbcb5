"""Prefill workers that attack a decode worker, over tcp and shm.
"""

import fcntl
import os
import socket
import struct
import threading
import time

from workers import Case, main  # first: it finds t/link
from peers import Mapping, Source
from rig import CANCELLED, DEADLINE, DECODE, TICKET, pd, wait_for


class Decode(Case):
    """A decode worker, `reader`, that is given tickets of sources of ours."""

    def setUp(self):
        super().setUp()
        self.frontend = self.attach(self.reader)
        self.hello = self.frontend.wait_hello()
        self.requests = 0
        self.sources = 0

    def check(self):
        self.whole(self.reader)
        self.ask(self.reader)

    def source(self, **keywords):
        self.sources += 1
        source = Source(self.hello, name=f"{self.id()}-{self.sources}"[-100:], **keywords)
        self.addCleanup(source.close)
        return source

    def decode(self, ticket, **fields):
        self.requests += 1
        self.frontend.submit(self.requests, route=DECODE, ticket=ticket, **fields)
        return self.requests

    def refused(self, ticket, **fields):
        """The attempt fails as one whose ticket is to blame; gives the sentence."""
        failed = self.frontend.failed(self.decode(ticket, **fields))
        self.assertEqual(failed.code, TICKET, failed)
        return failed.message


class Sources(Decode):
    workers = {"reader": ("--role", "decode", "--kv-transport", "tcp")}

    def test_an_honest_source_is_believed(self):
        source = self.source()
        ids = self.frontend.finished(self.decode(source.ticket(1)))[1]
        self.assertEqual((len(ids), ids[0]), (3, 100))
        wait_for("the release", lambda: source.heard("release"))
        self.assertEqual([r.generation for r in source.heard("release")], [1])

    def test_tickets_that_lead_nowhere(self):
        source = self.source()
        deaf = socket.create_server(("127.0.0.1", 0))
        rude = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(deaf.close)
        self.addCleanup(rude.close)

        def rudely():
            while True:
                try:
                    connection = rude.accept()[0]
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n" * 100)
                    connection.close()
                except OSError:
                    return
        threading.Thread(target=rudely, daemon=True).start()
        for number, fields in enumerate((
                {"address": "127.0.0.1:%d" % rude.getsockname()[1]},
                {"address": "127.0.0.1:%d" % deaf.getsockname()[1]},
                {"address": "127.0.0.1:1"}, {"address": "no-such-host.invalid:1"},
                {"address": "127.0.0.1:0"}, {"address": "x"}, {"address": ""},
                {"address": "a" * 300}, {"instance": ""}, {"instance": "i" * 200},
                {"secret": b""}, {"secret": bytes(17)}, {"block_size": 8}, {"block_size": 0},
                {"tokens": 0}, {"tokens": 2 ** 32 - 1}, {"epoch": 2}, {"boot": 1})):
            ticket = source.ticket(number + 1)
            ticket.instance = f"nowhere-{number}"
            for key, value in fields.items():
                setattr(ticket, key, value)
            self.decode(ticket)
        for request in range(1, self.requests + 1):
            self.assertIn(self.frontend.failed(request).code, (TICKET, 1), request)
        ticket = source.ticket(100)
        ticket.fingerprint.layout = bytes(32)
        self.assertIn("layouts differ", self.refused(ticket))
        ticket.fingerprint.ClearField("weights")
        self.refused(ticket)
        self.requests += 1
        self.frontend.submit(self.requests, route=DECODE)
        self.assertEqual(self.frontend.failed(self.requests).code, TICKET)

    def test_hellos_that_lie(self):
        nowhere = pd.Fingerprint(weights=bytes(32), tokenizer=bytes(32), chat_template=bytes(32),
                                 layout=bytes(32))
        layout = Source.layout
        for fields in ({"boot": 1}, {"instance": "another"}, {"protocol": 0},
                       {"fingerprint": nowhere}, {"transport": "shm"}, {"transport": "rdma"},
                       {"transport": ""}, {"transport": "t" * 100}, {"data_address": ""},
                       {"data_address": "localhost:1"}, {"data_address": "127.0.0.1:1"},
                       {"data_address": ":::::"}, {"data_address": "127.0.0.1"},
                       {"pool": layout(None, layers=29)}, {"pool": layout(None, blocks=2 ** 40)},
                       {"pool": layout(None, blocks=0)}, {"pool": layout(None, head_dim=2 ** 31)},
                       {"pool": pd.KvPoolLayout(layers=30, kv_heads=3, blocks=64, block_size=16,
                                                head_dim=64, element_bytes=2, bytes=1)},
                       {"epoch": 5}):
            with self.subTest(**fields):
                source = self.source(**fields)
                self.refused(source.ticket(1))
                self.assertEqual(source.heard("claim"), [])

    def test_streams_that_lie(self):
        heartbeat = pd.KvFromSource(heartbeat=pd.KvHeartbeat(number=1))
        for first in ([b"\xff" * 100], [b""], [heartbeat], [bytes(1 << 20)], [None],
                      ["hello", "hello"], ["hello", b"\xff\xff\xff"], ["hello", None]):
            with self.subTest(first=str(first)[:60]):
                def answer(out, message, first=first):
                    if message.WhichOneof("kind") == "hello":
                        for one in first:
                            out.put(source.hello() if one == "hello" else one)
                    return True
                source = self.source(answer=answer)
                self.refused(source.ticket(1))

    def test_claims_that_are_answered_with_lies(self):
        ready, extent = pd.KvChunkReady, pd.KvExtent
        lies = {
            "few tokens": {"prompt": [50] * 39},
            "many tokens": {"prompt": [50] * 41},
            "no tokens": {"prompt": []},
            "strange tokens": {"prompt": [49152] * 40},
            "negative tokens": {"prompt": [2 ** 32 - 1] * 40},
            "no extents": {"extents": []},
            "few blocks": {"extents": [extent(first=0, count=2)]},
            "many blocks": {"extents": [extent(first=0, count=4)]},
            "blocks outside": {"extents": [extent(first=62, count=3)]},
            "no pool": {"extents": [extent(first=2 ** 63, count=3)]},
            "overflow": {"extents": [extent(first=2 ** 31 - 1, count=2 ** 32 - 1)]},
            "empty extent": {"extents": [extent(first=0, count=0), extent(first=0, count=3)]},
            "a thousand extents": {"extents": [extent(first=0, count=1)] * 1000},
            "too much ready": {"ready": ready(generation=1, tokens=41)},
            "too little complete": {"ready": ready(generation=1, tokens=39, complete=True)},
            "strange sample": {"ready": ready(generation=1, tokens=40, complete=True,
                                              first_token=49152)},
            "negative sample": {"ready": ready(generation=1, tokens=40, complete=True,
                                               first_token=2 ** 32 - 1, finish=1)},
        }
        for name, fields in lies.items():
            with self.subTest(name):
                def answer(out, message, fields=fields):
                    if message.WhichOneof("kind") != "claim":
                        return False
                    out.put(source.claimed(1, **fields))
                    return True
                source = self.source(answer=answer)
                self.refused(source.ticket(1))

    def test_endings_that_come_early_twice_or_for_others(self):
        gone = pd.KvFromSource(gone=pd.KvGone(generation=1, why="\x01\nnot you" + "x" * 5000))
        revoked = pd.KvFromSource(revoked=pd.KvRevoked(generation=1, why="\U0001f642" * 500))
        strange = pd.KvFromSource(gone=pd.KvGone(generation=2 ** 64 - 1))
        early = pd.KvFromSource(ready=pd.KvChunkReady(generation=1, tokens=40, complete=True))
        for name, messages in {"gone": [strange, gone, gone, revoked], "revoked": [
                early, "half", revoked, revoked, gone]}.items():
            with self.subTest(name):
                def answer(out, message, messages=messages):
                    if message.WhichOneof("kind") != "claim":
                        return False
                    for one in messages:
                        out.put(source.claimed(1, ready=source.ready(1, tokens=16, complete=False))
                                if one == "half" else one)
                    return True
                source = self.source(answer=answer)
                self.refused(source.ticket(1))
        # Claimed and ready again and again change nothing.

        def again(out, message):
            if message.WhichOneof("kind") != "claim":
                return False
            for _ in range(50):
                out.put(source.claimed(1))
                out.put(pd.KvFromSource(ready=source.ready(1)))
                out.put(pd.KvFromSource(ready=source.ready(1, first_token=7)))
                out.put(pd.KvFromSource(ready=source.ready(1, tokens=3, complete=False)))
            return True
        source = self.source(answer=again)
        self.assertEqual(self.frontend.finished(self.decode(source.ticket(1)))[1][0], 100)

    def test_data_that_lies(self):
        def wrong_number(connection, number, total):
            connection.sendall(struct.pack("<II", number + 1, total) + bytes(total))

        def wrong_length(connection, number, total):
            connection.sendall(struct.pack("<II", number, total - 1) + bytes(total))

        def half(connection, number, total):
            connection.sendall(struct.pack("<II", number, total) + bytes(total // 2))
            return True

        def nothing(connection, number, total):
            return True

        def more(connection, number, total):
            connection.sendall(struct.pack("<II", number, total) + bytes(total + 4096))
            return True

        for data in (wrong_number, wrong_length, half, nothing):
            with self.subTest(data.__name__):
                self.refused(self.source(data=data).ticket(1))
        source = self.source(data=more)  # may end well, if the answer is whole before the lie is read
        request = self.decode(source.ticket(1))
        wait_for("its end", lambda: self.frontend.of_kind("failed") and [
            f for f in self.frontend.of_kind("failed") if f.request == request] or [
            s for s in self.frontend.steps(request) if s.HasField("finished")])

    def test_silent_and_stalled_sources(self):
        """Each stage in which a source can fall silent; all at once, since silence takes its time."""
        mute = self.source(answer=lambda out, message: True)
        unclaimed = self.source(answer=lambda out, message: message.WhichOneof("kind") != "hello")
        stalled = self.source(data=lambda connection, number, total: time.sleep(60) or True,
                              answer=lambda out, m: m.WhichOneof("kind") == "heartbeat")
        requests = [self.decode(source.ticket(1)) for source in (mute, unclaimed, stalled)]
        for request in requests:
            self.assertEqual(self.frontend.failed(request).code, TICKET)

    def test_a_source_that_only_beats(self):
        """It promises the rest for ever: the worker's own limit ends the request, which names none."""
        hasty = self.start("hasty", "--role", "decode", "--kv-transport", "tcp",
                           "--request-timeout", "3")

        def half(out, message):
            if message.WhichOneof("kind") != "claim":
                return False
            out.put(source.claimed(1, ready=pd.KvChunkReady(generation=1, tokens=16)))
            return True

        frontend = self.attach(hasty)
        source = self.source(answer=half)
        frontend.submit(1, route=DECODE, ticket=source.ticket(1))
        self.assertEqual(frontend.failed(1).code, DEADLINE)
        wait_for("the release", lambda: source.heard("release"))
        self.whole(hasty)
        hasty.kill()

    def test_cancels_at_every_stage(self):
        held = threading.Event()
        self.addCleanup(held.set)

        def hold_data(connection, number, total):
            held.wait(60)
            return False

        def half(out, message):
            if message.WhichOneof("kind") != "claim":
                return False
            out.put(source.claimed(message.claim.generation, ready=pd.KvChunkReady(
                generation=message.claim.generation, tokens=16)))
            return True

        silent = self.source(answer=lambda out, message: True)
        unclaimed = self.source(answer=lambda out, m: m.WhichOneof("kind") == "claim")
        waiting = source = self.source(answer=half)
        reading = self.source(data=hold_data)
        requests = []
        for generation in range(1, 5):
            for one in (silent, unclaimed, waiting, reading):
                requests.append(self.decode(one.ticket(generation)))
        wait_for("claims", lambda: len(unclaimed.heard("claim")) == len(waiting.heard("claim")) ==
                 len(reading.heard("claim")) == 4)
        for request in requests:
            self.frontend.cancel(request)
            self.frontend.cancel(request)
        for request in requests:
            self.assertEqual(self.frontend.failed(request).code, CANCELLED)
        held.set()
        wait_for("releases", lambda: len(unclaimed.heard("release")) == len(
            waiting.heard("release")) == len(reading.heard("release")) == 4)

    def test_many_tickets_of_many_sources(self):
        """More sources than there are links, most of them nowhere; the room is shared and comes back."""
        source = self.source()
        for number in range(600):
            ticket = source.ticket(number + 1, tokens=17)
            if number % 10:
                ticket.instance, ticket.address = f"ghost-{number}", "127.0.0.1:1"
            self.decode(ticket, max_tokens=1)
        wait_for("600 last words", lambda: len(self.frontend.of_kind("failed")) + len([
            s for step in self.frontend.of_kind("step") for s in step.sequences
            if s.HasField("finished")]) == 600)


class SharedMemory(Decode):
    """The source's half of shm lies."""

    workers = {"reader": ("--role", "decode", "--kv-transport", "shm")}

    def memory(self, size, seals):
        """A memfd of `size` bytes with these seals."""
        fd = os.memfd_create("pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, size)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    def offer(self, descriptor, magic=b"pdkvmap1", answer=None):
        mapping = Mapping(descriptor, magic)
        self.addCleanup(mapping.close)
        return self.source(transport="shm", data_address=mapping.name, answer=answer)

    def test_mappings_that_lie(self):
        nothing = open(os.devnull, encoding="ascii")
        self.addCleanup(nothing.close)
        shape = Source.layout(None)
        whole = shape.generations_offset + 8 * shape.blocks
        for descriptor, magic in ((None, b"pdkvmap1"),
                                  (self.memory(whole, 0), b"pdkvmap1"),
                                  (self.memory(whole - 1, fcntl.F_SEAL_SHRINK), b"pdkvmap1"),
                                  (self.memory(0, fcntl.F_SEAL_SHRINK), b"pdkvmap1"),
                                  (self.memory(whole, fcntl.F_SEAL_SHRINK), b"pdkvmap2"),
                                  (self.memory(whole, fcntl.F_SEAL_SHRINK), b""),
                                  (nothing.fileno(), b"pdkvmap1")):
            self.refused(self.offer(descriptor, magic).ticket(1))
        for name in ("", "no-such-socket", "x" * 200):
            self.refused(self.source(transport="shm", data_address=name).ticket(1))

    def test_words_that_lie(self):
        shape = Source.layout(None)
        memory = self.memory(shape.generations_offset + 8 * shape.blocks, fcntl.F_SEAL_SHRINK)
        for words, good in (([0] * 3, True), ([0, 0, 1], False), ([0] * 2, False),
                            ([0] * 4, False), ([], False)):
            with self.subTest(words=words):
                def answer(out, message, words=words):
                    if message.WhichOneof("kind") != "claim":
                        return False
                    out.put(source.claimed(1, block_generations=words))
                    return True
                source = self.offer(memory, answer=answer)
                if good:
                    self.frontend.finished(self.decode(source.ticket(1)))
                else:
                    self.refused(source.ticket(1))


if __name__ == "__main__":
    main()
