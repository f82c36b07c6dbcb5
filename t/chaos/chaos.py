#!/usr/bin/env python3
"""Faults of every kind, one after the other, under a running load; every answer is compared with what it has to be.

    chaos.py [--seed N] [--seconds S | --each] [--faults NAME,NAME] [--clients N]

runs in a cluster (t/cluster) of several workers of each role and several nginx processes, which t/chaos/run starts in
namespaces of their own. The seed says which faults come in which order, to whom, and what the clients ask; --each takes
every kind of fault once, instead of all of them until the time is up. A fault comes when all requests that were there at
the last one have ended: who is present at two deaths is not tried again, and that is no error.

Prints a line for each fault and the sum of the run; fails if a client saw an error although another pair was there, if
an answer was not the one of a quiet cluster, or if a block or a counter has not come back.
"""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harm import FAULTS, Harm, victims  # noqa: E402
from load import Load  # noqa: E402
from cluster import metric, metrics, stats, wait_at_rest  # noqa: E402

GAUGES = ("pd_requests_running", "pd_requests_waiting", "pd_cluster_worker_jobs", "pd_cluster_worker_unseen_tokens",
          "pd_cluster_worker_held_blocks", "pd_zone_records_used")


def make_plan(rng, only, each):
    """Every fault of every victim, in the order of the seed; or one victim of each."""
    plan = []
    for fault, kind in FAULTS.items():
        names = victims(kind)
        if only and fault not in only or not names:
            continue
        plan += [(fault, name) for name in ([rng.choice(names)] if each else names)]
    rng.shuffle(plan)
    return plan


def nginx_counters_off(harm, load):
    """What nginx counts although nothing is there, and requests that do not add up."""
    deadline = time.monotonic() + 10
    while True:
        seen = metrics()
        wrong = [f"{name} {metric(name, seen)}" for name in GAUGES if metric(name, seen)]
        admitted, ended = metric("pd_requests_total", seen), metric("pd_requests_ended_total", seen)
        if admitted != ended:
            wrong.append(f"pd_requests_total {admitted}, ended {ended}")
        if not wrong or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    counted = admitted + metric("pd_requests_refused_total", seen)
    sent = load.sent() + harm.asked
    # a zone before this one has counted the rest; a killed process may not have counted what it was sent
    if not harm.moves and not harm.killed and not sent - load.may_be_lost() <= counted <= sent:
        wrong.append(f"{counted} requests counted, {sent} sent, of which {load.may_be_lost()} may have left unseen")
    return wrong


def count_moves(harm):
    """Answers that went on elsewhere, over all zones of the run: {kind: number}."""
    moves = dict(harm.moves)
    for key, value in metrics().items():
        moves[key] = moves.get(key, 0) + value
    kinds = {kind: metric("pd_failovers_total", moves, kind=kind) for kind in ("exact", "approximate", "restarted")}
    return dict(kinds, **{"gave up": metric("pd_failovers_gave_up_total", moves),
                          "paced": metric("pd_failovers_paced_total", moves)})


def worker_counters(harm):
    """Blocks that are not free, and other counters that are not zero."""
    leaked, off = 0, []
    for name in harm.workers:
        seen = stats(name)
        leaked += seen.hello.kv_blocks - seen.load.kv_free
        off += [f"{name}: {field} {getattr(seen.load, field)}" for field in ("running", "waiting", "kv_reserved")
                if getattr(seen.load, field)]
    return leaked, off


def judge(harm, load, resting):
    """The sum of the run; whether it is as it has to be."""
    answers = load.answers
    count = lambda outcome: sum(answer.outcome == outcome for answer in answers)  # noqa: E731
    killed = [a for a in answers if a.outcome == "cut" and any(a.began <= t <= a.ended for t in harm.killed)]
    errors = [a for a in answers if a.outcome in ("error", "cut") and a not in killed]
    different = [a for a in answers if a.outcome == "different"]
    for answer in errors + different:
        print(f"  {answer.kind}, question {answer.question}: {answer.outcome}: {answer.why}")
    for why in harm.differ:
        print(f"  {why}")
    off = nginx_counters_off(harm, load)
    leaked, workers_off = worker_counters(harm)
    for why in off + workers_off:
        print(f"  counter off: {why}")
    print(f"requests {load.sent() + harm.asked}: the same {count('same')}, left by their clients {count('left')}, cut with a "
          f"killed nginx process {len(killed)}")
    print("borrowed from other workers, since the last zone began: " + ", ".join(
        f"{metric('pd_borrows_total', result=result)} {result}" for result in ("borrowed", "computed")))
    print("answers moved: " + ", ".join(f"{kind} {number}" for kind, number in count_moves(harm).items()))
    print(f"client-visible errors {len(errors)}, answers that differ {len(different) + len(harm.differ)}, blocks leaked "
          f"{leaked}, counters off {len(off) + len(workers_off)}, longest pause "
          f"{max((a.pause for a in answers), default=0):.2f} s")
    return resting and answers and not (errors or different or harm.differ or leaked or off or workers_off)


def print_times(measured):
    """The worst of what was measured, by fault."""
    for fault, times in sorted(measured.items()):
        worst = {}
        for seen in times:
            for what, seconds in seen.items():
                worst[what] = max(worst.get(what, 0), seconds)
        print(f"{fault}: {len(times)} times" + "".join(f", {what} within {s:.2f} s" for what, s in worst.items()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--faults", default="")
    options = parser.parse_args()

    harm = Harm(options.seed)
    plan = make_plan(harm.rng, set(filter(None, options.faults.split(","))), options.each)
    load = Load(options.seed, options.clients)
    deadline = time.monotonic() + options.seconds
    done, measured, good = 0, {}, False
    try:
        while done < len(plan) if options.each else time.monotonic() < deadline:
            fault, victim = plan[done % len(plan)]
            load.settle()
            time.sleep(harm.rng.uniform(0.1, 0.8))
            seen = harm.do(fault, victim)
            measured.setdefault(fault, []).append(seen)
            done += 1
            print(f"fault {done}: {fault} {victim}" + "".join(f", {k} after {v:.2f} s" for k, v in seen.items()), flush=True)
        resting = load.stop()
        if resting:
            wait_at_rest()
        print(f"seed {options.seed}, {done} faults")
        print_times(measured)
        good = judge(harm, load, resting)
    finally:
        load.stopping.set()
        harm.end()
    print("ok" if good else "not ok")
    sys.exit(0 if good else 1)


main()
