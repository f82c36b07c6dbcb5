"""Decode workers that attack a prefill worker.
"""

import os
import struct
import threading

import grpc

from workers import LONG, Case, free_blocks, main  # first: it finds t/link
from peers import Reader, dial, is_cut, planes_of, read_request, receive
from rig import PREFILL, pd, wait_for


# More than the socket buffers of both sides hold together.
ANSWERS_THAT_FILL_A_SOCKET = 64 << 20


def send_quietly(connection, data):
    try:
        connection.sendall(data)
    except OSError:
        pass


class Readers(Case):
    # A step that is under way keeps its blocks: small ones give them back soon on a busy machine.
    workers = {"source": ("--role", "prefill", "--kv-transport", "tcp",
                          "--max-num-batched-tokens", "64", "--max-num-seqs", "16")}
    step = []

    def setUp(self):
        super().setUp()
        self.frontend = self.attach(self.source)
        self.hello = self.frontend.wait_hello()
        self.requests = 0

    def check(self):
        self.whole(self.source)
        frontend = self.attach(self.source)
        frontend.submit(1, text=b"x", route=PREFILL)
        frontend.finished(1)

    def offer(self, text=LONG * 2):
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
        reader = self.reader("leaver")
        for i in range(4):
            ticket = self.offer(b"%d " % i + LONG * 2).ticket
            reader.claim(ticket)
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
                ("a stranger's block", lambda t, r, o: read_request(t, [strange])),
                ("a block and a stranger's", lambda t, r, o: read_request(t, [r[0], strange])),
                ("one range too long", lambda t, r, o: read_request(
                    t, [(strange[0] - r[0][1], 2 * r[0][1])])),
                ("the whole pool", lambda t, r, o: read_request(t, r * 3)),
                ("garbage", lambda t, r, o: os.urandom(4096))):
            with self.subTest(name):
                mine, other = self.offer().ticket, self.offer(b"other " + LONG * 2).ticket
                reader = self.reader("asker " + name)
                reader.claim(mine)
                extents = reader.wait_kind("claimed").extents
                layout = reader.wait_kind("hello").pool
                connection = self.open_data(reader)
                ranges = planes_of(layout, extents[0].first, 1)
                strange = self.strange_block(layout, extents)
                connection.sendall(read_request(mine.generation, ranges[:2], number=5))
                number, length = struct.unpack("<II", receive(connection, 8))
                self.assertEqual((number, length), (5, 2 * ranges[0][1]))
                self.assertEqual(len(receive(connection, length)), length)
                connection.sendall(spoil(mine.generation, ranges, other.generation))
                self.assertTrue(is_cut(connection))
                reader.wait_status()
                self.frontend.cancel(self.requests)
                self.whole(self.source)

    @staticmethod
    def strange_block(layout, extents):
        """The first plane of a block behind one that is the ticket's, which is not the ticket's."""
        mine = {extent.first + i for extent in extents for i in range(extent.count)}
        block = min(block + 1 for block in mine
                    if block + 1 not in mine and block + 1 < layout.blocks)
        return planes_of(layout, block, 1)[0]

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
        ticket = self.offer().ticket
        reader = self.reader("stalled")
        reader.claim(ticket)
        extents = reader.wait_kind("claimed").extents
        layout = reader.wait_kind("hello").pool
        connection = self.open_data(reader)
        ranges = planes_of(layout, extents[0].first, 1)
        request = read_request(ticket.generation, ranges)
        asked = ANSWERS_THAT_FILL_A_SOCKET // sum(length for _, length in ranges) + 1
        threading.Thread(target=send_quietly, args=(connection, request * asked),
                         daemon=True).start()
        receive(connection, 8)
        reader.release(ticket.generation)  # while answers are under way
        self.whole(self.source)
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


if __name__ == "__main__":
    main()
