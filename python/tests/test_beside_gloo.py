"""What torch.distributed does for a Gloo group, it does for ours in the same way: the same function runs on both."""

import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks import TIMEOUT, run_ranks
from torch.distributed import distributed_c10d

BACKENDS = ("lockstep", "gloo")
SIZES = (2, 4)
CPU = torch.device("cpu")


def failure_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it went well")


def wait_for_all(rank, size, name):
    """Without a collective, which would be counted, or could not be made any more."""
    store = distributed_c10d._get_default_store()
    store.set(f"{name}/{rank}", "")
    store.wait([f"{name}/{peer}" for peer in range(size)], TIMEOUT)


def sequence_numbers(rank, size):
    def steps_of(group):
        numbers = [group._get_sequence_number_for_group()]
        for collective in (lambda: dist.all_reduce(torch.ones(2), group=group),
                           lambda: dist.all_reduce(torch.ones(2), group=group, async_op=True).wait(),
                           lambda: dist.broadcast(torch.ones(2), 0, group=group),
                           lambda: dist.all_gather([torch.ones(2) for _ in range(size)], torch.ones(2), group=group),
                           lambda: dist.barrier(group)):
            collective()
            numbers.append(group._get_sequence_number_for_group())
        return [after - before for before, after in zip(numbers, numbers[1:])], numbers[-1]

    dist.group.WORLD._set_sequence_number_for_group()
    return steps_of(dist.group.WORLD), steps_of(dist.new_group(list(range(size))))


def refused_call(rank, size):
    before = dist.group.WORLD._get_sequence_number_for_group()
    try:
        dist.all_gather([torch.ones(3)] * size, torch.ones(2))
    except (ValueError, RuntimeError):
        pass
    return dist.group.WORLD._get_sequence_number_for_group() - before


def options(rank, size):
    group = dist.group.WORLD
    backend = group._get_backend(CPU)
    described = [backend.options.group_name == group.group_name, list(backend.options.global_ranks_in_group) or None]
    timeouts = [backend.options._timeout]
    for seconds, change in ((7, lambda timeout: distributed_c10d._set_pg_timeout(timeout)),
                            (8, lambda timeout: distributed_c10d._set_pg_timeout(timeout, group)),
                            (9, group.set_timeout), (10, backend.set_timeout), (11, backend._set_default_timeout)):
        change(timedelta(seconds=seconds))
        timeouts.append(backend.options._timeout)
    return described, timeouts


def a_timeout_that_was_set(rank, size):
    distributed_c10d._set_pg_timeout(timedelta(milliseconds=300))
    text = failure_of(lambda: dist.all_reduce(torch.ones(2))) if rank == 0 else None
    wait_for_all(rank, size, "done")
    return text


def barrier_to_which_all_come(rank, size):
    for _ in range(3):
        dist.monitored_barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True)
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.monitored_barrier(pair, timedelta(seconds=10))


def barrier_without(rank, size, absent, wait_all_ranks):
    text = None
    if rank not in absent:
        text = failure_of(lambda: dist.monitored_barrier(timeout=timedelta(milliseconds=500),
                                                         wait_all_ranks=wait_all_ranks))
    wait_for_all(rank, size, "done")
    return text


def barrier_without_time(rank, size):
    return failure_of(lambda: dist.group.WORLD.monitored_barrier(timedelta(0))) if rank == 0 else None


class BesideGlooTest(unittest.TestCase):
    def on_both(self, function, sizes=SIZES):
        for size in sizes:
            for backend in BACKENDS:
                with self.subTest(backend, size=size):
                    yield backend, size, run_ranks(size, function, backend)

    def test_sequence_numbers_count_collectives_alike_on_all_ranks(self):
        for backend, size, results in self.on_both(sequence_numbers):
            for steps, last in results[0]:
                self.assertEqual(steps, [1] * 5)
            self.assertEqual(results, [results[0]] * size)

    def test_a_call_that_is_refused_is_not_counted(self):
        self.assertEqual(run_ranks(2, refused_call), [0, 0])

    def test_options(self):
        for backend, size, results in self.on_both(options):
            for described, timeouts in results:
                self.assertEqual(described, [True, None if backend == "gloo" else list(range(size))])
                self.assertEqual(timeouts, [TIMEOUT] + [timedelta(seconds=seconds) for seconds in range(7, 12)])

    def test_a_timeout_that_was_set_holds_from_the_next_call_on(self):
        for backend, size, results in self.on_both(a_timeout_that_was_set):
            self.assertRegex(results[0], r"300 ?ms" if backend == "gloo" else r"0\.3 s")

    def test_monitored_barrier(self):
        for _ in self.on_both(barrier_to_which_all_come):
            pass

    def test_monitored_barrier_without_any_time_does_not_wait(self):
        for _, _, results in self.on_both(barrier_without_time, sizes=(2,)):
            self.assertIn("Rank 0 timed out in monitoredBarrier", results[0])

    def test_monitored_barrier_names_the_first_missing_rank(self):
        for backend, size, results in self.on_both(lambda rank, size: barrier_without(rank, size, [size - 1], False)):
            self.assertRegex(results[0], rf"(?i)rank {size - 1}\b")

    def test_monitored_barrier_names_all_missing_ranks(self):
        for backend, size, results in self.on_both(lambda rank, size: barrier_without(rank, size, [1, 3], True), [4]):
            self.assertRegex(results[0], r"(?i)ranks 1(,| and) 3\b")

    def test_monitored_barrier_of_a_rank_that_is_no_member_is_torchs_affair(self):
        def call(rank, size):
            group = dist.new_group([0])
            dist.monitored_barrier(group, timedelta(seconds=10))
            dist.barrier()

        for _ in self.on_both(call, [2]):
            pass


if __name__ == "__main__":
    unittest.main()
