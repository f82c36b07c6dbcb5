"""What can happen to a cluster. Each fault is a method: it does the harm, waits until it is noticed, heals it, waits
until it is healed, and gives what was measured, in seconds:

    detected    from the harm until somebody said so
    back        from the worker's readiness, or the healing, until nginx had it again
    in use      from the worker's readiness until it had work

Which victims a fault has is in FAULTS. A fault draws what it needs from the run's random numbers, so that a seed tells
all."""

import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
sys.path.insert(0, HERE)
from cluster import DIR, URL, metric, metrics, pid, stats, workers  # noqa: E402
from faults import Log, Worker, alive  # noqa: E402
from load import LONG, whole  # noqa: E402

PDCTL = os.path.join(os.environ["PD_BUILD"], "bin/pdctl")
IDLE = 450                  # connections: more than worker_rlimit_nofile lets all nginx processes have
CROWD = 9                   # prompts of 450 tokens or so: more than the pools of three workers hold
NGINX = "10.99.0.1"         # on the bridge of t/cluster --networks
NETWORK = os.environ.get("PD_CHAOS_NETWORK")
MODES = ("both", "to", "from")


def victims(kind):
    """The names that a fault of this kind can be done to."""
    names = workers()
    if kind == "worker":
        return names
    if kind == "some workers":
        return names[::2]
    if kind == "port":
        return names if NETWORK == "one" else []
    if kind == "link":
        readers = [name for name in names if name.startswith("decode")]
        sources = [name for name in names if name.startswith("prefill")]
        pairs = [("nginx", name) for name in names] + [(d, p) for d in readers for p in sources]
        return [f"{a} {mode} {b}" for a, b in pairs for mode in MODES] if NETWORK == "each" else []
    if kind == "disk":
        return ["logs"] if os.environ.get("PD_CHAOS_DISK") else []
    return ["nginx"] if kind == "nginx" else ["all"]


FAULTS = {"kill": "worker", "hang": "worker", "drain": "worker", "pause": "some workers", "starve_worker": "some workers",
          "roll": "all", "crowd": "all", "cut": "port", "cut_to": "port", "cut_from": "port", "sever": "link",
          "reload": "nginx", "reload_often": "nginx", "upgrade": "nginx", "kill_nginx": "nginx", "starve_nginx": "nginx",
          "fill_disk": "disk"}


class Harm:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.workers = {name: Worker(name) for name in workers()}
        self.killed = []         # when nginx processes were killed: their clients lose their connections
        self.moves = {}          # what zones before this one have counted
        self.asked = 0           # requests made here
        self.differ = []         # answers to them that are not what they have to be
        if NETWORK == "one":
            # no connection shall be given the port of a worker that is down
            with open("/proc/sys/net/ipv4/ip_local_reserved_ports", "w") as file:
                file.write(",".join(str(worker.port) for worker in self.workers.values()))

    def do(self, fault, victim):
        return getattr(self, fault)(self.workers.get(victim, victim))

    def end(self):
        """What t/cluster did not start, it will not stop."""
        for worker in self.workers.values():
            worker.end()

    # ---- workers ----------------------------------------------------------------------------------

    @staticmethod
    def lost(worker, log):
        return log.wait(f'lost worker "{worker.address}"', 30)

    @staticmethod
    def attached(worker, log):
        return log.wait(f'attached to worker "{worker.address}"', 60)

    def restarted(self, worker):
        log = Log()
        worker.start()
        worker.wait_ready()
        ready = time.monotonic()
        back = self.attached(worker, log)
        if worker.name.startswith("mixed"):
            return {"back": back}  # it has work only where no pair has room
        while not in_use(worker):
            assert time.monotonic() < ready + 60, f"{worker.name} gets no work"
            time.sleep(0.02)
        return {"back": back, "in use": time.monotonic() - ready}

    def kill(self, worker):
        """SIGKILL, and at once another one on the same port."""
        log = Log()
        worker.kill()
        return dict(detected=self.lost(worker, log), **self.restarted(worker))

    def drain(self, worker):
        """By pdctl or by SIGTERM, which are the same; sometimes there is too little time, and answers have to move."""
        log = Log()
        if self.rng.random() < 0.5:
            worker.signal(signal.SIGTERM)
        else:
            self.pdctl(worker, "--no-wait", "--deadline", self.rng.choice(["0.1", "30"]))
        detected = log.wait(f'worker "{worker.address}" drains', 30)
        worker.gone()
        return dict(detected=detected, **self.restarted(worker))

    def roll(self, _):
        """All workers, one after the other, as `pdctl drain --help` says."""
        start = time.monotonic()
        names = sorted(self.workers)
        self.rng.shuffle(names)
        for name in names:
            worker = self.workers[name]
            log = Log()
            self.pdctl(worker, "--deadline", self.rng.choice(["0.2", "30"]))
            worker.gone()
            worker.start()
            worker.wait_ready()
            self.attached(worker, log)
        return {"all restarted": time.monotonic() - start}

    @staticmethod
    def pdctl(worker, *arguments):
        done = subprocess.run([PDCTL, "drain", worker.address, *arguments], capture_output=True, text=True, timeout=90,
                              check=False)
        assert done.returncode == 0, done.stderr

    def hang(self, worker):
        log = Log()
        worker.stop()
        try:
            detected = self.lost(worker, log)
        finally:
            log = Log()
            worker.go_on()
        return {"detected": detected, "back": self.attached(worker, log)}

    def pause(self, worker):
        """Too short to be anybody's fault."""
        worker.stop()
        time.sleep(1)
        worker.go_on()
        return {}

    def starve_worker(self, worker):
        """It may open no more files: what it has goes on."""
        starve(pid(worker.name), 2)
        return {}

    def crowd(self, _):
        """More prompts at once than the pools have room for, none of them known; then the same in peace."""
        salt = self.rng.randrange(1 << 30)
        asked = [("/completions", {"prompt": f"{salt + n}: {LONG}", "temperature": 0, "max_tokens": 8}) for n in range(CROWD)]
        answers = [None] * len(asked)

        def ask(n):
            try:
                answers[n] = whole(*asked[n])
            except Exception as fault:  # told below: it is not the answer
                answers[n] = fault

        start = time.monotonic()
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - start
        for n, question in enumerate(asked):
            quiet = whole(*question)
            if answers[n] != quiet:
                self.differ.append(f"crowd {n}: {answers[n]!r} is not {quiet!r}")
        self.asked += 2 * len(asked)
        return {"all answered": seconds}

    # ---- the network ------------------------------------------------------------------------------

    def cut(self, worker, directions=("dport", "sport")):
        """What is sent to the worker's port, by nginx or by a decode worker, and from it, does not arrive."""
        rules = [["pref", "10", direction, str(worker.port), "ipproto", "tcp", "blackhole"] for direction in directions]
        log = Log()
        for rule in rules:
            subprocess.run(["ip", "rule", "add", *rule], check=True)
        try:
            detected = self.lost(worker, log)
        finally:
            log = Log()
            for rule in rules:
                subprocess.run(["ip", "rule", "del", *rule], check=True)
        return {"detected": detected, "back": self.attached(worker, log)}

    def cut_to(self, worker):
        return self.cut(worker, ("dport",))

    def cut_from(self, worker):
        return self.cut(worker, ("sport",))

    def sever(self, what):
        """One pair of hosts: what the one sends does not reach the other, or neither does. The receiver drops it."""
        a, mode, b = what.split()
        drops = {"to": [(a, b)], "from": [(b, a)], "both": [(a, b), (b, a)]}[mode]
        between = a != "nginx"
        if between:
            self.wait_linked(a, b)
        log = Log(f"{a}.log" if between else "error.log")
        for sender, receiver in drops:
            self.drop("add", sender, receiver)
        try:
            detected = log.wait(f"link to {b} is down", 30) if between else self.lost(self.workers[b], log)
        finally:
            log = Log(log.path.rpartition("/")[2])
            for sender, receiver in drops:
                self.drop("del", sender, receiver)
        back = log.wait(f"link to {b} is up", 60) if between else self.attached(self.workers[b], log)
        return {"detected": detected, "back": back}

    def wait_linked(self, reader, source, patience=120):
        """Until the load has made the one read from the other: a link is opened by the first answer that needs it."""
        deadline = time.monotonic() + patience
        while not any(link.up and link.peer == source for link in stats(reader).load.links):
            assert time.monotonic() < deadline, f"{reader} has no link to {source}"
            time.sleep(0.05)

    def drop(self, verb, sender, receiver):
        inside = [] if receiver == "nginx" else ["-n", receiver]
        source = NGINX if sender == "nginx" else self.workers[sender].host
        subprocess.run(["ip", *inside, "rule", verb, "pref", "10", "from", source, "blackhole"], check=True)

    # ---- nginx ------------------------------------------------------------------------------------

    @staticmethod
    def children():
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
        return sorted(found)

    @staticmethod
    def reload(_):
        log = Log()
        os.kill(pid("nginx"), signal.SIGHUP)
        return {"back": log.wait("start worker process", 30)}

    def reload_often(self, _):
        """Every 3 seconds, so that processes of several generations end their answers side by side."""
        start = time.monotonic()
        for _ in range(10):
            self.reload("nginx")
            time.sleep(3)
        return {"all done": time.monotonic() - start}

    def upgrade(self, _):
        """A new master beside the old one (SIGUSR2), which then leaves."""
        old, before, log = pid("nginx"), metrics(), Log()
        os.kill(old, signal.SIGUSR2)
        back = log.wait("attached to worker", 30)
        deadline = time.monotonic() + 30
        while pid("nginx") == old or not self.children():
            assert time.monotonic() < deadline, "there is no new master"
            time.sleep(0.02)
        for key, value in before.items():
            if key[0].startswith("pd_failovers"):
                self.moves[key] = self.moves.get(key, 0) + value
        os.kill(old, signal.SIGQUIT)
        wait_gone(old)
        return {"back": back}

    def kill_nginx(self, _):
        """One process: its clients lose their connections, and that is all."""
        log = Log()
        victim = self.rng.choice(self.children())
        self.killed.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)
        return {"detected": log.wait(f"forgot the requests of process {victim}", 30)}

    def starve_nginx(self, _):
        """Idle connections take all files that its processes may open: others wait outside, what is there goes on."""
        log = Log()
        idle = [socket.create_connection((URL.hostname, URL.port), timeout=10) for _ in range(IDLE)]
        try:
            detected = log.wait("Too many open files", 30)
            time.sleep(1)
        finally:
            for one in idle:
                one.close()
        return {"detected": detected}

    @staticmethod
    def fill_disk(_):
        """Nothing can be logged for a while."""
        filler = f"{DIR}/filler"
        try:
            with open(filler, "wb", buffering=0) as file:
                while True:
                    try:
                        file.write(bytes(1 << 16))
                    except OSError:
                        break
            time.sleep(2)
        finally:
            os.unlink(filler)
        return {}


def in_use(worker):
    """nginx holds it for well and has given it something to do."""
    if metric("pd_cluster_worker_state", worker=worker.address, state="well") != 1:
        return False
    return any(counter.name == "requests" and counter.value > 0 for counter in stats(worker.name).counters)


def starve(victim, seconds):
    """The process may open no file beyond those that it has."""
    have = resource.prlimit(victim, resource.RLIMIT_NOFILE)
    files = [int(name) for name in os.listdir(f"/proc/{victim}/fd")]
    resource.prlimit(victim, resource.RLIMIT_NOFILE, (max(files) + 1, have[1]))
    time.sleep(seconds)
    if alive(victim):
        resource.prlimit(victim, resource.RLIMIT_NOFILE, have)


def wait_gone(process, patience=60):
    deadline = time.monotonic() + patience
    while alive(process):
        assert time.monotonic() < deadline, f"process {process} does not end"
        time.sleep(0.02)
