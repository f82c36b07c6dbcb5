"""What the cores can do, and who has them."""

import glob
import os


def pin():
    """Gives every worker of a cluster of two a core of its own. One worker may use them all."""
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


def multiply_bf16():
    """Whether workers can be asked for `--matmul-precision bf16`."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        return "amx_bf16" in file.read()
