"""Doing harm to the processes of a cluster, and healing it: shared by the end-to-end tests and t/chaos."""

import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import DIR, PATIENCE, address, pid, text_file  # noqa: E402


class Worker:
    """One pd-worker of the cluster, by its name. It can be started again as it was, on the port that it had."""

    def __init__(self, name):
        self.name = name
        with open(f"/proc/{pid(name)}/cmdline", "rb") as file:
            self.command = [word.decode() for word in file.read().split(b"\0")[:-1]]
        self.host, self.port = text_file(f"{name}.host"), int(text_file(f"{name}.port"))
        self.address = address(name)
        self.port_file = f"{DIR}/{name}.port"
        self.command[self.command.index("--port") + 1] = str(self.port)
        if self.host != "127.0.0.1":
            self.command = ["nsenter", f"--net=/run/netns/{name}"] + self.command
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
        os.unlink(self.port_file)
        with open(f"{DIR}/{self.name}.log", "ab") as log:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with open(f"{DIR}/{self.name}.pid", "w") as file:
            file.write(f"{self.child.pid}\n")

    def wait_ready(self, patience=PATIENCE):
        """It serves: it has written its port file."""
        deadline = time.monotonic() + patience
        while not os.path.exists(self.port_file):
            if time.monotonic() > deadline or self.child.poll() is not None:
                raise AssertionError(f"{self.name} does not become ready")
            time.sleep(0.01)

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
    """Whether the process runs. A zombie, which its parent has not asked for, does not; one whose other threads have
    not ended yet does: it has its ports still."""
    try:
        with open(f"/proc/{number}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[0] not in "ZX" or int(fields[17]) > 1
    except OSError:
        return False


class Log:
    """A log, nginx's own if none is named, read on from where it was."""

    def __init__(self, name="error.log"):
        self.path = f"{DIR}/{name}"
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
                raise AssertionError(f"{self.path} did not say \"{text}\" within {patience} s")
            time.sleep(0.01)
