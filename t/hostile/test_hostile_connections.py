"""Connections: too many, silent, and half open.
"""

import resource

from workers import Case, main  # first: it finds t/link
from peers import Reader, dial, is_cut
from rig import Frontend, stats


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

    def test_no_file_is_left_for_a_while(self):
        """accept itself fails: that must not make the worker deaf."""
        frontend = self.attach(self.worker)
        limits = resource.prlimit(self.worker.child.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.worker.child.pid, resource.RLIMIT_NOFILE, (1, limits[1]))
        self.crowd(20)
        frontend.submit(1, text=b"Once upon a time", max_tokens=2)
        frontend.finished(1)
        resource.prlimit(self.worker.child.pid, resource.RLIMIT_NOFILE, limits)
        self.ask(self.worker)
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
    main()
