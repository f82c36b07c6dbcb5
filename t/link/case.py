"""What a test of the link starts from: a worker with doubles of the other rooms."""

import tempfile
import unittest

from rig import FakeWorker, Frontend, Stream, stats


class Case(unittest.TestCase):
    options = {}

    def setUp(self):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="pd-link-")
        self.worker = FakeWorker(self.log, **self.options)
        self.streams = []

    def tearDown(self):
        for stream in self.streams:
            stream.close()
        try:
            if self.worker.child.poll() is None:
                self.assertEqual(self.worker.quit(), 0, "the worker ends in order")
            self.assertTrue(self.worker.seen("bye"), "the worker came to its end")
        finally:
            self.worker.kill()
            text = "".join(self.worker.logged(""))
            self.log.close()
        self.assertNotIn("Sanitizer", text)
        self.assertNotIn("runtime error", text)

    def frontend(self, **keywords):
        stream = Frontend(self.worker.address, **keywords)
        self.streams.append(stream)
        if keywords.get("hello", True) is True:
            stream.wait_hello()
        return stream

    def raw(self, method, first=None):
        stream = Stream(self.worker.address, method, None)
        self.streams.append(stream)
        if first is not None:
            stream.put(first)
        return stream

    def counter(self, name):
        return stats(self.worker.address)[0][name]

    def assert_alive(self):
        """The worker serves a newcomer, whatever has been done to it."""
        newcomer = self.frontend()
        newcomer.submit(1, text=b"alive", max_tokens=2)
        self.assertEqual(newcomer.finished(1)[0], b"ab")
