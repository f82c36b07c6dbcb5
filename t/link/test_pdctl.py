"""pdctl against real workers, and against what only looks like one.

usage: test_pdctl.py MODEL
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from concurrent import futures

import grpc

import test_worker
from rig import BUILD, CANCELLED, DRAINING, PATIENCE, Stream, pd, stats, wait_for
from test_worker import Life, free_port

PDCTL = os.path.join(BUILD, "bin/pdctl")
del Life.test_ready_line  # its helpers are used here; its tests have a run of their own
for inherited in [name for name in dir(Life) if name.startswith("test_")]:
    delattr(Life, inherited)


def pdctl(*arguments):
    return subprocess.run([PDCTL, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


class CommandLine(unittest.TestCase):
    def test_help_teaches(self):
        overview = pdctl("--help")
        self.assertEqual((overview.returncode, overview.stderr), (0, ""))
        for command in re.findall(r"^  (\w+) +WORKER", overview.stdout, re.M):
            page = pdctl(command, "--help")
            self.assertEqual((page.returncode, page.stderr), (0, ""))
            self.assertIn(f"Usage: pdctl {command} WORKER", page.stdout)
            self.assertIn("--tls-ca PATH", page.stdout)
        self.assertRegex(overview.stdout, r"  status +WORKER .*\n  drain +WORKER ")
        self.assertRegex(pdctl("--version").stdout, r"^pdctl 0\.")

    def test_misuse(self):
        for arguments, words in ((("fly",), 'no command "fly"'), ((), "Usage"), (("drain",), "write pdctl drain WORKER"),
                                 (("drain", "h:1", "h:2"), '"h:2" is one argument too many'),
                                 (("drain", "h:1", "--deadline", "soon"), "--deadline soon: write seconds"),
                                 (("status", "--colour", "h:1"), "no flag --colour")):
            result = pdctl(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""), arguments)
            self.assertIn(words, result.stderr)

    def failure(self, *arguments):
        result = pdctl(*arguments)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        return result.stderr

    def test_what_cannot_be_reached(self):
        self.assertIn('"unix:/run/x" is no address', self.failure("status", "unix:/run/x"))
        self.assertIn("is not reached", self.failure("status", f"127.0.0.1:{free_port()}"))
        self.assertIn("go together", self.failure("status", "127.0.0.1:1", "--tls-cert", "/x"))
        self.assertIn("cannot open /nowhere", self.failure("drain", "127.0.0.1:1", "--tls-ca", "/nowhere"))

    def test_a_silent_peer_is_given_up(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            start = time.monotonic()
            self.failure("status", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.5")
            self.assertLess(time.monotonic() - start, 30)

    def serve(self, method, handler):
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pd.v1.Worker", {method: handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(lambda: server.stop(0).wait())
        return f"127.0.0.1:{port}"

    def test_an_older_worker(self):
        address = self.serve("Stats", grpc.unary_unary_rpc_method_handler(lambda data, _: b""))
        self.assertIn("older version", self.failure("drain", address))
        self.assertIn("cannot be read", self.failure("status", address))

    def test_where_the_blocks_are(self):
        reply = pd.StatsReply(
            hello=pd.WorkerHello(instance="w1", kv_blocks=1000, block_size=16),
            load=pd.LoadReport(kv_free=900, kv_reserved=30, kv_growth=70)).SerializeToString()
        address = self.serve("Stats", grpc.unary_unary_rpc_method_handler(lambda data, _: reply))
        self.assertIn("KV blocks: 100 of 1000 in use, 30 promised, 70 for answers to grow, 16 tokens each",
                      pdctl("status", address).stdout)
        load = json.loads(pdctl("status", address, "--json").stdout)["load"]
        self.assertEqual((load["kv_free"], load["kv_reserved"], load["kv_growth"]), (900, 30, 70))

    def test_a_worker_that_lies(self):
        handler = grpc.stream_stream_rpc_method_handler(lambda requests, _: iter([b"\xff\xff\xff"]))
        self.assertIn("cannot be read", self.failure("drain", self.serve("Drain", handler)))
        handler = grpc.stream_stream_rpc_method_handler(lambda requests, _: iter([]))
        self.assertIn("without having left", self.failure("drain", self.serve("Drain", handler)))
        huge = b"\0" * (5 << 20)
        handler = grpc.unary_unary_rpc_method_handler(lambda data, _: huge)
        self.assertIn("refuses", self.failure("status", self.serve("Stats", handler)))


class Status(Life):
    def test_it_says_what_the_worker_says(self):
        worker = self.start("--name", "w1", "--role", "decode", "--zone", "rack9")
        counters, reply = stats(worker.address)
        shown = json.loads(pdctl("status", worker.address, "--json").stdout)
        self.assertEqual(shown["hello"]["boot"], f"{reply.hello.boot:016x}")
        for field in ("instance", "model", "numerics_id", "zone", "kv_blocks", "block_size", "max_model_len"):
            self.assertEqual(shown["hello"][field], getattr(reply.hello, field), field)
        self.assertEqual((shown["hello"]["role"], shown["load"]["draining"]), ("decode", False))
        self.assertEqual(shown["load"]["kv_free"], reply.load.kv_free)
        self.assertEqual(set(shown["counters"]), set(counters))
        self.assertEqual(shown["counters"]["kv_blocks"], reply.hello.kv_blocks)
        text = pdctl("status", worker.address, "--counters").stdout
        self.assertIn("w1: decode of m, boot", text)
        self.assertIn(f"KV blocks: 0 of {reply.hello.kv_blocks} in use", text)
        self.assertRegex(text, rf"\n  kv_blocks {reply.hello.kv_blocks}\n")
        self.assertEqual(pdctl("status", worker.address, "--quiet").stdout, "")


class Drain(Life):
    def test_what_runs_ends(self):
        worker = self.start()
        frontend = self.attach(worker)
        frontend.submit(1, text=b"Once upon a time", max_tokens=60)
        frontend.placed(1)
        results = []
        thread = threading.Thread(target=lambda: results.append(pdctl("drain", worker.address)))
        thread.start()
        wait_for("the drain", lambda: frontend.of_kind("drain"))
        frontend.submit(2, text=b"x")
        self.assertEqual(frontend.failed(2).code, DRAINING)
        self.assertGreater(len(frontend.finished(1)[1]), 0)
        thread.join(PATIENCE)
        self.assertEqual((results[0].returncode, results[0].stdout),
                         (0, f"{worker.address} has left: everything that it had has ended\n"), results)
        self.assertIn("1 requests to end (", results[0].stderr)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(worker.address.split(":"))
        self.assertEqual(worker.wait_exit(), 0)

    def test_its_deadline_is_the_callers(self):
        worker = self.start("--drain-timeout", "600")
        frontend = self.attach(worker)
        self.long_answer(frontend)
        result = pdctl("drain", worker.address, "--deadline", "0.7")
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("its time was up, and what it still had (1 requests", result.stdout)
        self.assertEqual(frontend.failed(1).code, CANCELLED)
        self.assertEqual(worker.wait_exit(), 0)
        self.assertIn("still busy after 0.7 s: what runs is cut (pdctl drain)", worker.text())

    def test_the_first_deadline_stands_and_watchers_may_leave(self):
        worker = self.start()
        frontend = self.attach(worker)
        self.long_answer(frontend)
        first = pdctl("drain", worker.address, "--no-wait", "--deadline", "500")
        self.assertRegex(first.stderr, rf"^{worker.address}: 1 requests to end \(. running, . waiting\), 500 s left\n$")
        self.assertRegex(first.stdout, "drains, for at most 500 s")
        with subprocess.Popen([PDCTL, "drain", worker.address, "--deadline", "0.1"], stderr=subprocess.PIPE,
                              text=True) as watcher:
            self.assertRegex(watcher.stderr.readline(), r"1 requests to end .*, (499|500) s left")
            watcher.kill()
        self.assertEqual(stats(worker.address)[1].load.draining, True)
        self.assertIsNone(worker.child.poll())
        frontend.cancel(1)
        self.assertEqual(worker.wait_exit(), 0)

    def drain_call(self, worker, message=None):
        stream = Stream(worker.address, "/pd.v1.Worker/Drain", pd.DrainProgress)
        self.addCleanup(stream.close)
        if message is not None:
            stream.put(message)
        return stream

    def test_hostile_callers_drain_nothing(self):
        worker = self.start()
        for bad in (b"\xff\xff\xff", pd.DrainRequest(deadline_ms=86400001)):
            self.assertEqual(self.drain_call(worker, bad).wait_status()[0], grpc.StatusCode.INVALID_ARGUMENT)
        silent = [self.drain_call(worker) for _ in range(17)]
        ends = [stream.wait_status()[0] for stream in silent]
        self.assertEqual((ends.count(grpc.StatusCode.RESOURCE_EXHAUSTED),
                          ends.count(grpc.StatusCode.DEADLINE_EXCEEDED)), (1, 16), ends)
        self.assertEqual(stats(worker.address)[1].load.draining, False)
        twice = self.drain_call(worker, pd.DrainRequest(deadline_ms=60000))
        twice.put(pd.DrainRequest())
        self.assertEqual(worker.wait_exit(), 0)


class Check(Life):
    def worker(self, role, *arguments):
        folder = os.path.join(self.folder.name, role)
        os.mkdir(folder)
        worker = test_worker.Worker(folder, "--role", role, "--name", role, "--max-model-len", "208", *arguments)
        self.addCleanup(worker.log.close)
        self.addCleanup(worker.kill)
        return worker

    def pair(self, transport):
        return [worker.wait_ready() for worker in [self.worker(role, "--kv-transport", transport)
                                                   for role in ("prefill", "decode")]]

    def whole_pools(self, *workers):
        for worker in workers:
            total = stats(worker.address)[0]["kv_blocks"]
            wait_for("a whole pool", lambda: stats(worker.address)[1].load.kv_free == total)
            self.assertEqual(stats(worker.address)[0]["attempts_running"], 0)

    def measure(self, transport, rails):
        prefill, decode = self.pair(transport)
        result = pdctl("check", "--kv", prefill.address, decode.address)
        self.assertEqual(result.returncode, 0, result)
        found = re.fullmatch(rf"decode reads from prefill over {transport}\n"
                             r"  one block \(16 tokens\): ([\d.]+) ms, .*\n"
                             r"  192 tokens, ([\d.]+) MB: [\d.]+ ms, \d+ MB/s; .* in 3 tries\n" +
                             "".join(rf"  rail {n} of {rails} alone: round trip (?!0\.000)[\d.]+ ms, \d+ MB/s, .* "
                                     r"what the prefill worker makes\n" for n in range(1, rails + 1)) +
                             r"  the prefill worker makes \d+ MB/s of KV \(23\.0 KB a token\): .*\n", result.stdout)
        self.assertIsNotNone(found, result.stdout)
        return prefill, decode, found

    def test_shared_memory_is_one_rail(self):
        self.measure("shm", 1)

    def test_a_link_is_measured_and_nothing_stays(self):
        prefill, decode, found = self.measure("tcp", 2)
        self.assertAlmostEqual(float(found.group(2)), 192 * 23040 / 1e6, delta=0.06)  # 30 layers, 3 heads of 64, f16
        self.whole_pools(prefill, decode)

        def links():
            return [(link.transport, link.transfers, link.failures, link.bytes)
                    for link in stats(decode.address)[1].load.links]

        # a report's link states may be some time old; as many bytes: nothing came out of a cache
        # and those of the two small reads that show a round trip: a block of one plane each, K and V of 16 tokens
        wait_for("the link's counts", lambda: links()[0][1] == 10)
        self.assertEqual(links(), [("tcp", 10, 0, (5 * 16 + 5 * 192) * 23040 + 2 * 2 * 16 * 64 * 2)])
        quiet = pdctl("check", "--kv", "--quiet", prefill.address, decode.address)
        self.assertEqual((quiet.returncode, quiet.stdout), (0, ""))

        process = subprocess.Popen([PDCTL, "check", "--kv", prefill.address, decode.address])
        wait_for("the check", lambda: stats(prefill.address)[0]["attempts_running"] > 0)
        process.kill()
        process.wait()
        self.whole_pools(prefill, decode)

    def played_pair(self, wire_us, fails_on=None):
        """A prefill and a decode worker that say what the test wants of each rail; gives their addresses."""
        def hello(role, name):
            return pd.FromWorker(hello=pd.WorkerHello(
                protocol=1, instance=name, role=role, model="m", vocabulary=100, max_model_len=4096, block_size=16,
                fingerprint=pd.Fingerprint(weights=b"w" * 32, tokenizer=b"t" * 32, chat_template=b"c" * 32,
                                           layout=b"l" * 32))).SerializeToString()

        def finished(request, timing):
            return pd.FromWorker(step=pd.Step(sequences=[pd.SequenceStep(
                request=request, attempt=1, finished=pd.Finished(timing=timing))])).SerializeToString()

        def submissions(requests):
            for message in map(pd.ToWorker.FromString, requests):
                if message.WhichOneof("kind") == "submit" and message.submit.last:
                    yield message.submit.request, message.submit.data

        def prefill(requests, _):
            yield hello(1, "p")
            for request, _ in submissions(requests):
                yield pd.FromWorker(placed=pd.Placed(request=request, attempt=1, ticket=pd.Ticket(
                    instance="p", generation=request))).SerializeToString()
                yield finished(request, pd.Timing(prefill_us=10**6))

        def decode(requests, _):
            yield hello(2, "d")
            for request, data in submissions(requests):
                rail = pd.Submit.FromString(data).ticket.rail
                if rail and rail == fails_on:
                    yield pd.FromWorker(failed=pd.Failed(request=request, attempt=1, code=4,
                                                         message="reads make no progress")).SerializeToString()
                    return
                yield finished(request, pd.Timing(kv_bytes=10**8, kv_wire_us=wire_us[rail], kv_transport="rdma",
                                                  kv_rails=2, kv_round_trip_ns=rail * 1500000))

        return [self.serve("Attach", grpc.stream_stream_rpc_method_handler(play)) for play in (prefill, decode)]

    serve = CommandLine.serve

    def test_a_rail_that_is_slow_or_lost_is_named(self):
        result = pdctl("check", "--kv", *self.played_pair({0: 10000, 1: 10000, 2: 80000}))
        self.assertEqual(result.returncode, 0, result)
        self.assertIn("rail 1 of 2 alone: round trip 1.500 ms, 10000 MB/s, 100 times", result.stdout)
        self.assertIn("rail 2 of 2 alone: round trip 3.000 ms, 1250 MB/s, 12.5 times", result.stdout)
        self.assertRegex(result.stderr, "^rail 2 of 2 moves 1250 MB/s, rail 1 10000 MB/s: .* packets of rail 2 are lost")
        result = pdctl("check", "--kv", *self.played_pair({0: 10000, 1: 10000}, fails_on=2))
        self.assertEqual((result.returncode, result.stdout), (1, ""), result)
        self.assertIn("on rail 2 of 2 alone: reads make no progress", result.stderr)

    def test_blocks_of_other_sizes_are_named(self):
        prefill = self.worker("prefill").wait_ready()
        decode = self.worker("decode", "--block-size", "8").wait_ready()
        result = pdctl("check", "--kv", prefill.address, decode.address)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result)
        self.assertIn("KV blocks of another size: 8 tokens, "
                      f"{prefill.address} has 16; give both the same --block-size", result.stderr)

    def test_what_is_no_pair_is_said(self):
        prefill, decode = self.pair("auto")
        for operands, words in (((decode.address, prefill.address), "name the prefill worker first"),
                                ((prefill.address, f"127.0.0.1:{free_port()}"), "is not reached")):
            result = pdctl("check", "--kv", *operands)
            self.assertEqual((result.returncode, result.stdout), (1, ""), result)
            self.assertIn(words, result.stderr)
        decode.child.send_signal(signal.SIGSTOP)
        result = pdctl("check", "--kv", prefill.address, decode.address, "--deadline", "1")
        decode.child.send_signal(signal.SIGCONT)
        self.assertEqual(result.returncode, 1, result)
        self.whole_pools(prefill, decode)
        self.assertEqual(pdctl("check", prefill.address, decode.address).returncode, 2)


if __name__ == "__main__":
    test_worker.MODEL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
