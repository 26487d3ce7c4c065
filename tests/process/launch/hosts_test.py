"""Jobs of several launchers on this machine, which stand for hosts: hosts_test.py <lockstep> <lines> [hello]"""

import collections
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

from agents import Job, free_port, listens
from processes import Tree, wait_for

LOCKSTEP = ""
LINES = ""
HELLO = ""

FOREVER = 'echo "rank $RANK pid $$"; exec sleep 1000'


class HostsTest(unittest.TestCase):
    def job(self, *options, **more):
        job = Job(LOCKSTEP, *options, **more)
        self.addCleanup(job.__exit__)
        return job

    def pair(self, program, *options, ranks=2, **more):
        """A job of the first host a and of b."""
        job = self.job("--nnodes", "2", *options, **more)
        return job, job.start("a", program, "--node-rank", "0", ranks=ranks), job.start(
            "b", program, "--node-rank", "1", ranks=ranks)

    def running(self, ranks, program=FOREVER, *options):
        """A job whose ranks have printed their pids."""
        job, a, b = self.pair(program, *options, ranks=ranks)
        for rank in range(2 * ranks):
            self.assertTrue(a.says(f"rank {rank} pid", stream="out"), job.texts())
        return job, a, b

    def assert_nothing_left(self, job):
        self.assertEqual(job.left(), [], job.texts())


class MeetingTest(HostsTest):
    # feature: J-01, J-03
    def test_ranks_of_all_hosts_know_their_places(self):
        job, a, _ = self.pair("env", ranks=2)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        found = collections.defaultdict(dict)
        for rank, name, value in re.findall(r"^\[(\d+)\] (\w+)=(.*)$", a.output, re.M):
            found[int(rank)][name] = value
        for rank in range(4):
            expected = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
                        "GROUP_RANK": str(rank // 2), "GROUP_WORLD_SIZE": "2", "RESTART_COUNT": "0",
                        "MASTER_ADDR": "127.0.0.1", "LOCKSTEP_GENERATION": "0", "TORCHELASTIC_RUN_ID": "default"}
            self.assertEqual({name: found[rank].get(name) for name in expected}, expected, job.texts())
        for name in ("LOCKSTEP_STORE", "LOCKSTEP_JOB_ID", "MASTER_PORT"):
            self.assertEqual(len({found[rank][name] for rank in range(4)}), 1, name)
        self.assertIn("4 ranks on 2 hosts: a: ranks 0 to 1; b: ranks 2 to 3", a.error)
        self.assert_nothing_left(job)

    def test_the_user_gives_an_address_and_each_rank_a_gpu(self):
        script = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES $MASTER_ADDR"
        job, a, _ = self.pair(script, "--master-addr", "h", "--virtual-local-rank", "--no-prefix")
        self.assertEqual(job.codes(), [0, 0], job.texts())
        self.assertEqual(sorted(a.output.splitlines()), [f"{rank} 0 {rank % 2} h" for rank in range(4)])

    # feature: J-01, J-02
    def test_sixteen_ranks_on_two_hosts_reduce(self):
        if not HELLO:
            self.skipTest("without torch")
        job, a, b = self.pair([HELLO], ranks=8)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        self.assertEqual(sorted(int(rank) for rank in re.findall(r"^\[(\d+)\] .* sees the sum 136", a.output, re.M)),
                         list(range(16)), job.texts())
        self.assertEqual(b.output, "")

    def test_three_hosts_with_different_numbers_of_ranks(self):
        job = self.job("--nnodes", "3")
        a = job.start("a", "echo $RANK/$WORLD_SIZE $LOCAL_RANK", "--node-rank", "0", ranks=1)
        job.start("c", "echo $RANK/$WORLD_SIZE $LOCAL_RANK", "--node-rank", "2", ranks=3)
        job.start("b", "echo $RANK/$WORLD_SIZE $LOCAL_RANK", "--node-rank", "1", ranks=2)
        self.assertEqual(job.codes(), [0, 0, 0], job.texts())
        self.assertEqual(sorted(a.output.splitlines()), ["[0] 0/6 0", "[1] 1/6 0", "[2] 2/6 1", "[3] 3/6 0",
                                                         "[4] 4/6 1", "[5] 5/6 2"])

    # fault: 45
    def test_a_wrong_token_is_refused_at_once(self):
        job = self.job("--nnodes", "2")
        a = job.start("a", "true", "--node-rank", "0")
        self.assertTrue(a.says("waiting for 1 more host"), job.texts())
        another = job.write_token("another")
        stranger = job.start("b", "true", token=another)
        self.assertEqual(stranger.code(10), 3, job.texts())
        self.assertIn(f"whose token is from {another} (LOCKSTEP_TOKEN_FILE). All hosts of a job need the same one",
                      stranger.error)
        self.assertNotIn("LOCKSTEP_JOB_ID", stranger.error)
        self.assertTrue(a.says("it holds another job token than this process, whose token is from "
                               f"{job.token} (LOCKSTEP_TOKEN_FILE)", 5), job.texts())
        job.start("c", "true")
        self.assertEqual((job.agents[0].code(), job.agents[2].code()), (0, 0), job.texts())

    # fault: 44
    def test_other_options_are_refused_with_both_values(self):
        job = self.job()
        a = job.start("a", "true", "--nnodes", "2", "--node-rank", "0")
        self.assertTrue(a.says("waiting for 1 more host"), job.texts())
        # The host with this node rank might be lost already, so that is tried for a while.
        for option, code, words in (
                (["--nnodes", "1:2"], 2, "--nnodes is 1:2 there and 2 on the first host a"),
                (["--nnodes", "2", "--max-restarts", "3"], 2, "--max-restarts 3 there and --max-restarts 0"),
                (["--nnodes", "2", "--rdzv-conf", "host_timeout=60"], 2,
                 "--rdzv-conf host_timeout=60 there and --rdzv-conf host_timeout=3 on the first host a"),
                (["--nnodes", "2", "--stop-exit-code", "7"], 2, "--stop-exit-code 7 there and --stop-exit-code 75"),
                (["--nnodes", "2", "--node-rank", "0", "--stop-grace", "1", "--shutdown-timeout", "1"], 3,
                 "node rank 0 belongs to host a")):
            other = job.start("b", "true", *option)
            self.assertEqual(other.code(20), code, job.texts())
            self.assertIn(words, other.error)
            self.assertTrue(a.says(words, 5), job.texts())
        job.start("d", "true", "--nnodes", "2")
        self.assertEqual((a.code(), job.agents[-1].code()), (0, 0), job.texts())

    def test_another_program_under_the_same_id_is_refused(self):
        job = self.job("--nnodes", "2")
        a = job.start("a", ["sleep", "2"], "--node-rank", "0")
        self.assertTrue(a.says("waiting for 1 more host"), job.texts())
        other = job.start("b", ["true"])
        self.assertEqual(other.code(10), 2, job.texts())
        words = "its program is true, but the job there runs sleep under the same --rdzv-id default"
        self.assertIn(words, other.error)
        self.assertTrue(a.says(words, 5), job.texts())
        spare = [job.start(name, ["sleep", "2"]) for name in "cd"]
        self.assertEqual(a.code(), 0, job.texts())
        self.assertEqual([each.code() for each in spare], [0, 0], job.texts())
        self.assertEqual(sum("this host was not needed" in each.error for each in spare), 1, job.texts())

    # feature: B-06
    def test_other_arguments_under_the_default_id_are_refused(self):
        job = self.job("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=600")
        a = job.start("a", ["sleep", "2"])
        other = job.start("b", ["sleep", "3"])
        self.assertEqual(other.code(10), 2, job.texts())
        words = "its program has '3' as argument 1, and that on the first host a has '2' as argument 1"
        self.assertIn(words, other.error)
        self.assertIn("give it a different --rdzv-id", other.error)
        self.assertTrue(a.says(words, 5), job.texts())
        job.start("c", ["sleep", "2"])
        self.assertEqual((a.code(), job.agents[-1].code()), (0, 0), job.texts())

    def test_hosts_that_are_given_one_id_may_have_different_arguments(self):
        job = self.job("--nnodes", "2", "--rdzv-id", "mine")
        a = job.start("a", ["echo", "of a"], ranks=1)
        job.start("b", ["echo", "of b"], ranks=1)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        self.assertEqual(sorted(line[4:] for line in a.output.splitlines()), ["of a", "of b"], job.texts())

    # feature: B-06
    def test_a_second_job_of_one_host_under_the_same_id_is_refused(self):
        job = self.job("--nnodes", "1")
        a = job.start("a", "sleep 2")
        self.assertTrue(a.says("2 ranks on 1 host"), job.texts())
        b = job.start("b", "sleep 2")
        self.assertEqual((b.code(10), a.code()), (2, 0), job.texts())
        self.assertIn("a job of one host runs there under the same --rdzv-id default", b.error)

    def test_a_name_that_becomes_known_later(self):
        job = self.job("--nnodes", "2")
        hosts = os.path.join(job.folder.name, "hosts")
        with open(hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n")
        job.wrap = lambda name: ["unshare", "-m", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
        if subprocess.run([*job.wrap("a"), "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no file can be mounted here")
        job.endpoint = f"late-host.invalid:{free_port()}"
        agents = [job.start(name, "true") for name in "ab"]
        for agent in agents:
            self.assertTrue(agent.says("the host name 'late-host.invalid' cannot be resolved", 20), job.texts())
        with open(hosts, "a", encoding="ascii") as file:
            file.write("127.0.0.1 late-host.invalid\n")
        self.assertEqual(job.codes(), [0, 0], job.texts())

    # feature: B-06
    def test_two_jobs_at_one_endpoint(self):
        endpoint = f"127.0.0.1:{free_port()}"
        script = 'echo $TORCHELASTIC_RUN_ID $RANK'
        one, two = (self.job("--nnodes", "2", "--rdzv-id", name, endpoint=endpoint) for name in ("one", "two"))
        two.token = one.token
        first = one.start("a", script, "--node-rank", "0", ranks=1)
        self.assertTrue(first.says("waiting for 1 more host"), one.texts())
        second = two.start("a", script, "--node-rank", "0", ranks=1)
        self.assertTrue(second.says("waiting for 1 more host"), two.texts())
        two.start("b", script, ranks=1)
        self.assertEqual(two.codes(), [0, 0], two.texts())
        one.start("b", script, ranks=1)
        self.assertEqual(one.codes(), [0, 0], one.texts())
        self.assertEqual(sorted(first.output.splitlines()), ["[0] one 0", "[1] one 1"])
        self.assertEqual(sorted(second.output.splitlines()), ["[0] two 0", "[1] two 1"])

    def test_the_endpoint_is_taken_over_when_the_other_job_ends(self):
        endpoint = f"127.0.0.1:{free_port()}"
        one, two = (self.job("--nnodes", "2", "--rdzv-id", name, endpoint=endpoint) for name in ("one", "two"))
        two.token = one.token
        first = one.start("a", "true", "--node-rank", "0")
        self.assertTrue(first.says("waiting for 1 more host"), one.texts())
        second = two.start("a", "true", "--node-rank", "0")
        self.assertTrue(second.says("waiting for 1 more host"), two.texts())
        first.process.send_signal(signal.SIGTERM)
        self.assertEqual(first.code(), 75, one.texts())
        two.start("b", "true")
        self.assertEqual(two.codes(), [0, 0], two.texts())

    def test_nobody_comes(self):
        job = self.job("--nnodes", "2", "--rdzv-conf", "join_timeout=2")
        job.start("a", "true", "--node-rank", "0")
        other = self.job("--nnodes", "2", "--rdzv-conf", "join_timeout=2", endpoint="127.0.0.1:1")
        self.assertEqual(job.codes(), [3], job.texts())
        self.assertIn("1 of at least 2 hosts joined within 2 s", job.agents[0].error)
        other.start("b", "true", "--node-rank", "1")
        self.assertNotEqual(other.codes(), [0], other.texts())

    # fault: 39
    def test_another_program_holds_the_port(self):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            job = self.job("--nnodes", "2", "--rdzv-conf", "join_timeout=3",
                           endpoint=f"127.0.0.1:{server.getsockname()[1]}")
            job.start("a", "true")
            self.assertEqual(job.codes(), [3], job.texts())

    def test_a_program_that_is_missing_on_one_host(self):
        job = self.job("--nnodes", "2")
        path = os.path.join(job.folder.name, "program")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o700), "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nsleep 100\n")
        a = job.start("a", [path], "--node-rank", "0")
        self.assertTrue(a.says("waiting for 1 more host"), job.texts())
        os.chmod(path, 0o600)
        b = job.start("b", [path])
        self.assertEqual(b.code(), 126, job.texts())
        os.chmod(path, 0o700)
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nexit 0\n")
        job.start("c", [path])
        self.assertEqual(a.code(), 0, job.texts())


class OutputTest(HostsTest):
    def test_lines_of_all_hosts_are_whole_and_in_order(self):
        count = 5000
        job, a, b = self.pair([LINES, str(count)], ranks=2)
        self.assertEqual(job.codes(), [0, 0], job.texts()[-2000:])
        following = collections.Counter()
        for line in a.output.splitlines():
            match = re.fullmatch(r"\[(\d)\] rank (\d) line (\d+) (x*)\.", line)
            self.assertTrue(match, line)
            rank, again, number, filler = match.groups()
            self.assertEqual((rank, int(number), len(filler)), (again, following[rank], int(number) * 7 % 120))
            following[rank] += 1
        self.assertEqual(following, {str(rank): count for rank in range(4)})
        self.assertEqual(b.output, "")

    def test_long_lines_of_all_hosts_stay_whole(self):
        longest = 1 << 20
        script = f"for i in 1 2 3 4; do head -c {longest} /dev/zero | tr '\\0' $RANK; echo; done"
        job, a, _ = self.pair(script, ranks=2)
        self.assertEqual(job.codes(), [0, 0])
        self.assertEqual(collections.Counter(a.output.splitlines()),
                         {f"[{rank}] {str(rank) * longest}": 4 for rank in range(4)})

    def test_a_reader_that_takes_its_time_gets_everything(self):
        # The other host's ranks end with their output still on its way.
        job = self.job("--nnodes", "2")
        text = b"".join(b"%06d%s\n" % (number, b"x" * 93) for number in range(4000))
        path = os.path.join(job.folder.name, "text")
        with open(path, "wb") as file:
            file.write(text)
        program = f"test $RANK = 0 || cat {path}"
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        with open(os.path.join(job.folder.name, "a.err"), "wb") as error:
            a = Tree([LOCKSTEP, "run", "--nproc-per-node", "1", "--rdzv-endpoint", job.endpoint, "--nnodes", "2",
                      "--node-rank", "0", "sh", "-c", program], {"LOCKSTEP_TOKEN_FILE": job.token}, stdout=writer,
                     stderr=error)
        self.addCleanup(a.__exit__)
        os.close(writer)
        self.assertTrue(wait_for(lambda: listens(job.endpoint)))
        b = job.start("b", program, ranks=1)
        read = os.read(reader, 1 << 16)
        # For longer than an agent waits for anything else at its end.
        self.assertFalse(wait_for(lambda: a.process.poll() is not None, 4))
        while got := os.read(reader, 1 << 16):
            read += got
        self.assertEqual((a.process.wait(20), b.code(20)), (0, 0))
        self.assertEqual(read.replace(b"[1] ", b""), text)

    def test_log_files_are_named_by_the_ranks_of_the_job(self):
        logs = os.path.join(self.job().folder.name, "logs")
        job, _, _ = self.pair("echo $RANK", "--log-dir", logs, ranks=2)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        for rank in range(4):
            with open(os.path.join(logs, f"rank_{rank}.stdout.log"), encoding="ascii") as file:
                self.assertEqual(file.read(), f"{rank}\n")


class FailureTest(HostsTest):
    # fault: 1
    def test_the_report_names_rank_host_and_pid(self):
        for failing, host in (("1", "a"), ("3", "b")):
            job, a, b = self.pair(f'test $RANK = {failing} || exec sleep 1000; echo oops >&2; exit 7', ranks=2)
            self.assertEqual(job.codes(), [7, 7], job.texts())
            self.assertRegex(a.error, rf"rank {failing} \(host {host}, pid \d+\) exited with code 7")
            self.assertIn("| oops", a.error)
            self.assertRegex(b.error, rf"the job has ended: rank {failing} \(host {host}, pid \d+\) exited with code 7")
            self.assert_nothing_left(job)

    def test_a_killed_rank_ends_the_job_at_once(self):
        job, a, _ = self.running(2)
        pid = int(re.search(r"rank 3 pid (\d+)", a.output)[1])
        start = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(job.codes(), [137, 137], job.texts())
        self.assertLess(time.monotonic() - start, 5)
        self.assertRegex(a.error, rf"rank 3 \(host b, pid {pid}\) was killed by SIGKILL")
        self.assert_nothing_left(job)

    def test_restarts_on_all_hosts(self):
        script = 'echo $RANK of $RESTART_COUNT; test $RANK != 3 || test $RESTART_COUNT = 2'
        job, a, b = self.pair(script, "--max-restarts", "2", ranks=2)
        self.assertEqual(job.codes(), [0, 0], job.texts())
        self.assertEqual(re.findall(r"restart \d of \d", a.error), ["restart 1 of 2", "restart 2 of 2"])
        self.assertEqual(re.findall(r"restart \d of \d", b.error), ["restart 1 of 2", "restart 2 of 2"])
        self.assertEqual(len([line for line in a.output.splitlines() if line.endswith("of 2")]), 4, job.texts())

    def test_the_report_as_json(self):
        path = os.path.join(self.job().folder.name, "report.json")
        job, _, _ = self.pair('test $RANK != 2 || exit 5', "--report", path, ranks=2)
        self.assertEqual(job.codes(), [5, 5], job.texts())
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["exit_code"], len(report["attempts"][0]["ranks"])), (5, 4))

    # fault: 9
    def test_a_lost_agent_ends_the_job_and_its_ranks(self):
        job, a, b = self.running(2)
        b.process.kill()
        self.assertEqual(a.code(), 3, job.texts())
        self.assertIn("host b (ranks 2 to 3) is lost: its agent has closed the connection", a.error)
        self.assert_nothing_left(job)

    # fault: 9
    def test_agents_that_die_together_are_all_lost(self):
        job = self.job("--nnodes", "8")
        a = job.start("a", FOREVER, "--node-rank", "0", ranks=1)
        others = [job.start(name, FOREVER, ranks=1) for name in "bcdefgh"]
        for rank in range(8):
            self.assertTrue(a.says(f"rank {rank} pid", stream="out"), job.texts())
        for other in others:
            other.process.kill()
        self.assertEqual(a.code(20), 3, job.texts())
        self.assertEqual(a.error.count("is lost"), 7, job.texts())
        self.assert_nothing_left(job)

    def test_a_lost_host_is_in_the_report(self):
        path = os.path.join(self.job().folder.name, "report.json")
        job, a, b = self.running(2, FOREVER, "--report", path)
        b.process.kill()
        self.assertEqual(a.code(), 3, job.texts())
        with open(path, encoding="utf-8") as file:
            attempt = json.load(file)["attempts"][0]
        self.assertEqual([(lost["host"], lost["first_rank"], lost["ranks"]) for lost in attempt["lost_hosts"]],
                         [("b", 2, 2)])
        self.assertIn("closed the connection", attempt["lost_hosts"][0]["why"])

    def test_a_rank_that_failed_before_a_host_is_lost_is_the_cause(self):
        go = os.path.join(self.job().folder.name, "go")
        script = ('trap "echo told" TERM; echo "rank $RANK pid $$"; '
                  f'while :; do test $RANK = 0 -a -e {go} && exit 7; sleep 0.05; done')
        job, a, b = self.running(1, script)
        with open(go, "wb"):
            pass
        self.assertTrue(a.says("told", stream="out"), job.texts())  # since rank 0 has failed
        b.process.kill()
        self.assertEqual(a.code(), 7, job.texts())
        self.assertRegex(a.error, r"rank 0 \(host a, pid \d+\) exited with code 7")

    def test_a_host_that_comes_back_at_once_is_taken(self):
        job = self.job("--nnodes", "2", "--max-restarts", "1")
        script = 'echo "rank $RANK pid $$"; test $LOCKSTEP_GENERATION = 1 || exec sleep 1000'
        a = job.start("a", script, "--node-rank", "0", ranks=1)
        b = job.start("b", script, "--node-rank", "1", ranks=1)
        self.assertTrue(a.says("rank 1 pid", stream="out"), job.texts())
        again = job.start("b2", script, "--node-rank", "1", ranks=1)
        self.assertTrue(a.says("cannot join: node rank 1 belongs to host b"), job.texts())
        b.process.kill()
        self.assertEqual((a.code(), again.code()), (0, 0), job.texts())
        self.assertEqual(a.error.count("cannot join: node rank 1 belongs to host b"), 1, job.texts())

    # fault: 13
    def test_the_lost_first_agent_ends_the_others(self):
        job, a, b = self.running(2)
        a.process.kill()
        self.assertEqual(b.code(), 3, job.texts())
        self.assertIn("the first host", b.error)
        self.assertIn("is lost", b.error)
        self.assert_nothing_left(job)

    # fault: 10
    def test_a_stopped_agent_whose_ranks_are_well_is_waited_for(self):
        for stopped in (1, 0):
            job, *agents = self.running(1)
            agents[stopped].process.send_signal(signal.SIGSTOP)
            if stopped == 1:
                self.assertTrue(agents[0].says("the agent of host b does not answer"), job.texts())
            else:
                time.sleep(4)  # what is silent for longer than 2.5 s is told from a host that is gone
            agents[stopped].process.send_signal(signal.SIGCONT)
            if stopped == 1:
                self.assertTrue(agents[0].says("the agent of host b answers again"), job.texts())
            agents[1].process.send_signal(signal.SIGINT)
            self.assertEqual(job.codes(), [75, 75], job.texts())
            self.assertNotIn("is lost", job.texts())
            self.assert_nothing_left(job)

    # fault: 10
    def test_ranks_that_are_to_end_do_not_wait_for_a_stopped_agent_for_ever(self):
        job, a, b = self.running(1, FOREVER, "--stop-grace", "1", "--shutdown-timeout", "1")
        b.process.send_signal(signal.SIGSTOP)
        self.assertTrue(a.says("does not answer, although its host does"), job.texts())
        a.process.send_signal(signal.SIGINT)
        self.assertEqual(a.code(20), 75, job.texts())
        self.assertIn("its agent has been silent for", a.error)
        b.process.send_signal(signal.SIGCONT)
        self.assertEqual(b.code(), 3, job.texts())
        self.assert_nothing_left(job)


class StopTest(HostsTest):
    script = 'trap "echo saved $RANK; exit 0" INT TERM; echo "rank $RANK pid $$"; while :; do sleep 0.05; done'

    # fault: 50
    def test_a_signal_at_any_host_ends_all(self):
        for at in (0, 1):
            for sent in (signal.SIGINT, signal.SIGTERM):
                job, a, _ = self.running(2, self.script)
                job.agents[at].process.send_signal(sent)
                self.assertEqual(job.codes(), [75, 75], job.texts())
                self.assertEqual(a.output.count("saved"), 4, job.texts())
                self.assert_nothing_left(job)

    # fault: 50
    def test_who_does_not_save_has_stopped_before_the_end_too(self):
        job, a, _ = self.running(1)
        a.process.send_signal(signal.SIGTERM)
        self.assertEqual(job.codes(), [75, 75], job.texts())
        self.assert_nothing_left(job)

    # fault: 50
    def test_the_second_signal_kills(self):
        job, a, _ = self.running(1, 'trap "" INT TERM; echo "rank $RANK pid $$"; while :; do sleep 0.05; done')
        a.process.send_signal(signal.SIGINT)
        self.assertTrue(a.says("stopping the job"), job.texts())
        a.process.send_signal(signal.SIGINT)
        self.assertEqual(job.codes(20), [75, 75], job.texts())
        self.assert_nothing_left(job)

    # fault: 50
    def test_only_a_second_signal_at_the_same_host_kills(self):
        job, a, b = self.running(1, 'trap "" INT TERM; echo "rank $RANK pid $$"; while :; do sleep 0.05; done')
        b.process.send_signal(signal.SIGINT)
        self.assertTrue(a.says("stopping the job"), job.texts())
        time.sleep(1.1)  # sooner it is the same request
        a.process.send_signal(signal.SIGTERM)
        self.assertFalse(a.says("again: killing the ranks", 1), job.texts())
        b.process.send_signal(signal.SIGINT)
        self.assertEqual(job.codes(10), [75, 75], job.texts())
        self.assertIn("SIGINT at host b again: killing the ranks", a.error)

    def test_who_waits_for_others_stops_at_once(self):
        job = self.job("--nnodes", "2")
        a = job.start("a", "true", "--node-rank", "0")
        self.assertTrue(a.says("waiting for 1 more host"), job.texts())
        a.process.send_signal(signal.SIGINT)
        self.assertEqual(a.code(5), 75, job.texts())


if __name__ == "__main__":
    LOCKSTEP, LINES = sys.argv[1:3]
    HELLO = sys.argv[3] if len(sys.argv) > 3 and os.path.exists(sys.argv[3]) else ""
    names = [name for name in sys.argv[3:] if not os.path.exists(name)]
    unittest.main(argv=sys.argv[:1] + names, verbosity=2)
