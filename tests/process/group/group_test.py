"""Process groups of real processes: group_test.py <lockstep> <group_worker> Failures|Limits|Kills|Places|Hosts"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import unittest

from jobs import Failure, Job, Tree, free_port
from processes import process_state, wait_for
from shared_memory import own_shared_memory, shared_memory

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "links"))
from links_test import Namespaces, ip, why_not  # noqa: E402

LOCKSTEP = ""
WORKER = ""
TRANSPORTS = ("shared_memory", "tcp")
# What is promised in seconds, and what a machine that does other things besides may add.
DETECTION = 0.25
BUSY = 5.0  # seconds; who is told nothing waits for longer


def job(*arguments, size=3, transport="automatic", stdin=subprocess.DEVNULL, **environment):
    return Job(WORKER, arguments, size, {"LOCKSTEP_TRANSPORT": transport, **environment}, stdin=stdin)


class Failures(unittest.TestCase):
    def assert_peer_lost_within_promise(self, work, killed):
        """Kills a rank of a running job; every other one must name it in time."""
        at = work.kill(killed)
        for rank in range(len(work.ranks)):
            if rank == killed:
                continue
            failure = work.failure(rank)
            print(f"  rank {rank} knew {failure.when - at:.3f} s after rank {killed} was killed", flush=True)
            self.assertEqual(failure.kind, "peer_lost", failure)
            self.assertRegex(failure.text, rf"\brank {killed} \(host \S+, pid {work.ranks[killed].pid}\)")
            self.assertLess(failure.when - at, DETECTION + BUSY)
        self.assertEqual(work.exit_codes(), [-9 if rank == killed else 3 for rank in range(len(work.ranks))])

    def test_a_rank_killed_in_its_own_work_is_named_by_those_who_wait_in_all_reduce(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("wait_for", 1, transport=transport) as work:
                work.wait_until_running()
                self.assert_peer_lost_within_promise(work, 1)

    def test_a_rank_killed_between_barriers_is_named(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("barriers", transport=transport) as work:
                work.wait_until_running()
                self.assert_peer_lost_within_promise(work, 2)

    def test_rank_0_killed_in_the_middle_of_large_all_reduces_is_named(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("all_reduce", 16 << 20, transport=transport) as work:
                work.wait_until_running()
                time.sleep(random.uniform(0, 0.2))
                self.assert_peer_lost_within_promise(work, 0)

    def test_a_frozen_rank_is_named_at_the_deadline_with_where_it_was_last(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("barriers", transport=transport, TEST_CALL_MS="700") as work:
                work.wait_until_running()
                frozen = work.ranks[1].process
                frozen.send_signal(signal.SIGSTOP)
                failures = [work.failure(rank) for rank in (0, 2)]
                self.assertIn("timeout", [failure.kind for failure in failures], failures)
                for failure in failures:
                    print(f"  gave up after {failure.waited:.3f} s of 0.700", flush=True)
                    self.assertLess(failure.waited, 0.7 + 0.1 + BUSY)
                    self.assertRegex(failure.text, r"\brank 1\b")
                    self.assertRegex(failure.text, r"barrier #\d+")
                    if transport == "shared_memory":
                        self.assertRegex(failure.text, rf"pid {frozen.pid}\): stopped .*, last seen in barrier #\d+")
                frozen.send_signal(signal.SIGCONT)
                late = work.failure(1)
                self.assertLess(late.waited, 5 + 0.7 + BUSY, late)
                if transport == "shared_memory":
                    self.assertEqual((late.kind, late.text), (failures[0].kind, failures[0].text))
                self.assertEqual(work.exit_codes(), [3, 3, 3])

    # feature: K-02
    def test_a_timeout_in_a_backward_names_buckets_by_their_parameters(self):
        bucket = r"gradient bucket \d \((first|second)\.\w+, (first|second)\.\w+\) of backward 3"
        for transport in TRANSPORTS:
            with self.subTest(transport), \
                    job("late_backward", 1, transport=transport, stdin=subprocess.PIPE, TEST_CALL_MS="2000") as work:
                work.wait_until_running()
                failures = [work.failure(rank) for rank in (0, 2)]
                for failure in failures:
                    print(f"  {failure}", flush=True)
                    self.assertEqual(failure.kind, "timeout")
                    self.assertTrue(1.9 < failure.waited < 2.5 + BUSY)
                    self.assertRegex(failure.text,
                                     rf"^all_reduce\(\w+\) #\d+ of \d+ float32, {bucket} .* after (1\.9|2\.)\d* s")
                    self.assertRegex(failure.text, rf"missing: rank 1 \(host \S+, pid {work.ranks[1].pid}\)")
                    self.assertRegex(failure.text.partition("missing: ")[2], rf"(last seen in|inside) .*{bucket}")
                work.ranks[1].process.stdin.write(b"go on\n")
                work.ranks[1].process.stdin.flush()
                late = work.failure(1)
                self.assertEqual(late.kind, "timeout", late)
                self.assertRegex(late.text, r"missing: rank 1 \(host")
                self.assertEqual(work.exit_codes(), [3, 3, 3])

    # feature: A-09
    def test_an_exception_on_one_rank_ends_the_others_at_once(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("throw", 1, transport=transport) as work:
                self.assertEqual(work.line(1), "raised a mistake in the program")
                for rank in (0, 2):
                    failure = work.failure(rank)
                    self.assertEqual(failure.kind, "aborted", failure)
                    self.assertRegex(failure.text, r"rank 1 .*an exception ended its program")
                    self.assertLess(failure.waited, DETECTION + BUSY)
                self.assertEqual(work.exit_codes(), [3, 3, 3])

    # fault: 34
    def test_an_exception_that_nobody_catches_is_quoted_by_the_others_at_once(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("uncaught", 1, transport=transport) as work:
                for rank in (0, 2):
                    failure = work.failure(rank)
                    self.assertEqual(failure.kind, "aborted", failure)
                    self.assertRegex(failure.text, r"rank 1 .*an uncaught exception ended it: a mistake in a thread")
                    self.assertLess(failure.waited, DETECTION + BUSY)
                self.assertEqual(work.exit_codes(), [3, -signal.SIGABRT, 3])

    # feature: C-06
    def test_arguments_that_one_rank_has_wrong_are_quoted_by_the_others_at_once(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("refuse", 1, transport=transport) as work:
                self.assertEqual(work.failure(1).kind, "invalid_argument")
                for rank in (0, 2):
                    failure = work.failure(rank)
                    self.assertEqual(failure.kind, "aborted", failure)
                    self.assertRegex(failure.text, r"rank 1 .*failed in the arguments of a call: all_reduce")
                    self.assertLess(failure.waited, DETECTION + BUSY)
                self.assertEqual(work.exit_codes(), [3, 3, 3])

    # fault: 28
    def test_different_shapes_are_reported_on_every_rank_with_both_sides_and_end_the_group(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("mismatch", size=2, transport=transport) as work:
                for rank in (0, 1):
                    failure = work.failure(rank)
                    self.assertEqual(failure.kind, "desync", failure)
                    self.assertIn("all_reduce(sum) #1 of 4 float32", failure.text)
                    self.assertIn("all_reduce(sum) #1 of 5 float32", failure.text)
                    for side in (0, 1):
                        pid = work.ranks[side].pid
                        self.assertRegex(failure.text, rf"rank {side} \(host \S+, pid {pid}\) in all_reduce")
                self.assertEqual(work.exit_codes(), [0, 0])

    def test_a_rank_beyond_the_world_is_refused_before_anything_is_opened(self):
        with Job(WORKER, ["sums"], 1, {"WORLD_SIZE": "2"}, of_rank=lambda rank: {"RANK": "5"}) as work:
            failure = Failure(work.ranks[0].read_lines(1)[0].removeprefix("5 "))
            self.assertEqual(failure.kind, "invalid_argument")
            self.assertRegex(failure.text, r"(?i)rank.*5.*2")
            self.assertLess(failure.waited, BUSY)

    def test_an_unknown_transport_is_refused_with_those_that_there_are(self):
        with job("sums", size=1, transport="nonsense") as work:
            failure = work.failure(0)
            self.assertEqual((failure.kind, failure.text),
                             ("invalid_argument",
                              "LOCKSTEP_TRANSPORT is 'nonsense'; it can be automatic, shared_memory or tcp"))
        for wrong in ("0", "65", "two", "3 "):
            with job("sums", size=1, LOCKSTEP_CONNECTIONS=wrong) as work:
                self.assertEqual(work.failure(0).text, f"LOCKSTEP_CONNECTIONS is '{wrong}'; it can be 1 to 64")
        with job("sums", size=1, LOCKSTEP_CHECKSUMS="maybe") as work:
            self.assertEqual(work.failure(0).text, "LOCKSTEP_CHECKSUMS is 'maybe'; it can be on or off")


class Limits(unittest.TestCase):
    """Limits leave little or no room for shared memory."""

    def ranks(self, transport, scenario, addresses_of):
        """addresses_of: rank -> MiB that it may take beyond those that it has, or None."""
        def of_rank(rank):
            limit = addresses_of(rank)
            return {"before": ["bash", "-c", f'exec "$@" 2> "$HOME/errors{rank}"', "-"],
                    **({} if limit is None else {"TEST_ADDRESSES_MIB": str(limit)})}

        return Job(WORKER, [scenario], 3, {"LOCKSTEP_TRANSPORT": transport}, of_rank=of_rank)

    def errors(self, work):
        errors = ""
        for rank in range(3):
            with open(os.path.join(work.folder.name, f"errors{rank}"), encoding="utf-8") as file:
                errors += file.read()
        return errors

    # feature: A-18
    def test_groups_that_are_split_off_share_the_memory_of_their_group_with_few_addresses(self):
        with self.ranks("automatic", "splits", lambda rank: 1000) as work:
            lines = [work.line(rank) for rank in range(3)]
            self.assertEqual(lines, [": ".join(["shared memory", ", ".join(["shared memory"] * 6)])] * 3)
            self.assertEqual(work.exit_codes(), [0] * 3)
            self.assertNotIn("TCP", self.errors(work))

    # fault: 21
    def test_a_group_that_is_split_off_warns_if_it_cannot_have_shared_memory(self):
        with self.ranks("automatic", "poor_part", lambda rank: None) as work:
            self.assertEqual([work.line(rank) for rank in range(3)],
                             ["a part over tcp", "a part over nothing", "a part over tcp"])
            self.assertEqual(work.exit_codes(), [0] * 3)
            errors = self.errors(work)
            self.assertEqual(errors.count("over TCP"), 1, errors)
            self.assertRegex(errors, r"in order, ranks 2, 0 of the job\) communicate over TCP, since shared memory "
                                     r"cannot be used: rank 0 \(host .*ulimit -f")

    # fault: 21
    def test_all_ranks_use_tcp_if_one_cannot_have_shared_memory_with_one_warning(self):
        for unlucky in (0, 2):
            poor = lambda rank: 150 if rank == unlucky else None
            with self.subTest(unlucky=unlucky), self.ranks("automatic", "sums", poor) as work:
                lines = [work.line(rank) for rank in range(3)]
                self.assertEqual(work.exit_codes(), [0] * 3, lines)
                self.assertEqual(lines, ["right over tcp"] * 3)
                errors = self.errors(work)
                self.assertEqual(errors.count("over TCP"), 1, errors)
                self.assertRegex(errors, rf"over TCP, since shared memory cannot be used: rank {unlucky} \(host")
                self.assertIn("ulimit -v", errors)

    # fault: 21
    def test_without_a_choice_it_is_an_error_on_every_rank(self):
        with self.ranks("shared_memory", "sums", lambda rank: 150 if rank == 2 else None) as work:
            for rank in range(3):
                failure = work.failure(rank)
                self.assertEqual(failure.kind, "internal")
                self.assertRegex(failure.text, r"rank 2 \(host .*cannot map the group's shared memory.*ulimit -v")
            self.assertEqual(work.exit_codes(), [3] * 3)


def listening_at(pid):
    """The addresses at which a process listens, as the kernel prints them."""
    sockets = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            sockets.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    addresses = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            for _, local, _, state, *_, inode in [line.split()[:10] for line in file][1:]:
                if state == "0A" and f"socket:[{inode}]" in sockets:
                    addresses.append(local.split(":")[0])
    return addresses


class Kills(unittest.TestCase):
    # fault: 22, S8
    def test_killed_jobs_leave_nothing_behind(self):
        count = max(1, int(os.environ.get("LOCKSTEP_TEST_KILLS", "100")) // len(TRANSPORTS))
        for transport in TRANSPORTS:
            with self.subTest(transport):
                self.kill_many(count, transport)

    def kill_many(self, count, transport):
        before = shared_memory()
        with job("host", "barriers", size=1, transport=transport, stdin=subprocess.PIPE) as host:
            late = sorted(self.kill_one(host.ranks[0]) for _ in range(count))
            self.assertTrue(wait_for(lambda: not host.ranks[0].survivors()), "processes are left")
            self.assertEqual(shared_memory(), before)
            self.assertEqual(os.listdir(host.folder.name), ["token"])
        print(f"  {count} kills: half of the survivors knew after {late[count // 2]:.3f} s, all after {late[-1]:.3f} s",
              flush=True)
        self.assertLess(late[count // 2], DETECTION + 1)
        self.assertLess(late[-1], DETECTION + BUSY)

    def kill_one(self, host):
        """Kills one of two ranks; how long the other one needed to know."""
        port = free_port()
        host.process.stdin.write(f"0 {port}\n1 {port}\n".encode())
        host.process.stdin.flush()
        lines = host.read_lines(2)
        pids = dict(map(int, line.split(" running ")) for line in lines)
        time.sleep(random.uniform(0, 0.01))
        killed = random.choice((0, 1))
        at = time.monotonic()
        os.kill(pids[killed], signal.SIGKILL)
        failure = Failure(host.read_lines(1)[0].removeprefix(f"{1 - killed} "))
        self.assertEqual(failure.kind, "peer_lost", failure)
        self.assertRegex(failure.text, rf"rank {killed} \(host \S+, pid {pids[killed]}\) (has ended|was lost)")
        return failure.when - at


class Places(unittest.TestCase):
    def run_ranks(self, ranks, *arguments, **environment):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), "--no-prefix", WORKER, *map(str, arguments)]
        with Tree(command, {"OMP_NUM_THREADS": "1", **environment}) as tree:
            code, output, error = tree.finish(60)
        self.assertEqual(code, 0, output + error)
        return sorted(output.splitlines())

    # fault: S5
    def test_ranks_of_one_host_listen_where_only_that_host_comes(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("barriers", transport=transport) as work:
                work.wait_until_running()
                addresses = [address for rank in work.ranks for address in listening_at(rank.pid)]
                self.assertEqual(set(addresses), {"0100007F"})  # 127.0.0.1; at least that of the store

    # feature: A-17
    def test_sums_over_either_transport(self):
        for transport, name in (("automatic", "shared memory"), ("shared_memory", "shared memory"), ("tcp", "tcp")):
            with self.subTest(transport):
                self.assertEqual(self.run_ranks(3, "sums", LOCKSTEP_TRANSPORT=transport),
                                 [f"{rank} right over {name}" for rank in range(3)])

    def test_the_log_says_what_was_chosen_and_why_if_asked_to(self):
        command = [LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix", WORKER, "sums"]
        for transport, choice in (("automatic", "shared memory: transport shared_memory, the preferred one; "),
                                  ("tcp", "tcp: transport tcp, as requested. ")):
            environment = {"LOCKSTEP_TRANSPORT": transport, "LOCKSTEP_LOG": "debug"}
            with self.subTest(transport), Tree(command, environment) as tree:
                _, _, error = tree.finish(60)
                for rank in range(2):
                    self.assertRegex(error, rf"group world: rank {rank} of 2, \S+: ranks 0, 1, backend native, "
                                            rf"data over {choice}.*Timeout \d+ s, address 127\.0\.0\.1")

    def test_several_connections_a_pair(self):
        self.assertEqual(self.run_ranks(3, "sums", LOCKSTEP_TRANSPORT="tcp", LOCKSTEP_CONNECTIONS="3"),
                         [f"{rank} right over tcp" for rank in range(3)])

    def test_without_checksums(self):
        self.assertEqual(self.run_ranks(3, "sums", LOCKSTEP_TRANSPORT="tcp", LOCKSTEP_CHECKSUMS="off"),
                         [f"{rank} right over tcp" for rank in range(3)])

    # feature: A-10
    def test_parts_of_a_group_at_once(self):
        for transport, name in (("automatic", "shared memory"), ("tcp", "tcp")):
            with self.subTest(transport):
                self.assertEqual(self.run_ranks(4, "parts", LOCKSTEP_TRANSPORT=transport),
                                 [f"{rank} parts right over {name}" for rank in range(4)])

    def test_a_rank_that_cannot_connect_its_part_tells_the_others_why(self):
        for transport in TRANSPORTS:
            with self.subTest(transport), job("crowded", size=3, transport=transport) as work:
                for rank in range(3):
                    failure = work.failure(rank)
                    self.assertIn("Too many open files", failure.text)
                    self.assertLess(failure.waited, BUSY)

    def test_a_thousand_barriers_of_four_ranks(self):
        lines = self.run_ranks(4, "barriers", 1000)
        seconds = [float(line.split()[2]) for line in lines if " done " in line]
        self.assertEqual(len(seconds), 4, lines)
        print(f"  1000 barriers took {max(seconds):.3f} s")
        self.assertLess(max(seconds), 10)

    def test_a_job_that_was_stopped_for_longer_than_its_timeout_goes_on(self):
        command = [LOCKSTEP, "run", "--nproc-per-node", "2", "--no-prefix", WORKER, "listen", "0"]
        environment = {"OMP_NUM_THREADS": "1", "TEST_CALL_MS": "1500"}
        with contextlib.ExitStack() as stack:
            trees = [stack.enter_context(Tree(command, {**environment, "LOCKSTEP_TRANSPORT": transport},
                                              stdin=subprocess.PIPE)) for transport in TRANSPORTS]
            pids = [tree.pid for tree in trees]
            for tree in trees:
                pids += [int(line.split()[2]) for line in tree.read_lines(4) if " running " in line]
            are_stopped = lambda: [process_state(pid)[0] == "T" for pid in pids]
            for tree in trees:
                os.kill(tree.pid, signal.SIGTSTP)  # as Ctrl-Z does
            self.assertTrue(wait_for(lambda: all(are_stopped())))
            time.sleep(1.7)  # longer than the timeout
            for tree in trees:
                os.kill(tree.pid, signal.SIGCONT)
            self.assertTrue(wait_for(lambda: not any(are_stopped())))
            for tree in trees:
                tree.process.stdin.write(b"go on\n")
                tree.process.stdin.flush()
            for tree in trees:
                code, output, error = tree.finish()
                self.assertEqual((code, sorted(output.splitlines())), (0, ["0 went on", "1 went on"]), error)

    def test_ranks_of_two_nodes_use_memory_within_them_and_tcp_between(self):
        for nodes in ("aabb", "abab", "aaab"):
            with Job(WORKER, ["sums"], 4, of_rank=lambda rank: {"LOCKSTEP_NODE": nodes[rank]}) as work:
                over = ["tcp" if nodes.count(node) == 1 else "tcp and shared memory" for node in nodes]
                self.assertEqual([work.line(rank) for rank in range(4)], [f"right over {name}" for name in over])
                self.assertEqual(work.exit_codes(), [0] * 4)

    def test_shared_memory_between_two_nodes_is_refused(self):
        with Job(WORKER, ["sums"], 2, {"LOCKSTEP_TRANSPORT": "shared_memory"},
                 of_rank=lambda rank: {"LOCKSTEP_NODE": "ab"[rank]}) as work:
            for rank in range(2):
                failure = work.failure(rank)
                self.assertEqual(failure.kind, "invalid_argument")
                self.assertRegex(failure.text, "share no memory.*use automatic or tcp")


class Hosts(unittest.TestCase):
    """Network namespaces stand for hosts."""

    # feature: E-02
    def test_training_on_two_hosts_gives_the_bits_of_one_host(self):
        with Job(WORKER, ["train", 20], 4) as work:
            alone = [work.line(rank) for rank in range(4)]
        self.assertEqual(len(set(alone)), 1, alone)
        self.assertRegex(alone[0], r"^hash [0-9a-f]{16} over shared memory$")
        with Namespaces() as namespaces:
            place = lambda rank: {"before": ["ip", "netns", "exec", namespaces.names[rank // 2]]}
            with Job(WORKER, ["train", 20], 4, {"MASTER_ADDR": namespaces.addresses[0]}, place) as work:
                self.assertEqual([work.line(rank) for rank in range(4)],
                                 [alone[0].replace("shared memory", "tcp and shared memory")] * 4)
                self.assertEqual(work.exit_codes(), [0] * 4)

    def test_an_interface_that_leads_nowhere_is_not_used(self):
        with Namespaces() as namespaces:
            for name in namespaces.names:  # on both hosts the same address, as of bridges for containers
                ip("-n", name, "link", "add", "a_bridge", "type", "bridge")
                ip("-n", name, "address", "add", "10.213.8.1/24", "dev", "a_bridge")
                ip("-n", name, "link", "set", "a_bridge", "up")
            place = lambda rank: {"before": ["ip", "netns", "exec", namespaces.names[rank]]}
            environment = {"MASTER_ADDR": namespaces.addresses[0]}
            with Job(WORKER, ["sums"], 2, environment, place) as work:
                self.assertEqual([work.line(rank) for rank in range(2)], ["right over tcp"] * 2)
            forced = {**environment, "LOCKSTEP_IFNAME": "cable"}
            with Job(WORKER, ["sums"], 2, forced, place) as work:
                self.assertEqual([work.line(rank) for rank in range(2)], ["right over tcp"] * 2)
            # What is forced is not questioned, and what is not there is named.
            wrong = {**environment, "LOCKSTEP_IFNAME": "a_bridge", "TEST_JOIN_MS": "2000"}
            with Job(WORKER, ["sums"], 2, wrong, place) as work:
                text = work.failure(1).text
                self.assertRegex(text, r"rank 1 cannot connect to rank 0 \(host .*, pid \d+\) at 10\.213\.8\.1:")
                self.assertRegex(text, r"that is its interface a_bridge: if it cannot be reached, set LOCKSTEP_IFNAME "
                                       r"on host \S+ to another")
            absent = {**environment, "LOCKSTEP_IFNAME": "eth7"}
            with Job(WORKER, ["sums"], 2, absent, place) as work:
                self.assertRegex(work.failure(0).text, '"eth7".*it has: (a_bridge, cable|cable, a_bridge)')

    def test_a_master_whose_host_does_not_answer_ends_at_the_deadline_with_its_address(self):
        with Namespaces() as namespaces:
            first, _ = namespaces.names
            environment = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.213.7.9", "TEST_JOIN_MS": "800"}
            with Job(WORKER, ["sums"], 1, environment,
                     lambda rank: {"RANK": "1", "before": ["ip", "netns", "exec", first]}) as work:
                failure = Failure(work.ranks[0].read_lines(1)[0].removeprefix("1 "))
        self.assertEqual(failure.kind, "timeout", failure)
        self.assertIn(f"10.213.7.9:{work.environment['MASTER_PORT']}", failure.text)
        self.assertLess(failure.waited, 0.8 + 0.1 + BUSY)


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    own_shared_memory()
    reason = why_not() if "Hosts" in sys.argv else ""
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
