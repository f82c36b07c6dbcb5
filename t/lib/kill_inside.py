"""Kills a process at the moment when it enters a function, or soon after.

    kill_inside.py PID MODULE FUNCTION[+CHANGES] [N]

CHANGES of what the processes share are what it still gets to make, however
many instructions a build needs for them. The script says "armed" when the trap is set, and "killed" when the process has run into
it (for the N-th time) and was ended by SIGKILL there. Exit status 77: not
possible on this machine.
"""

import ctypes
import os
import platform
import signal
import subprocess
import sys

PEEK, POKE, CONT, STEP, GETREGS, SETREGS, ATTACH = 1, 4, 7, 9, 12, 13, 16
RIP = 16    # in user_regs_struct, counted in words

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p,
                        ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, pid, address=0, data=0):
    ctypes.set_errno(0)
    result = libc.ptrace(request, pid, address, data)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), "ptrace")
    return result & (1 << 64) - 1


def address_of(pid, module, function):
    """Where the function lies in the process."""
    for line in subprocess.run(["nm", module], capture_output=True, text=True,
                               check=True).stdout.splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == function:
            offset = int(words[0], 16)
            break
    else:
        sys.exit(f"no function {function} in {module}, or it is inlined")
    with open(f"/proc/{pid}/maps") as maps:
        base = min(int(line.split("-")[0], 16) for line in maps
                   if line.rstrip().endswith(os.path.realpath(module)))
    return base + offset


def wait_for_trap(pid):
    while True:
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            sys.exit("the process has ended by itself")
        if os.WSTOPSIG(status) == signal.SIGTRAP:
            return
        ptrace(CONT, pid, 0, os.WSTOPSIG(status))


def pass_by(pid, address, original, trap):
    """Lets it go on through the function's first instruction."""
    registers = (ctypes.c_ulonglong * 64)()
    ptrace(GETREGS, pid, 0, ctypes.addressof(registers))
    registers[RIP] = address
    ptrace(SETREGS, pid, 0, ctypes.addressof(registers))
    ptrace(POKE, pid, address, original)
    ptrace(STEP, pid)
    os.waitpid(pid, 0)
    ptrace(POKE, pid, address, trap)


def shared(pid):
    """The ranges of memory that it can write and others see."""
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            words = line.split()
            if words[1].startswith("rw-s"):
                yield tuple(int(end, 16) for end in words[0].split("-"))


def let_it_change(pid, changes):
    """Lets it go on, step by step, until it has changed what is shared."""
    ranges = list(shared(pid))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        def look():
            seen = []
            for start, end in ranges:
                memory.seek(start)
                seen.append(memory.read(end - start))
            return seen

        before = look()
        for _ in range(10000):
            ptrace(STEP, pid)
            os.waitpid(pid, 0)
            after = look()
            changes -= after != before
            if not changes:
                return
            before = after
    sys.exit("it changes nothing that is shared")


def main():
    pid, module = int(sys.argv[1]), sys.argv[2]
    function, _, changes = sys.argv[3].partition("+")
    times = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    if platform.machine() != "x86_64":
        sys.exit(77)
    address = address_of(pid, module, function)
    try:
        ptrace(ATTACH, pid)
    except OSError:
        sys.exit(77)
    os.waitpid(pid, 0)
    original = ptrace(PEEK, pid, address)
    trap = original & ~0xff | 0xcc    # int3
    ptrace(POKE, pid, address, trap)
    ptrace(CONT, pid)
    print("armed", flush=True)
    for time in range(times):
        wait_for_trap(pid)
        if time + 1 < times:
            pass_by(pid, address, original, trap)
            ptrace(CONT, pid)
    if changes:
        pass_by(pid, address, original, trap)
        let_it_change(pid, int(changes))
    os.kill(pid, signal.SIGKILL)
    print("killed", flush=True)


main()
