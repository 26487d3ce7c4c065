"""`lockstep run --on-event` and `--log-format json`: events_test.py <lockstep>"""

import json
import os
import re
import signal
import sys
import tempfile
import textwrap
import time
import unittest

from agents import Job
from processes import PausedReader, Tree, wait_for

LOCKSTEP = ""
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class HookTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.told = os.path.join(self.folder.name, "told")

    def hook(self, script, name="hook"):
        path = os.path.join(self.folder.name, name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{script.format(told=self.told)}\n")
        return path

    def run_job(self, hook, script, *options, ranks=2):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), "--on-event", hook, *options, "sh", "-c", script]
        tree = Tree(command)
        self.addCleanup(tree.__exit__)
        return tree

    def command(self, pid):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode().strip()

    def events(self):
        if not os.path.exists(self.told):
            return []
        with open(self.told, encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def names(self):
        return [event["event"] for event in self.events()]

    def test_start_restart_and_end(self):
        tree = self.run_job(self.hook("cat >> {told}"), "test $RANK = 0 -o $RESTART_COUNT = 1 || exit 3",
                            "--max-restarts", "1", "--rdzv-id", "night")
        code, _, error = tree.finish()
        self.assertEqual(code, 0, error)
        start, restart, end = self.events()
        self.assertEqual([each["event"] for each in (start, restart, end)], ["start", "restart", "end"])
        self.assertEqual([each["attempt"] for each in (start, restart, end)], [0, 1, 1])
        for each in (start, restart, end):
            self.assertRegex(each["time"], TIME)
            self.assertEqual((each["job"], each["run_id"], each["world_size"]), (start["job"], "night", 2))
            self.assertEqual([host["ranks"] for host in each["hosts"]], [[0, 1]])
        self.assertIsNone(start["cause"])
        self.assertEqual((restart["cause"]["rank"], restart["cause"]["failure"]), (1, "exited with code 3"))
        self.assertEqual((end["exit_code"], end["cause"], end["stopped_by"]), (0, None, None))

    def test_a_failure_is_the_cause_of_the_end(self):
        script = "test $RANK = 0 && sleep 100; echo 'terminate called after throwing an instance' >&2; exit 7"
        code, _, error = self.run_job(self.hook("cat >> {told}"), script).finish()
        end = self.events()[-1]
        self.assertEqual((code, end["exit_code"], end["cause"]["rank"]), (7, 7, 1), error)

    def test_a_request_to_stop(self):
        tree = self.run_job(self.hook("cat >> {told}"), "trap 'exit 0' INT; echo ready; sleep 100 & wait")
        tree.read_lines(2)
        os.kill(tree.pid, signal.SIGINT)
        self.assertEqual(tree.finish()[0], 75)
        self.assertEqual([(each["event"], each["stopped_by"]) for each in self.events()],
                         [("start", None), ("stop", "SIGINT"), ("end", "SIGINT")])

    def test_what_it_prints_and_that_it_fails_is_said(self):
        hook = self.hook("cat > /dev/null; echo printed; echo complained >&2; printf last; exit 5")
        code, output, error = self.run_job(hook, "true").finish()
        self.assertEqual((code, output), (0, ""))
        for line in ("on-event: printed", "on-event: complained", "on-event: last",
                     "warning: the program of --on-event exited with code 5 for event 'start'"):
            self.assertIn(f"lockstep: {line}\n", error)

    def test_it_need_not_read_and_what_it_leaves_is_not_waited_for(self):
        begin = time.monotonic()
        code, _, error = self.run_job(self.hook("sleep 1000 & exit 0"), "true").finish()
        self.assertEqual((code, error.count("warning")), (0, 0), error)
        self.assertLess(time.monotonic() - begin, 25)

    def test_a_reader_that_pauses_does_not_hold_it_up_for_long(self):
        hook = self.hook("seq 100000; cat >> {told}")
        with PausedReader() as paused:
            command = [LOCKSTEP, "run", "--nproc-per-node", "1", "--on-event", hook, "true"]
            with Tree(command, stderr=paused.writer) as tree:
                self.assertTrue(wait_for(lambda: self.names() == ["start", "end"]))
                os.kill(tree.pid, signal.SIGTERM)  # until then the reader may go on
                self.assertEqual(tree.process.wait(10), 0)

    # The launcher reaps orphans by itself: it must not take this child for one.
    def test_how_it_ends_is_known_while_ranks_run(self):
        tree = self.run_job(self.hook("exit 9"), "echo ready; sleep 3")
        _, _, error = tree.finish()
        self.assertEqual(error.count("exited with code 9"), 2, error)

    def test_it_does_not_delay_the_job_and_events_stay_in_order(self):
        hook = self.hook("read line; test -e {told} || sleep 2; echo \"$line\" >> {told}")
        tree = self.run_job(hook, "test $RESTART_COUNT = 3 && echo over; test $RESTART_COUNT = 3",
                            "--max-restarts", "3", ranks=1)
        self.assertEqual(tree.read_lines(1), ["over"])
        self.assertEqual(self.events(), [])  # the first one has not ended
        self.assertEqual(tree.finish()[0], 0)
        self.assertEqual(self.names(), ["start", "restart", "restart", "restart", "end"])

    def test_a_second_signal_does_not_wait_for_it(self):
        tree = self.run_job(self.hook("exec sleep 1000"), "exit 0")
        self.assertTrue(wait_for(lambda: [self.command(pid) for pid in tree.survivors()] == ["sleep 1000"]))
        os.kill(tree.pid, signal.SIGINT)
        begin = time.monotonic()
        _, _, error = tree.finish()
        self.assertLess(time.monotonic() - begin, 10)
        self.assertIn("did not finish in time for event 'start' and was killed", error)
        self.assertEqual(tree.wait_until_gone(3), [])

    def test_a_job_that_is_stopped_does_not_wait_for_one_that_hangs(self):
        script = "trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.02; done"
        for number in (signal.SIGTERM, signal.SIGINT):
            tree = self.run_job(self.hook("exec sleep 1000"), script, ranks=1)
            tree.read_lines(1)
            os.kill(tree.pid, number)
            begin = time.monotonic()
            code, _, error = tree.finish()
            self.assertEqual(code, 75, error)
            self.assertLess(time.monotonic() - begin, 15)
            self.assertIn("did not finish in time for event 'start' and was killed", error)

    def test_a_host_that_is_stopped_does_not_wait_for_one_that_hangs(self):
        script = "trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.02; done"
        hook = self.hook("exec sleep 1000")
        for number in (signal.SIGTERM, signal.SIGINT):
            with Job(LOCKSTEP, "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=0", "--on-event", hook) as job:
                a = job.start("a", script, ranks=1)
                self.assertTrue(a.says("ready", stream="out"), job.texts())
                a.process.send_signal(number)
                begin = time.monotonic()
                self.assertEqual(a.code(), 75, job.texts())
                self.assertLess(time.monotonic() - begin, 15, job.texts())
                self.assertIn("did not finish in time for event 'start' and was killed", a.error)

    def test_one_that_cannot_be_run_is_refused(self):
        closed = os.path.join(self.folder.name, "closed")
        with open(closed, "w", encoding="ascii"):
            pass
        for hook, why in (("/no/such/hook", "no such file"), (closed, "")):
            code, output, error = self.run_job(hook, "echo started").finish()
            self.assertEqual((code, output), (2, ""), error)
            self.assertIn("lockstep: --on-event: ", error)
            self.assertIn(why, error.lower())

    def test_several_hosts_tell_of_a_host_that_is_lost(self):
        hook = self.hook("cat >> {told}")
        with Job(LOCKSTEP, "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=60", "--on-event", hook) as job:
            script = "trap 'exit 0' TERM INT; echo ready; sleep 100 & wait"
            a = job.start("a", script, "--node-rank", "0")
            b = job.start("b", script)
            self.assertTrue(wait_for(lambda: a.output.count("ready") == 4, 30), job.texts())
            b.process.kill()
            self.assertTrue(wait_for(lambda: self.names() == ["start", "loss", "restart"], 30), job.texts())
            start, loss, restart = self.events()
            self.assertEqual(start["hosts"], [{"host": "a", "ranks": [0, 1]}, {"host": "b", "ranks": [2, 3]}])
            self.assertEqual((loss["cause"]["host"], restart["world_size"]), ("b", 2))
            self.assertTrue(wait_for(lambda: a.output.count("ready") == 6, 30), job.texts())
            a.process.send_signal(signal.SIGINT)
            self.assertEqual(a.code(), 75, job.texts())
            self.assertEqual([(each["event"], each.get("exit_code")) for each in self.events()[3:]],
                             [("stop", None), ("end", 75)])

    def test_hosts_that_leave_stop_the_job_if_they_are_all(self):
        for leaving, code, told in (("ab", 75, ["start", "stop", "end"]), ("a", 5, ["start", "end"])):
            report = os.path.join(self.folder.name, "report.json")
            script = "trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.02; done"
            with Job(LOCKSTEP, "--nnodes", "1:2") as job:
                job.start("a", script, "--on-event", self.hook("cat >> {told}"), "--report", report, ranks=1)
                job.start("b", script, ranks=1)
                self.assertTrue(wait_for(lambda job=job: job.agents[0].output.count("ready") == 2, 30), job.texts())
                for agent in job.agents[:len(leaving)]:
                    agent.process.send_signal(signal.SIGTERM)
                self.assertEqual(job.agents[0].code(), code, job.texts())
            self.assertEqual(self.names(), told)
            for event in self.events()[1:]:
                self.assertEqual((event["stopped_by"], event["cause"]), ("SIGTERM", None))
            self.assertEqual(self.events()[-1]["exit_code"], code)
            with open(report, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["stopped_by"], "SIGTERM")
            os.unlink(self.told)


class LogFormatTest(unittest.TestCase):
    def lines(self, text):
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            self.assertRegex(line["time"], TIME)
            self.assertTrue(line["host"])
        return lines

    def run_job(self, script, *options, ranks=2, environment=None):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, "sh", "-c", script]
        with Tree(command, environment) as tree:
            return tree.finish()

    def test_every_line_is_an_object(self):
        script = r"""echo "a \"b\"	c"; printf 'x\377y\n'; echo err >&2; printf part; exit $RANK"""
        code, output, error = self.run_job(script, "--log-format", "json")
        self.assertEqual(code, 1)
        for rank in (0, 1):
            mine = [line for line in self.lines(output) if line["rank"] == rank]
            self.assertEqual([line["message"] for line in mine], ['a "b"\tc', "x\ufffdy", "part"])
            self.assertEqual({(line["attempt"], line["stream"]) for line in mine}, {(0, "stdout")})
        lines = self.lines(error)
        self.assertEqual([line["message"] for line in lines if line.get("rank") == 1], ["err"])
        own = [line for line in lines if "rank" not in line]
        self.assertEqual({line["level"] for line in own}, {"info", "error"})
        self.assertIn("2 ranks on this machine", own[0]["message"])

    def test_one_rank_attempts_and_the_variable(self):
        script = "test $RESTART_COUNT = 1 && echo $LOCKSTEP_LOG_FORMAT"
        code, output, error = self.run_job(script, "--max-restarts", "1", ranks=1,
                                           environment={"LOCKSTEP_LOG_FORMAT": "json", "LOCKSTEP_NODE": "n7"})
        self.assertEqual(code, 0, error)
        line, = self.lines(output)
        self.assertEqual((line["host"], line["rank"], line["attempt"], line["message"]), ("n7", 0, 1, "json"))
        self.assertEqual(self.lines(error)[-1]["attempt"], 1 if "restart" not in error.splitlines()[-1] else 0)

    def test_what_lockstep_says_in_a_rank_keeps_its_time_and_level(self):
        said = '{"time":"2020-01-02T03:04:05.678Z","level":"warning","host":"x","rank":5,"message":"slow"}'
        forged = '{"time":"2020-01-02T03:04:05.678Z","level":"warning","user":"x","message":"slow"}'
        _, _, error = self.run_job(f"echo '{said}' >&2; echo '{forged}' >&2", "--log-format", "json", ranks=1)
        own, other = [line for line in self.lines(error) if "rank" in line]
        self.assertEqual((own["time"], own["level"], own["rank"], own["message"]),
                         ("2020-01-02T03:04:05.678Z", "warning", 0, "slow"))
        self.assertEqual((other.get("level"), other["message"]), (None, forged))

    def test_long_lines_are_cut_between_characters(self):
        script = "head -c 60000 /dev/zero | tr '\\0' '\\1'; echo"
        code, output, _ = self.run_job(script, "--log-format", "json")
        self.assertEqual(code, 0)
        lines = self.lines(output)
        for rank in (0, 1):
            self.assertEqual("".join(line["message"] for line in lines if line["rank"] == rank), "\1" * 60000)

    def test_errors_before_the_start_are_objects_too(self):
        command = [LOCKSTEP, "run", "--log-format", "json", "/no/such/program"]
        with Tree(command) as tree:
            code, _, error = tree.finish()
        self.assertEqual((code, [line["level"] for line in self.lines(error)]), (127, ["error"]))

    def test_text_is_as_ever(self):
        _, output, error = self.run_job("echo a", "--log-format", "text")
        self.assertEqual(sorted(output.splitlines()), ["[0] a", "[1] a"])
        self.assertRegex(error, "^lockstep: 2 ranks on this machine")

    def test_hosts_are_named(self):
        with Job(LOCKSTEP, "--nnodes", "2", "--rdzv-id", "night", "--log-format", "json") as job:
            a = job.start("a", "echo on $LOCKSTEP_NODE", "--node-rank", "0")
            b = job.start("b", "echo on $LOCKSTEP_NODE; head -c 60000 /dev/zero | tr '\\0' '\\1' >&2")
            self.assertEqual(job.codes(), [0, 0], job.texts())
            for line in self.lines(a.output):
                self.assertEqual(line["message"], f"on {line['host']}")
            self.assertEqual(sorted(line["rank"] for line in self.lines(a.output)), [0, 1, 2, 3])
            self.assertEqual({line["host"] for line in self.lines(a.error)}, {"a", "b"})
            self.lines(b.error)


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
