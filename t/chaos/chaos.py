#!/usr/bin/env python3
"""Faults of every kind, one after the other, under a running load; every answer is compared with what it has to be.

    chaos.py --seed N --seconds S [--faults NAME,NAME] [--clients N]

runs in a cluster (t/cluster) of several workers of each role and several nginx processes, which t/chaos/run starts in a
network of their own, so that parts of it can be cut off. The seed says which faults come in which order, and what the
clients ask. A fault comes when all requests that were there at the last one have ended: who is present at two deaths
is not tried again, and that is no error.

Prints a line for each fault and the sum of the run; fails if a client saw an error although another pair was there, if
an answer was not the one of a quiet cluster, or if a block or a counter has not come back.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
sys.path.insert(0, HERE)
from cluster import access_log, pid, stats, wait_at_rest, workers  # noqa: E402
from faults import Log, Worker  # noqa: E402
from load import Load  # noqa: E402


class Chaos:
    """The cluster as the faults see it. A fault returns what was measured: detected, back, in seconds."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.workers = {name: Worker(name) for name in workers()}
        self.cut = []            # when nginx processes were killed: their clients lose their connections

    def plan(self, only):
        """Every fault of every victim, in the order of the seed."""
        plan = [(fault, name) for name in self.workers for fault in ("kill", "hang", "drain")]
        plan += [("pause", name) for name in self.rng.sample(sorted(self.workers), 2)]
        if os.environ.get("PD_CHAOS_NETWORK"):
            plan += [(fault, name) for name in self.workers for fault in ("cut", "cut_to", "cut_from")]
        plan += [(fault, "nginx") for fault in ("reload", "reload", "kill_nginx", "kill_nginx")]
        plan = [step for step in plan if not only or step[0] in only]
        self.rng.shuffle(plan)
        return plan

    # ---- workers ----------------------------------------------------------------------------------

    def lost(self, worker, log):
        return log.wait(f'lost worker "127.0.0.1:{worker.port}"', 30)

    def back(self, worker, log):
        return log.wait(f'attached to worker "127.0.0.1:{worker.port}"', 60)

    def kill(self, worker):
        """SIGKILL, and at once another one on the same port."""
        log = Log()
        worker.kill()
        detected = self.lost(worker, log)
        log = Log()
        worker.start()
        worker.wait_listening()
        return {"detected": detected, "back": self.back(worker, log)}

    def drain(self, worker):
        log = Log()
        worker.signal(signal.SIGTERM)
        detected = log.wait(f'worker "127.0.0.1:{worker.port}" drains', 30)
        worker.gone()
        log = Log()
        worker.start()
        worker.wait_listening()
        return {"detected": detected, "back": self.back(worker, log)}

    def hang(self, worker):
        log = Log()
        worker.stop()
        try:
            detected = self.lost(worker, log)
        finally:
            log = Log()
            worker.go_on()
        return {"detected": detected, "back": self.back(worker, log)}

    def pause(self, worker):
        """Too short to be anybody's fault."""
        worker.stop()
        time.sleep(1)
        worker.go_on()
        return {}

    # ---- the network ------------------------------------------------------------------------------

    def rules(self, verb, worker, directions):
        for direction in directions:
            subprocess.run(["ip", "rule", verb, "pref", "10", direction, str(worker.port), "ipproto", "tcp",
                            "blackhole"], check=True)

    def partition(self, worker, directions):
        """What is sent to the worker's port, by nginx or by a decode worker, and from it, does not arrive."""
        log = Log()
        self.rules("add", worker, directions)
        try:
            detected = self.lost(worker, log)
        finally:
            log = Log()
            self.rules("del", worker, directions)
        return {"detected": detected, "back": self.back(worker, log)}

    def cut_off(self, worker):
        return self.partition(worker, ("dport", "sport"))

    def cut_to(self, worker):
        return self.partition(worker, ("dport",))

    def cut_from(self, worker):
        return self.partition(worker, ("sport",))

    # ---- nginx ------------------------------------------------------------------------------------

    def children(self):
        """nginx's processes that serve, and do not leave."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    title = file.read()
            except OSError:
                continue
            if parent == pid("nginx") and title.startswith(b"nginx: worker process") and b"shutting" not in title:
                found.append(int(entry))
        return found

    def reload(self, _):
        log = Log()
        os.kill(pid("nginx"), signal.SIGHUP)
        return {"back": log.wait("start worker process", 30)}

    def kill_nginx(self, _):
        """One process: its clients lose their connections, and that is all."""
        log = Log()
        victim = self.rng.choice(sorted(self.children()))
        self.cut.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)
        return {"detected": log.wait(f"forgot the requests of process {victim}", 30)}

    def run(self, fault, victim):
        do = {"cut": self.cut_off}.get(fault) or getattr(self, fault)
        return do(self.workers.get(victim))

    def end(self):
        """What t/cluster did not start, it will not stop."""
        for worker in self.workers.values():
            worker.end()


def judge(chaos, load, resting):
    """The sum of the run; whether it is as it has to be."""
    answers = load.answers
    count = lambda outcome: sum(answer.outcome == outcome for answer in answers)  # noqa: E731
    killed = [a for a in answers if a.outcome == "cut" and any(a.began <= t <= a.ended for t in chaos.cut)]
    errors = [a for a in answers if a.outcome in ("error", "cut") and a not in killed]
    different = [a for a in answers if a.outcome == "different"]
    leaked = counters = 0
    for name in chaos.workers:
        seen = stats(name)
        leaked += seen.hello.kv_blocks - seen.load.kv_free
        counters += seen.load.running + seen.load.waiting + seen.load.kv_reserved
    for answer in errors + different:
        print(f"  {answer.kind}, question {answer.question}: {answer.outcome}: {answer.why}")
    print(f"requests {len(answers)}: the same {count('same')}, left by their clients {count('left')}, cut with a killed "
          f"nginx process {len(killed)}")
    moved = [int(line["failovers"]) for line in access_log() if line.get("failovers", "-") != "-"]
    print(f"answers that went on elsewhere {sum(map(bool, moved))}, at most {max(moved, default=0)} times")
    print(f"client-visible errors {len(errors)}, answers that differ {len(different)}, blocks leaked {leaked}, "
          f"workers' counters off {counters}, longest pause {max((a.pause for a in answers), default=0):.2f} s")
    return resting and len(answers) > 0 and not (errors or different or leaked or counters)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--faults", default="")
    options = parser.parse_args()

    chaos = Chaos(options.seed)
    load = Load(options.seed, options.clients)
    plan = chaos.plan(set(filter(None, options.faults.split(","))))
    deadline = time.monotonic() + options.seconds
    done = 0
    try:
        while time.monotonic() < deadline:
            fault, victim = plan[done % len(plan)]
            load.settle()
            time.sleep(chaos.rng.uniform(0.1, 0.8))
            seen = chaos.run(fault, victim)
            done += 1
            print(f"fault {done}: {fault} {victim}" + "".join(f", {k} after {v:.2f} s" for k, v in seen.items()), flush=True)
        resting = load.stop()
        if resting:
            wait_at_rest()
        print(f"seed {options.seed}, {done} faults")
        good = judge(chaos, load, resting)
    finally:
        load.stopping.set()
        chaos.end()
    print("ok" if good else "not ok")
    sys.exit(0 if good else 1)


main()
