"""Real workers for the hostile tests: whatever a frontend, a decode worker or a prefill worker does, the
worker lives, others are served, and every KV block comes back.

A test file is run as: test_hostile_NAME.py MODEL [unittest's arguments]
"""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
                                "link"))

from pair import SANITIZED, STEP, Worker  # noqa: E402  (t/link)
from rig import Frontend, stats, wait_for  # noqa: E402

MODEL = ""
# A sanitized build computes a hundred times slower: the same attacks, fewer of them.
FEW = 4 if SANITIZED else 1
LONG = b"the quick brown fox jumps over the lazy dog; "


def free_blocks(worker):
    return stats(worker.address)[1].load.kv_free


class Case(unittest.TestCase):
    """Workers live as long as their class; after each test each of them must be whole."""

    workers = {}
    step = STEP

    def setUp(self):
        # The last of the clean-ups: what a failed test still holds is not taken for a leak.
        self.addCleanup(self.check)

    def check(self):
        """What must be true after each test."""

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
        """It lives, and all of its blocks are back."""
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


def main():
    global MODEL
    MODEL = os.path.abspath(sys.argv.pop(1))
    unittest.main()
