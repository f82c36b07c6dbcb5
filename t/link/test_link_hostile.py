"""Peers that send what they should not, or too much of it."""

import random
import socket

import grpc

from case import Case
from rig import CANCELLED, CAPACITY, INVALID, part_messages, pd, unary, wait_for

CODE = grpc.StatusCode


class Parts(Case):
    def part(self, request, data=b"", total=0, last=False, attempt=1):
        return pd.ToWorker(submit=pd.SubmitPart(request=request, attempt=attempt, data=data,
                                                total=total, last=last))

    def data(self, size=0):
        submit = pd.Submit(model="m", text=b"x" * max(1, size))
        submit.sampling.max_tokens = 1
        return submit.SerializeToString()

    def test_parts_interleave(self):
        frontend = self.frontend()
        data = [self.data(40000), self.data(50000)]
        pieces = [list(part_messages(i + 1, 1, data[i], size=1000)) for i in range(2)]
        for i in range(max(map(len, pieces))):
            for piece in pieces:
                if i < len(piece):
                    frontend.put(piece[i])
        self.assertEqual(frontend.finished(1)[2].prompt_tokens, 40000)
        self.assertEqual(frontend.finished(2)[2].prompt_tokens, 50000)
        self.assertEqual(self.counter("submit_bytes"), len(data[0]) + len(data[1]))
        self.assertEqual(self.counter("submit_bytes_held"), 0)

    def test_largest_submission(self):
        frontend = self.frontend()
        data = self.data()
        padding = 256 * 1024 - len(data) - 5
        data += b"\xa2\x06" + bytes([padding & 0x7f | 0x80, padding >> 7 & 0x7f | 0x80,
                                     padding >> 14]) + b"p" * padding
        self.assertEqual(len(data), 256 * 1024)
        for message in part_messages(1, 1, data):
            frontend.put(message)
        frontend.finished(1)

    def test_oversize(self):
        frontend = self.frontend()
        frontend.put(self.part(1, b"x" * (32 * 1024 + 1), total=40000))
        self.assertIn("32 KiB", frontend.failed(1).message)
        frontend.put(self.part(2, b"x", total=256 * 1024 + 1))
        failed = frontend.failed(2)
        self.assertEqual(failed.code, INVALID)
        self.assertIn("--max-submit-bytes", failed.message)
        frontend.put(self.part(3, b"x", total=1 << 63))
        self.assertEqual(frontend.failed(3).code, INVALID)
        # The rest of a refused submission is ignored.
        frontend.put(self.part(3, b"x"))
        frontend.put(self.part(3, b"x", last=True))
        frontend.put(self.part(4, b"x" * 11, total=10))
        self.assertIn("longer than the 10 bytes", frontend.failed(4).message)
        frontend.put(self.part(5, b"x" * 9, total=10, last=True))
        self.assertIn("9 of 10 bytes", frontend.failed(5).message)
        frontend.submit(6, text=b"x")
        frontend.finished(6)
        self.assertEqual(len(frontend.of_kind("failed")), 5)
        self.assertEqual(self.counter("submit_bytes_held"), 0)

    def test_a_message_over_the_transport_limit_ends_only_its_stream(self):
        frontend, neighbour = self.frontend(), self.frontend()
        frontend.put(self.part(1, b"x" * 100000, total=100000))
        self.assertEqual(frontend.wait_status()[0], CODE.RESOURCE_EXHAUSTED)
        neighbour.submit(1, text=b"x")
        neighbour.finished(1)

    def test_twice(self):
        frontend = self.frontend()
        frontend.submit(1, text=b"x", request_id="hold")
        frontend.placed(1)
        frontend.submit(1, text=b"x")
        code, details = frontend.wait_status()
        self.assertEqual(code, CODE.INVALID_ARGUMENT)
        self.assertIn("twice", details)
        self.worker.wait_line("forget")

    def test_too_many_unfinished_submissions(self):
        frontend = self.frontend()
        for request in range(1, 258):
            frontend.put(self.part(request, b"x", total=1000))
        failed = frontend.failed(257)
        self.assertEqual(failed.code, CAPACITY)
        self.assertGreater(failed.retry_after_ms, 0)
        for request in range(1, 257):
            frontend.cancel(request)
        self.assertEqual(frontend.failed(256).code, CANCELLED)
        frontend.submit(300, text=b"x")
        frontend.finished(300)

    def test_memory_of_all_streams_is_bounded(self):
        streams = [self.frontend() for _ in range(3)]
        sizes = 0
        for number, stream in enumerate(streams):
            for request in range(1, 5):
                for message in list(part_messages(request, 1, b"x" * (256 * 1024)))[:-1]:
                    stream.put(message)
                    sizes += 1
        # Eight times max_submit_bytes are held for 12 submissions of that size.
        refused = wait_for("a refusal", lambda: sum(len(s.of_kind("failed")) for s in streams) >= 4)
        self.assertTrue(refused)
        for stream in streams:
            for failed in stream.of_kind("failed"):
                self.assertEqual(failed.code, CAPACITY)
        self.assertLessEqual(self.counter("submit_bytes_held"), 8 * 256 * 1024)
        for stream in streams:
            stream.close()
        wait_for("the memory to come back", lambda: self.counter("submit_bytes_held") == 0)
        self.assert_alive()


class Hostile(Case):
    METHODS = ("/pd.v1.Worker/Attach", "/pd.v1.Kv/Link", "/pd.v1.Worker/Stats")

    def test_garbage_on_attach(self):
        neighbour = self.frontend()
        for garbage in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x7f" + b"x" * 10, b"\x08",
                        b"\x0b" * 50):
            stream = self.raw("/pd.v1.Worker/Attach", garbage)
            self.assertEqual(stream.wait_status()[0], CODE.INVALID_ARGUMENT, garbage)
            stream = self.frontend()
            stream.put(garbage)
            self.assertEqual(stream.wait_status()[0], CODE.INVALID_ARGUMENT, garbage)
        self.assertTrue(self.worker.logged("a message cannot be read", "the stream is closed"))
        neighbour.submit(1, text=b"x")
        neighbour.finished(1)

    def test_garbage_on_stats(self):
        with self.assertRaises(grpc.RpcError) as raised:
            unary(self.worker.address, "/pd.v1.Worker/Stats", b"\xff", pd.StatsReply)
        self.assertEqual(raised.exception.code(), CODE.INVALID_ARGUMENT)

    def test_garbage_on_kv_is_kvx_s_to_judge(self):
        stream = self.raw("/pd.v1.Kv/Link", b"!garbage")
        self.assertEqual(stream.wait_status()[0], CODE.UNAVAILABLE)
        self.assert_alive()

    def test_random_bytes_on_every_method(self):
        random.seed(7)
        neighbour = self.frontend()
        for _ in range(60):
            stream = self.raw(random.choice(self.METHODS))
            for _ in range(random.randrange(1, 4)):
                stream.put(random.randbytes(random.randrange(0, 400)))
            stream.put(None)
        neighbour.submit(1, text=b"x")
        neighbour.finished(1)
        for stream in self.streams[1:]:
            stream.wait_status()

    def test_mutated_messages(self):
        random.seed(11)
        neighbour = self.frontend()
        submit = pd.Submit(model="m", chat=pd.ChatPrompt(
            messages=[pd.ChatMessage(role="user", content=b"hello")]),
            sampling=pd.Sampling(stop=[b"x"], max_tokens=2))
        good = [message.SerializeToString()
                for message in part_messages(1, 1, submit.SerializeToString())]
        for round_ in range(120):
            stream = self.frontend()
            for message in good:
                data = bytearray(message)
                for _ in range(random.randrange(1, 4)):
                    data[random.randrange(len(data))] = random.randrange(256)
                stream.put(bytes(data))
            stream.put(None)
            stream.wait_status()
            stream.close()
        neighbour.submit(1, text=b"x")
        neighbour.finished(1)

    def test_bytes_that_are_no_http2(self):
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                     b"\xff" * 500):
            with socket.create_connection(("127.0.0.1", self.worker.port)) as connection:
                connection.sendall(data)
        self.assert_alive()

    def test_unknown_method(self):
        with self.assertRaises(grpc.RpcError) as raised:
            unary(self.worker.address, "/pd.v1.Worker/Explode", b"", pd.StatsReply)
        self.assertEqual(raised.exception.code(), CODE.UNIMPLEMENTED)

    def test_compressed_messages_are_not_inflated(self):
        channel = grpc.insecure_channel(self.worker.address, compression=grpc.Compression.Gzip)
        with channel:
            call = channel.unary_unary("/pd.v1.Worker/Stats", request_serializer=lambda data: data,
                                       response_deserializer=lambda data: data)
            with self.assertRaises(grpc.RpcError):
                call(b"\x00" * (16 << 20), timeout=10)
        self.assert_alive()

    def test_too_many_stats_calls(self):
        streams = [self.raw("/pd.v1.Worker/Stats") for _ in range(17)]
        refused = wait_for("a refusal", lambda: [s for s in streams if s.status])
        self.assertEqual(refused[0].status[0], CODE.RESOURCE_EXHAUSTED)
        for stream in streams:
            stream.close()
        wait_for("room again", self._stats_work)

    def _stats_work(self):
        try:
            return self.counter("attaches") >= 0
        except grpc.RpcError:
            return False
