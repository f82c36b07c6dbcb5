"""User instructions of a process that runs under callgrind."""

import glob
import re
import subprocess
import time

UNDER = ("valgrind", "-q", "--tool=callgrind", "--callgrind-out-file={dir}/callgrind.out.%p")


class Counter:
    """Instructions of one process since it was last asked."""

    def __init__(self, directory, pid):
        self.pattern, self.pid = f"{directory}/callgrind.out.{pid}.*", pid
        self.read()

    def read(self):
        before = set(glob.glob(self.pattern))
        subprocess.run(["callgrind_control", "-d", str(self.pid)], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for path in set(glob.glob(self.pattern)) - before:
                with open(path) as file:
                    total = re.search(r"^totals: (\d+)", file.read(), re.M)
                if total:
                    return int(total[1])
            time.sleep(0.05)
        raise RuntimeError("callgrind wrote no counts")

    def of(self, work):
        self.read()
        result = work()
        return self.read(), result
