"""Real workers among hostile peers: whatever a frontend, a decode worker or a prefill worker does, the
worker lives, others are served, and every KV block comes back.

usage: worker.py MODEL [unittest's arguments]
"""

import fcntl
import os
import random
import resource
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "link"))

from pair import STEP, Worker  # noqa: E402  (t/link)
from peers import (Mapping, Reader, Source, dial, is_cut, planes_of,  # noqa: E402
                   read_request, receive)
from rig import (CANCELLED, DECODE, DRAINING, PREFILL, TICKET,  # noqa: E402
                 Frontend, part_messages, pd, stats, wait_for)

MODEL = ""
LONG = b"the quick brown fox jumps over the lazy dog; "


def free_blocks(worker):
    return stats(worker.address)[1].load.kv_free


class Case(unittest.TestCase):
    """Workers live as long as their class; after each test each of them must be whole."""

    workers = {}
    step = STEP

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="pd-hostile-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        for name, arguments in cls.workers.items():
            setattr(cls, name, cls.start(name, *arguments))
            cls.addClassCleanup(getattr(cls, name).end)  # in order, where a sanitizer counts leaks

    @classmethod
    def start(cls, name, *arguments, **keywords):
        # One thread: several, on a busy machine, spend their time on waiting for one another.
        worker = Worker(cls.folder, name, MODEL, "--threads", "1", *arguments,
                        **{"step": cls.step, **keywords})
        cls.addClassCleanup(worker.log.close)
        cls.addClassCleanup(worker.kill)
        worker.total = stats(worker.address)[0]["kv_blocks"]
        return worker

    def attach(self, worker):
        frontend = Frontend(worker.address)
        self.addCleanup(frontend.close)
        frontend.wait_hello()
        return frontend

    def whole(self, worker):
        """All blocks are back, and the worker answers."""
        self.assertIsNone(worker.child.poll(), worker.text()[-2000:])
        try:
            wait_for(f"{worker.name}'s blocks", lambda: free_blocks(worker) == worker.total)
        except AssertionError as error:
            raise AssertionError(f"{error}: {stats(worker.address)}\n{worker.text()[-4000:]}") \
                from error
        self.assertEqual(stats(worker.address)[0]["failures_internal"], 0)

    def ask(self, worker):
        frontend = self.attach(worker)
        frontend.submit(1, text=b"Once upon a time", max_tokens=2)
        self.assertEqual(len(frontend.finished(1)[1]), 2)


# ---- a decode worker that attacks ------------------------------------------------------------------


class Readers(Case):
    # A step that is under way keeps its blocks: small ones give them back soon on a busy machine.
    workers = {"source": ("--role", "prefill", "--kv-transport", "tcp",
                          "--max-num-batched-tokens", "64", "--max-num-seqs", "16")}
    step = []

    def setUp(self):
        self.frontend = self.attach(self.source)
        self.hello = self.frontend.wait_hello()
        self.requests = 0

    def tearDown(self):
        self.whole(self.source)
        self.assertTrue(self.offer().ticket.generation)

    def offer(self, text=LONG * 4):
        """A ticket whose prompt has been computed."""
        self.requests += 1
        self.frontend.submit(self.requests, text=text, route=PREFILL)
        placed = self.frontend.placed(self.requests)
        self.frontend.finished(self.requests)
        return placed

    def reader(self, name="reader", **fields):
        reader = Reader(self.source.address, Reader.hello_for(self.hello, name, **fields))
        self.addCleanup(reader.close)
        return reader

    def open_data(self, reader):
        connection = reader.open_data()
        self.addCleanup(connection.close)
        return connection

    def test_messages_that_are_none(self):
        claim = pd.KvToSource(claim=pd.KvClaim(generation=1, epoch=1, secret=bytes(16)))
        hello = pd.KvToSource(hello=Reader.hello_for(self.hello, "talker"))
        short = pd.KvToSource(claim=pd.KvClaim(generation=1, epoch=1, secret=bytes(15)))
        for messages in ([b"\xff" * 64], [b""], [claim], [hello, hello], [hello, short],
                         [hello, b"\x12\x05abc"], [bytes(70000)]):
            reader = Reader(self.source.address)
            self.addCleanup(reader.close)
            for message in messages:
                reader.put(message)
            self.assertNotEqual(reader.wait_status()[0], grpc.StatusCode.OK, messages)

    def test_hellos_that_do_not_fit(self):
        wrong = pd.Fingerprint(weights=bytes(32), tokenizer=bytes(32), chat_template=bytes(32),
                               layout=bytes(32))
        short = pd.Fingerprint(weights=b"x")
        for fields in ({"source_boot": 1}, {"protocol": 0}, {"name": ""}, {"transports": ()},
                       {"transports": ("rdma",)}, {"transports": ("shm",)}):
            reader = self.reader(**fields)
            self.assertEqual(reader.wait_kind("hello").transport, "", fields)
            reader.wait_status()
        hello = Reader.hello_for(self.hello)
        hello.fingerprint.CopyFrom(wrong)
        reader = Reader(self.source.address, hello)
        self.addCleanup(reader.close)
        self.assertIn("weights differ", reader.wait_kind("hello").why)
        hello.fingerprint.CopyFrom(short)
        for bad in (hello, Reader.hello_for(self.hello, "n" * 200),
                    Reader.hello_for(self.hello, transports=["tcp"] * 9),
                    Reader.hello_for(self.hello, host_id="h" * 200)):
            reader = Reader(self.source.address, bad)
            self.addCleanup(reader.close)
            reader.wait_status()
            self.assertEqual(reader.received, [])

    def test_claims_of_what_is_not_theirs(self):
        ticket = self.offer().ticket
        owner, thief = self.reader("owner"), self.reader("thief")
        thief.claim(ticket, secret=bytes(16))
        self.assertIn("secret", thief.wait_kind("gone").why)
        for fields in ({"generation": ticket.generation + 100000}, {"generation": 0},
                       {"generation": 2 ** 64 - 1}):
            thief.claim(ticket, **fields)
            self.assertIn("no such ticket", thief.wait_kind("gone", fields["generation"]).why)
        thief.received.clear()
        thief.claim(ticket, epoch=9)
        self.assertIn("epoch", thief.wait_kind("gone").why)
        owner.claim(ticket)
        self.assertEqual(owner.wait_kind("claimed").ready.complete, True)
        for one in (owner, thief):
            one.claim(ticket)
            self.assertIn("claimed before", wait_for("gone", lambda one=one: [
                gone for gone in one.of_kind("gone") if "before" in gone.why])[0].why)
        # Only the owner's release counts, and only once.
        for _ in range(100):
            thief.release(ticket.generation)
        thief.claim(ticket, generation=1 << 40)
        thief.wait_kind("gone", 1 << 40)
        self.assertLess(free_blocks(self.source), self.source.total)
        for _ in range(100):
            owner.release(ticket.generation)
        self.whole(self.source)

    def test_a_link_that_goes_takes_its_claims(self):
        tickets = [self.offer(b"%d " % i + LONG * 4).ticket for i in range(8)]
        reader = self.reader("leaver")
        for ticket in tickets:
            reader.claim(ticket)
        for ticket in tickets:
            reader.wait_kind("claimed", ticket.generation)
        self.assertLess(free_blocks(self.source), self.source.total)
        reader.close()
        self.whole(self.source)

    def test_silent_links_are_cut(self):
        mute = Reader(self.source.address)
        self.addCleanup(mute.close)
        claimer = Reader(self.source.address, Reader.hello_for(self.hello, "silent"), beats=False)
        self.addCleanup(claimer.close)
        ticket = self.offer().ticket
        claimer.claim(ticket)
        claimer.wait_kind("claimed")
        connection = self.open_data(claimer)
        stranger = dial(claimer.wait_kind("hello").data_address)
        self.addCleanup(stranger.close)
        stranger.sendall(b"pdkv")
        for reader in (mute, claimer):
            reader.wait_status()
        self.assertTrue(is_cut(connection) and is_cut(stranger))

    def test_a_newer_link_ends_the_older(self):
        older = self.reader("twin", epoch=5)
        ticket = self.offer().ticket
        older.claim(ticket)
        older.wait_kind("claimed")
        self.assertIn("newer link", self.reader("twin", epoch=4).wait_kind("hello").why)
        newer = self.reader("twin", epoch=6)
        self.assertEqual(newer.wait_kind("hello").transport, "tcp")
        older.wait_status()
        newer.claim(ticket)
        self.assertIn("no such ticket", newer.wait_kind("gone").why)

    def test_requests_for_what_is_not_theirs(self):
        for name, spoil in (
                ("unknown ticket", lambda t, r, o: read_request(t + 1000000, r)),
                ("another's ticket", lambda t, r, o: read_request(o, r)),
                ("no range", lambda t, r, o: read_request(t, [])),
                ("257 ranges", lambda t, r, o: read_request(t, r[:1], count=257)),
                ("2^32-1 ranges", lambda t, r, o: read_request(t, r[:1], count=2 ** 32 - 1)),
                ("no bytes", lambda t, r, o: read_request(t, [(r[0][0], 0)])),
                ("2^32-1 bytes", lambda t, r, o: read_request(t, [(r[0][0], 2 ** 32 - 1)])),
                ("outside", lambda t, r, o: read_request(t, [(2 ** 64 - r[0][1], r[0][1])])),
                ("half a block", lambda t, r, o: read_request(t, [(r[0][0] + 2, r[0][1])])),
                ("a neighbour", lambda t, r, o: read_request(
                    t, [(r[0][0] + r[0][1], r[0][1])] * 2)),
                ("the whole pool", lambda t, r, o: read_request(t, r * 3)),
                ("garbage", lambda t, r, o: os.urandom(4096))):
            with self.subTest(name):
                mine, other = self.offer().ticket, self.offer(b"other " + LONG * 4).ticket
                reader = self.reader("asker " + name)
                reader.claim(mine)
                extent = reader.wait_kind("claimed").extents[0]
                layout = reader.wait_kind("hello").pool
                connection = self.open_data(reader)
                ranges = planes_of(layout, extent.first, 1)
                connection.sendall(read_request(mine.generation, ranges[:2], number=5))
                number, length = struct.unpack("<II", receive(connection, 8))
                self.assertEqual((number, length), (5, 2 * ranges[0][1]))
                self.assertEqual(len(receive(connection, length)), length)
                connection.sendall(spoil(mine.generation, ranges, other.generation))
                self.assertTrue(is_cut(connection))
                reader.wait_status()
                self.frontend.cancel(self.requests)
                self.whole(self.source)

    def test_what_is_not_ready_is_not_sent(self):
        self.requests += 1
        self.frontend.submit(self.requests, text=LONG * 300, route=PREFILL)
        ticket = self.frontend.placed(self.requests).ticket
        reader = self.reader("hasty")
        reader.claim(ticket)
        claimed = reader.wait_kind("claimed")
        last = claimed.extents[-1].first + claimed.extents[-1].count - 1
        connection = self.open_data(reader)
        if not claimed.ready.complete:
            connection.sendall(read_request(ticket.generation, planes_of(
                reader.wait_kind("hello").pool, last, 1)[:1]))
            is_cut(connection)
            reader.wait_status()
        reader.close()
        self.frontend.cancel(self.requests)

    def test_a_reader_that_does_not_read(self):
        ticket = self.offer(LONG * 60).ticket
        reader = self.reader("stalled")
        reader.claim(ticket)
        extent = reader.wait_kind("claimed").extents[0]
        connection = self.open_data(reader)
        ranges = planes_of(reader.wait_kind("hello").pool, extent.first, extent.count)[:8]
        connection.sendall(b"".join(read_request(ticket.generation, ranges, number)
                                    for number in range(64)))
        reader.release(ticket.generation)  # while answers are under way
        self.assertTrue(is_cut(connection))
        reader.wait_status()

    def test_strangers_at_the_data_port(self):
        address = self.reader("host").wait_kind("hello").data_address
        strangers = [dial(address) for _ in range(300)]
        for i, stranger in enumerate(strangers):
            try:
                stranger.sendall((b"pdkvdat1" + bytes(8), b"GET / HTTP/1.1\r\n\r\n", b"",
                                  b"pdkvdat1")[i % 4])
            except ConnectionError:
                pass
        reader = self.reader("late")
        ticket = self.offer().ticket
        reader.claim(ticket)
        extent = reader.wait_kind("claimed").extents[0]
        connection = self.open_data(reader)
        ranges = planes_of(reader.wait_kind("hello").pool, extent.first, 1)[:1]
        connection.sendall(read_request(ticket.generation, ranges))
        self.assertEqual(len(receive(connection, 8 + ranges[0][1])), 8 + ranges[0][1])
        for stranger in strangers:
            stranger.close()
        reader.close()

    def test_a_flood_of_claims(self):
        reader = self.reader("flood")
        reader.wait_kind("hello")
        reader.gate.clear()  # and it does not read
        claim = pd.KvToSource(claim=pd.KvClaim(generation=1 << 50, epoch=1, secret=bytes(16)))
        for _ in range(20000):
            reader.put(claim.SerializeToString())
        ticket = self.offer().ticket
        other = self.reader("patient")
        other.claim(ticket)
        other.wait_kind("claimed")
        other.release(ticket.generation)
        reader.gate.set()
        reader.close()

    def test_links_and_claims_of_many_readers(self):
        ticket = self.offer().ticket
        readers = [self.reader(f"many {i}") for i in range(40)]
        for reader in readers:
            reader.claim(ticket)
        wait_for("an answer to each", lambda: sum(
            len(r.of_kind("claimed")) + len(r.of_kind("gone")) for r in readers) == 40)
        self.assertEqual(sum(len(r.of_kind("claimed")) for r in readers), 1)
        for reader in readers:
            reader.close()


# ---- a prefill worker that attacks -----------------------------------------------------------------


class Sources(Case):
    workers = {"reader": ("--role", "decode", "--kv-transport", "tcp")}

    def setUp(self):
        self.frontend = self.attach(self.reader)
        self.hello = self.frontend.wait_hello()
        self.requests = 0
        self.sources = 0

    def tearDown(self):
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


class SharedMemory(Case):
    """The source's half of shm lies."""

    workers = {"reader": ("--role", "decode", "--kv-transport", "shm")}

    setUp = Sources.setUp
    tearDown = Sources.tearDown
    source = Sources.source
    decode = Sources.decode
    refused = Sources.refused

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
        shape = Source.layout(None)
        whole = shape.generations_offset + 8 * shape.blocks
        for descriptor, magic in ((None, b"pdkvmap1"),
                                  (self.memory(whole, 0), b"pdkvmap1"),
                                  (self.memory(whole - 1, fcntl.F_SEAL_SHRINK), b"pdkvmap1"),
                                  (self.memory(0, fcntl.F_SEAL_SHRINK), b"pdkvmap1"),
                                  (self.memory(whole, fcntl.F_SEAL_SHRINK), b"pdkvmap2"),
                                  (self.memory(whole, fcntl.F_SEAL_SHRINK), b""),
                                  (sys.stdin.fileno(), b"pdkvmap1")):
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


# ---- frontends that attack ---------------------------------------------------------------------------


class Frontends(Case):
    workers = {"mixed": ("--max-num-seqs", "8", "--max-num-batched-tokens", "64",
                         "--max-waiting", "32")}
    step = []

    def tearDown(self):
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
        requests = range(1, 401)
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
                      "repetition_penalty"):
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
        requests = range(1, 65)
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
        requests = range(1, 201)
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
        requests = range(1, 33)
        for request in requests:
            submit = self.submit_of()
            submit.text = b"%d " % request + LONG
            submit.sampling.max_tokens = 100
            for message in part_messages(request, 1, submit.SerializeToString()):
                frontend.put(message)
        for request in requests[16:]:
            frontend.cancel(request)
        for request in requests[:16]:
            self.assertEqual(len(frontend.finished(request)[1]), 100)
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


# ---- two workers, one of which is stopped or dies ------------------------------------------------------


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
        requests = range(1, 41)
        for request in requests:
            self.source.submit(request, text=b"%d " % request + LONG * source.randint(1, 12),
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


# ---- connections ---------------------------------------------------------------------------------------


class Connections(Case):
    workers = {"worker": ()}

    def crowd(self, count):
        connections = [dial(self.worker.address) for _ in range(count)]
        for connection in connections:
            self.addCleanup(connection.close)
        return connections

    def test_files_run_out_and_come_back(self):
        resource.prlimit(self.worker.child.pid, resource.RLIMIT_NOFILE, (300, 300))
        frontend = self.attach(self.worker)
        crowd = self.crowd(400)
        for connection in crowd[250:]:
            self.assertTrue(is_cut(connection))
        frontend.submit(1, text=b"Once upon a time", max_tokens=2)
        frontend.finished(1)
        for connection in crowd:
            connection.close()
        self.ask(self.worker)
        self.assertGreaterEqual(stats(self.worker.address)[0]["connections_refused"], 150)
        self.whole(self.worker)

    def test_connections_that_say_nothing_or_nonsense(self):
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        for i, connection in enumerate(self.crowd(100)):
            connection.sendall((b"", preface, preface + bytes(9), preface + b"\xff" * 4096,
                                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(64),
                                preface[:10])[i % 7])
        self.ask(self.worker)
        self.whole(self.worker)

    def test_streams_half_open(self):
        streams = [Frontend(self.worker.address, hello=False) for _ in range(64)]
        calls = [Reader(self.worker.address) for _ in range(64)]
        for stream in streams + calls:
            self.addCleanup(stream.close)
        self.ask(self.worker)
        for stream in streams[::2] + calls[::2]:
            stream.close()
        self.ask(self.worker)
        for call in calls[1::2]:  # silent for too long
            call.wait_status()
        self.whole(self.worker)


if __name__ == "__main__":
    MODEL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
