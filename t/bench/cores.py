"""Gives every worker of a cluster of two a core of its own."""

import glob
import os


def pin():
    """Does nothing where there is one worker, which may use them all."""
    cores = sorted(os.sched_getaffinity(0))
    paths = [path for role in ("prefill", "decode", "mixed")
             for path in sorted(glob.glob(f"{os.environ['PD_DIR']}/{role}-*.pid"))]
    if len(paths) < 2:
        return
    for path, core in zip(paths, (cores[0], cores[-1])):
        with open(path, encoding="ascii") as file:
            pid = int(file.read())
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})
