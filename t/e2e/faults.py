"""Doing harm to the processes of a cluster, and healing it: shared by the end-to-end tests and t/chaos."""

import os
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DIR, PATIENCE, pid  # noqa: E402


class Worker:
    """One pd-worker of the cluster, by its name. It can be started again as it was, on the port that it had."""

    def __init__(self, name):
        self.name = name
        with open(f"/proc/{pid(name)}/cmdline", "rb") as file:
            self.command = [word.decode() for word in file.read().split(b"\0")[:-1]]
        with open(f"{DIR}/{name}.port") as file:
            self.port = int(file.read())
        self.command[self.command.index("--port") + 1] = str(self.port)
        self.child = None   # of this process, from the first restart on

    def signal(self, number):
        os.kill(pid(self.name), number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.gone()

    def stop(self):
        self.signal(signal.SIGSTOP)

    def go_on(self):
        self.signal(signal.SIGCONT)

    def gone(self, patience=PATIENCE):
        """Waits until the process has ended."""
        if self.child:
            self.child.wait(patience)
            return
        deadline = time.monotonic() + patience
        while alive(pid(self.name)):
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.name} does not end")
            time.sleep(0.01)

    def start(self):
        """Starts it again, as it was; returns at once."""
        with open(f"{DIR}/{self.name}.log", "ab") as log:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with open(f"{DIR}/{self.name}.pid", "w") as file:
            file.write(f"{self.child.pid}\n")

    def wait_listening(self, patience=PATIENCE):
        deadline = time.monotonic() + patience
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{self.name} does not listen")
                time.sleep(0.02)

    def end(self):
        """Ends what this process has started: t/cluster only knows the first ones."""
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGCONT)
            self.child.terminate()
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def alive(number):
    """Whether the process runs: a zombie, which its parent has not asked for, does not."""
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Log:
    """nginx's error log, read on from where it was."""

    def __init__(self):
        self.path = f"{DIR}/error.log"
        self.at = os.path.getsize(self.path)

    def wait(self, text, patience=PATIENCE):
        """Seconds until a line with the text has come; the log is read on behind what was there."""
        start = time.monotonic()
        while True:
            with open(self.path, errors="replace") as file:
                file.seek(self.at)
                if text in file.read():
                    return time.monotonic() - start
            if time.monotonic() - start > patience:
                raise AssertionError(f"nginx did not log \"{text}\" within {patience} s")
            time.sleep(0.01)
