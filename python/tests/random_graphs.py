"""Random trainings and collectives on the backend lockstep, against the same on Gloo and against what has to come out.

    python random_graphs.py --cases 1000 --seed 1 --ranks 2
    python random_graphs.py --seed 17 --cases 1           case 17 again
    --kind training | collectives                         of one kind only
    --show                                                prints each case's number and what happened in it

Case n of a run with --seed s is that of seed s + n. The first failure is shrunk, printed with its seed and ends the
run with status 1, unless --go-on.
"""

import argparse
import collections
import faulthandler
import multiprocessing
import os
import random
import sys
import time
import warnings
from datetime import timedelta
from functools import partial

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what DistributedDataParallel warns of is meant here

import random_collectives  # noqa: E402
import random_training  # noqa: E402
import torch._dynamo  # noqa: E402, F401  what optimizers load when they are first made, in each rank
import torch.distributed as dist  # noqa: E402
import torch.distributed.tensor  # noqa: E402, F401
from ranks import run_ranks  # noqa: E402

KINDS = {"training": random_training, "collectives": random_collectives}
CASES_A_JOB = 10
TIMEOUT = timedelta(seconds=15)
SHRINKING_TIME = 120


def draw_case(seed, ranks, kinds=("training", "training", "training", "collectives")):
    draw = random.Random(seed)
    return KINDS[draw.choice(kinds)].draw_case(draw, seed, ranks)


def run_cases(rank, ranks, cases, progress):
    """The rank's part of a job: [(what was noted, failure or None)], as far as the first failure."""
    warnings.showwarning = lambda *arguments, **named: None
    groups = {"gloo": dist.group.WORLD, "lockstep": dist.new_group(backend="lockstep")}
    outcomes = []
    for index, case in enumerate(cases):
        progress[rank] = index
        faulthandler.dump_traceback_later(0.8 * TIMEOUT.total_seconds())  # of a rank that hangs
        notes = []
        failure = KINDS[case["kind"]].run_case(case, rank, ranks, groups, notes.append, agree)
        faulthandler.cancel_dump_traceback_later()
        outcomes.append((notes, failure))
        if failure:
            break
    # Nobody ends the group while another is still busy with it.
    dist.barrier(groups["lockstep"])
    dist.destroy_process_group(groups["lockstep"])
    return outcomes


def agree(failure):
    """What the ranks found, so that all of them end a case at the same place; None if nobody found anything."""
    failures = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(failures, failure)
    except Exception as error:
        raise AssertionError(f"the ranks came apart; this one found: {failure}") from error
    return "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(failures) if text) or None


def run_job(cases, ranks):
    """The outcomes of rank 0, the last of them a failure if there was one."""
    progress = multiprocessing.get_context("fork").RawArray("i", ranks)
    try:
        return run_ranks(ranks, partial(run_cases, cases=cases, progress=progress), "gloo", TIMEOUT)[0]
    except AssertionError as error:
        reached = min(progress)
        return [([], None)] * reached + [([], str(error))]


def shrink(case, ranks):
    """The smallest case found that fails as well, and how."""
    failure, end = run_job([case], ranks)[-1][1], time.monotonic() + SHRINKING_TIME
    if not failure:
        return case, "not by itself: only behind the cases before it"
    found = True
    while found:
        found = False
        for candidate in KINDS[case["kind"]].smaller(case):
            if time.monotonic() > end:
                return case, failure
            now = run_job([candidate], ranks)[-1][1]
            if now:
                case, failure, found = candidate, now, True
                break
    return case, failure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--go-on", action="store_true")
    arguments = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    draw = partial(draw_case, ranks=arguments.ranks, **({"kinds": [arguments.kind]} if arguments.kind else {}))
    start, seed, end, failed = time.monotonic(), arguments.seed, arguments.seed + arguments.cases, []
    noted = collections.Counter()
    while seed < end:
        seeds = range(seed, min(end, seed + CASES_A_JOB))
        outcomes = run_job([draw(one) for one in seeds], arguments.ranks)
        for one, (notes, failure) in zip(seeds, outcomes):
            noted.update(notes)
            if arguments.show:
                print(one, draw(one)["kind"], notes, flush=True)
            if failure:
                failed.append(one)
                print(f"seed {one}, {arguments.ranks} ranks:\n{failure}", flush=True)
                case, how = shrink(draw(one), arguments.ranks)
                print(f"shrunk to\n{case}\nwhich fails so:\n{how}", flush=True)
        seed += len(outcomes)
        if failed and not arguments.go_on:
            break
    for note, count in sorted(noted.items(), key=lambda item: -item[1]):
        print(f"  {count} x {note}")
    print(f"{seed - arguments.seed} cases on {arguments.ranks} ranks from seed {arguments.seed} in "
          f"{time.monotonic() - start:.0f} s, {len(failed)} failed {failed or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
