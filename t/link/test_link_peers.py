"""The link as a client: KV links that it opens, dispatchers that it registers with, TLS."""

import concurrent.futures
import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import grpc

from case import Case
from rig import BUILD, PATIENCE, FakeWorker, Process, pd, stats, wait_for

CODE = grpc.StatusCode


class KvLinks(Case):
    def test_a_reader_comes(self):
        stream = self.raw("/pd.v1.Kv/Link", b"abc")
        line = self.worker.wait_line("reader_up")
        self.assertIn("peer=ipv4:127.0.0.1", line)
        wait_for("the echo", lambda: stream.received == [b"cba"])
        stream.put(b"")
        wait_for("an empty message", lambda: stream.received == [b"cba", b""])
        self.assertEqual(self.counter("kv_links_served_now"), 1)
        stream.close()
        self.worker.wait_line("link_down id=1000")
        self.assertEqual(self.counter("kv_links_served_now"), 0)

    def test_kvx_closes_a_reader(self):
        stream = self.raw("/pd.v1.Kv/Link", b"abc")
        wait_for("the echo", lambda: stream.received)
        self.worker.tell("kv-close 1000")
        self.assertEqual(stream.wait_status()[0], CODE.UNAVAILABLE)
        self.assertFalse(self.worker.seen("link_down"), "what kvx closed is not reported")

    def test_a_message_for_which_there_is_no_memory(self):
        """It is lost, and so is all that depends on its order: every KV link ends, on both sides."""
        port, _, _ = self.serve(self.echo)
        self.worker.tell(f"kv-open 5 127.0.0.1:{port}")
        self.worker.wait_line("link_up id=5")
        stream = self.raw("/pd.v1.Kv/Link", b"abc")
        wait_for("the echo", lambda: stream.received)
        frontend = self.frontend()
        self.worker.tell("kv-lose 1000 hello")
        code, why = stream.wait_status()
        self.assertEqual(code, CODE.UNAVAILABLE)
        self.assertIn("out of memory", why)
        for number in (5, 1000):
            self.assertIn("out of memory", self.worker.wait_line(f"link_down id={number} "))
        self.assertEqual(stream.received, [b"cba"])
        self.raw("/pd.v1.Kv/Link", b"abc")
        self.worker.wait_line("reader_up id=1001")
        frontend.submit(1, text=b"x")
        frontend.finished(1)

    def serve(self, behaviour):
        """A Kv service of grpcio; gives its port and what it has received."""
        received = []

        def link(requests, context):
            yield from behaviour(requests, context, received)

        handler = grpc.method_handlers_generic_handler("pd.v1.Kv", {
            "Link": grpc.stream_stream_rpc_method_handler(link)})
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)
        return port, received, server

    @staticmethod
    def echo(requests, context, received):
        context.send_initial_metadata(())
        for request in requests:
            received.append(request)
            if request == b"end":
                return
            yield request.upper()

    def test_kvx_dials(self):
        port, received, _ = self.serve(self.echo)
        self.worker.tell(f"kv-open 5 127.0.0.1:{port}")
        self.worker.wait_line("link_up id=5")
        self.worker.tell("kv-send 5 hello")
        self.worker.wait_line("receive id=5 length=5")
        self.assertEqual(received[0], b"hello")
        # The fake sends everything back, so the echo never ends by itself.
        self.worker.tell("kv-close 5")
        wait_for("the end", lambda: self.counter("kv_links_opened_now") == 0)
        self.assertFalse(self.worker.seen("link_down"))

    def test_the_source_ends_the_link(self):
        port, _, _ = self.serve(self.echo)
        self.worker.tell(f"kv-open 5 127.0.0.1:{port}")
        self.worker.wait_line("link_up id=5")
        self.worker.tell("kv-send 5 end")
        self.worker.wait_line("link_down id=5")

    def test_the_source_dies(self):
        port, _, server = self.serve(self.echo)
        self.worker.tell(f"kv-open 5 127.0.0.1:{port}")
        self.worker.wait_line("link_up id=5")
        server.stop(None)
        self.worker.wait_line("link_down id=5")

    def test_nobody_listens(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.worker.tell(f"kv-open 6 127.0.0.1:{free.getsockname()[1]}")
            self.worker.wait_line("link_down id=6")
        self.assertFalse(self.worker.seen("link_up"))

    def test_somebody_listens_who_never_answers(self):
        with socket.create_server(("127.0.0.1", 0)) as mute:
            self.worker.tell(f"kv-open 7 127.0.0.1:{mute.getsockname()[1]}")
            line = self.worker.wait_line("link_down id=7")
        self.assertIn("why=", line)

    def test_addresses_that_are_none(self):
        for number, address in enumerate(("unix:/tmp/x", "xds:///a", "dns:///127.0.0.1:1", "x", ":1",
                                          "127.0.0.1:99999"), 10):
            self.worker.tell(f"kv-open {number} {address}")
            self.worker.wait_line(f"link_down id={number}")

    def test_a_source_that_does_not_read(self):
        def deaf(requests, context, received):
            context.send_initial_metadata(())
            while context.is_active():
                time.sleep(0.05)
            yield from ()
        port, _, _ = self.serve(deaf)
        self.worker.tell(f"kv-open 8 127.0.0.1:{port}")
        self.worker.wait_line("link_up id=8")
        self.worker.tell("kv-flood 8 400")
        self.assertIn("does not read", self.worker.wait_line("link_down id=8"))


class Port(Case):
    def test_two_daemons_do_not_share_a_port(self):
        second = Process([os.path.join(BUILD, "t/link/fake_worker"), f"port={self.worker.port}"])
        self.addCleanup(second.kill)
        self.assertEqual(second.wait_exit(), 1)
        self.assertIn("is in use", second.wait_line("error"))
        self.assert_alive()


class Registration(unittest.TestCase):
    """A dispatcher of grpcio that answers as it is told."""

    def setUp(self):
        self.requests = []
        self.lease_ms = 3000
        self.refuse = False
        handler = grpc.method_handlers_generic_handler("pd.v1.Dispatcher", {
            "Register": grpc.unary_unary_rpc_method_handler(self.register)})
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((handler,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.log = tempfile.NamedTemporaryFile("w+", prefix="pd-link-")
        self.worker = FakeWorker(self.log, dispatcher=f"127.0.0.1:{self.port}")

    def tearDown(self):
        self.worker.kill()
        self.server.stop(None)
        self.log.close()

    def register(self, data, context):
        request = pd.RegisterRequest.FromString(data)
        self.requests.append((time.monotonic(), request))
        if self.refuse:
            context.abort(CODE.PERMISSION_DENIED, "wrong token")
        return pd.RegisterReply(lease_ms=self.lease_ms).SerializeToString()

    def test_renewal_and_goodbye(self):
        wait_for("two renewals", lambda: len(self.requests) >= 3)
        first = self.requests[0][1]
        self.assertEqual((first.token, first.address, first.leaving), ("sesame", "127.0.0.1:7", False))
        self.assertEqual((first.hello.instance, first.hello.boot, first.hello.model),
                         ("fake", 77, "m"))
        # At a third of the lease, give or take a busy machine, and before it ends.
        self.assertGreater(self.requests[1][0] - self.requests[0][0], 0.8)
        self.assertLess(self.requests[1][0] - self.requests[0][0], 2.9)
        self.worker.tell("drain 100")
        wait_for("goodbye", lambda: [r for _, r in self.requests if r.leaving])
        count = len(self.requests)
        self.assertEqual(self.worker.quit(), 0)
        self.assertEqual(len(self.requests), count, "goodbye is said once and nothing after it")
        self.assertEqual(len(self.worker.logged("registered for 3000 ms")), 1)

    def test_quit_says_goodbye_too(self):
        wait_for("a registration", lambda: self.worker.logged("registered for"))
        self.assertEqual(self.worker.quit(), 0)
        self.assertTrue(self.requests[-1][1].leaving)

    def test_refusal_is_told_once_and_tried_again(self):
        self.refuse = True
        wait_for("a registration", lambda: len(self.requests) >= 1)
        wait_for("a second try", lambda: len(self.requests) >= 2 + 1)
        wait_for("a warning", lambda: self.worker.logged("wrong token", "trying again"))
        self.refuse = False
        wait_for("success", lambda: stats(self.worker.address)[0]["registrations"] >= 1)
        self.assertEqual(self.worker.quit(), 0)

    def test_a_dispatcher_that_is_gone_does_not_hold_up_the_end(self):
        wait_for("a registration", lambda: self.worker.logged("registered for"))
        self.server.stop(None).wait()
        self.assertEqual(self.worker.quit(), 0)
        self.assertTrue(self.worker.seen("bye"))


class Tls(unittest.TestCase):
    """Keys made on the spot; TLS is mutual where an authority is given."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="pd-tls-")

        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], check=True, cwd=cls.folder,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out",
                "ca.pem", "-days", "2", "-subj", "/CN=test authority")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "w.key", "-out", "w.csr", "-subj",
                "/CN=worker")
        with open(os.path.join(cls.folder, "san"), "w", encoding="ascii") as file:
            file.write("subjectAltName=IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", "w.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", "w.pem", "-days", "2", "-extfile", "san")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def test_mutual_tls(self):
        with tempfile.NamedTemporaryFile("w+") as log:
            worker = FakeWorker(log, cert=self.path("w.pem"), key=self.path("w.key"),
                                ca=self.path("ca.pem"))
            self.addCleanup(worker.kill)
            good = grpc.ssl_channel_credentials(self.read("ca.pem"), self.read("w.key"),
                                                self.read("w.pem"))
            self.assertEqual(stats(worker.address, credentials=good)[1].hello.instance, "fake")
            nameless = grpc.ssl_channel_credentials(self.read("ca.pem"))
            for credentials in (nameless, None):
                with self.assertRaises(grpc.RpcError):
                    stats(worker.address, credentials=credentials)
            # The worker dials itself: its KV client shows the same certificate.
            worker.tell(f"kv-open 1 {worker.address}")
            worker.wait_line("link_up id=1")
            worker.tell("kv-close 1")
            self.assertEqual(worker.quit(), 0)

    def test_pdctl_shows_the_keys_that_are_asked_of_frontends(self):
        with tempfile.NamedTemporaryFile("w+") as log:
            worker = FakeWorker(log, cert=self.path("w.pem"), key=self.path("w.key"),
                                ca=self.path("ca.pem"))
            self.addCleanup(worker.kill)
            known = ["--tls-ca", self.path("ca.pem")]
            keys = ["--tls-cert", self.path("w.pem"), "--tls-key", self.path("w.key")]
            for flags, status in ((known + keys, 0), (known, 1), ([], 1)):
                result = subprocess.run([os.path.join(BUILD, "bin/pdctl"), "status", worker.address, *flags],
                                        capture_output=True, text=True, timeout=PATIENCE, check=False)
                self.assertEqual(result.returncode, status, result)
                self.assertEqual(result.stdout.startswith("fake: "), status == 0, result)
            self.assertEqual(worker.quit(), 0)

    def test_files_that_are_no_keys(self):
        for files in ({"cert": "/nowhere", "key": self.path("w.key")},
                      {"cert": self.path("san"), "key": self.path("w.key")}):
            worker = Process([os.path.join(BUILD, "t/link/fake_worker")] +
                             [f"{key}={value}" for key, value in files.items()])
            self.addCleanup(worker.kill)
            self.assertEqual(worker.wait_exit(), 1)
            self.assertIn(files["cert"], worker.wait_line("error"))
