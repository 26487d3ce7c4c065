"""Jobs that are watched: metrics_test.py <lockstep> <metrics_worker>"""

import contextlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import picture

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launch"))
from agents import Job  # noqa: E402
from processes import Tree, rank_process, wait_for  # noqa: E402

LOCKSTEP = ""
WORKER = ""
PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
SHARE = os.path.join(PROJECT, "share", "lockstep")
PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")
LINE = re.compile(r'(\w+)\{(.*)\} (\S+)')


def get(url):
    """(status, text)"""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Metrics(dict):
    """From (name, labels) to the value: m("lockstep_steps_total", rank=1)"""

    def __init__(self, text):
        super().__init__()
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            name, labels, value = LINE.fullmatch(line).groups()
            self[name, frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))] = float(value)

    def all(self, name, /, **labels):
        wanted = {(key, str(value)) for key, value in labels.items()}
        return {of: value for (found, of), value in self.items() if found == name and wanted <= of}

    def __call__(self, name, /, **labels):
        found = list(self.all(name, **labels).values())
        return found[0] if len(found) == 1 else math.nan

    def names(self):
        return {name for name, _ in self}


class WatchedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.addCleanup(self.touch, "stop")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def touch(self, name):
        with contextlib.suppress(OSError):  # the folder may be gone
            with open(self.path(name), "w", encoding="ascii"):
                pass

    def start(self, *options, program=None, environment=None, ranks=2):
        command = [LOCKSTEP, "run", "--nproc-per-node", str(ranks), *options, *(program or [WORKER, self.folder])]
        with open(self.path("error"), "wb") as error:
            tree = Tree(command, environment, stderr=error)
        self.addCleanup(tree.__exit__)
        return tree

    def error(self):
        with contextlib.suppress(FileNotFoundError), open(self.path("error"), encoding="utf-8") as file:
            return file.read()
        return ""

    def serve(self, *options, port="0", **more):
        """The tree, and where it serves."""
        tree = self.start("--metrics-port", port, *options, **more)
        found = wait_for(lambda: re.search(r"metrics are at (http://\S+)/metrics\n", self.error()), 20)
        self.assertTrue(found, self.error())
        return tree, found[1]

    def metrics(self, url):
        status, text = get(url + "/metrics")
        self.assertEqual(status, 200)
        return Metrics(text)

    def wait(self, url, condition, timeout=60):
        """The first metrics for which the condition holds."""
        found = wait_for(lambda: (lambda m: m if condition(m) else None)(self.metrics(url)), timeout)
        self.assertTrue(found, f"{get(url + '/metrics')[1]}\n{self.error()}")
        return found


class MetricsTest(WatchedTest):
    def test_what_ranks_do_is_counted(self):
        began = time.time()
        tree, url = self.serve("--rdzv-id", "nightly")
        m = self.wait(url, lambda m: m("lockstep_steps_total", rank=0) >= 30)
        self.assertEqual(m("lockstep_job_info", program="metrics_worker", run_id="nightly"), 1)
        self.assertEqual((m("lockstep_world_size"), m("lockstep_hosts"), m("lockstep_attempts_total")), (2, 1, 1))
        self.assertEqual((m("lockstep_job_state", state="running"), m("lockstep_ranks", state="running")), (1, 2))
        self.assertEqual(sum(m.all("lockstep_job_state").values()), 1)
        self.assertEqual((m("lockstep_restarts_total"), sum(m.all("lockstep_failures_total").values())), (0, 0))
        self.assertEqual(len(m.all("lockstep_failures_total")), 5)
        for rank in (0, 1):
            steps = m("lockstep_steps_total", rank=rank)
            self.assertLessEqual(abs(m("lockstep_samples_total", rank=rank) - 8 * steps), 8)
            self.assertGreater(m("lockstep_operations_total", rank=rank), steps)
            self.assertTrue(0 < m("lockstep_value", rank=rank, name="loss") < 10)
            self.assertEqual(m("lockstep_value", rank=rank, name="learning_rate"), 0.01)
            self.assertEqual(m("lockstep_checkpoints_total", rank=rank), 1)
            for phase in ("data", "forward", "backward"):
                self.assertGreater(m("lockstep_step_seconds_total", rank=rank, phase=phase), 0, phase)
        # Rank 1 is late by 10 ms, for which rank 0 waits.
        self.assertTrue(0.002 < m("lockstep_lateness_seconds", rank=1) < 1)
        self.assertLess(m("lockstep_lateness_seconds", rank=0), m("lockstep_lateness_seconds", rank=1))
        waiting = [m("lockstep_step_seconds_total", rank=rank, phase="waiting") for rank in (0, 1)]
        self.assertGreater(waiting[0], 0.2)
        self.assertGreater(waiting[0], waiting[1])
        saved = m("lockstep_last_checkpoint_timestamp_seconds")
        self.assertTrue(began <= saved <= time.time(), (began, saved, time.time()))
        self.assertTrue(began <= m("lockstep_job_start_time_seconds") <= time.time())
        self.touch("stop")
        self.assertEqual(tree.finish()[0], 0, self.error())

    def test_counters_go_on_after_a_restart(self):
        tree, url = self.serve("--max-restarts", "2")
        before = self.wait(url, lambda m: m("lockstep_steps_total", rank=0) >= 10)
        os.kill(rank_process(tree.pid, 1), signal.SIGKILL)
        m = self.wait(url, lambda m: m("lockstep_restarts_total") == 1 and m("lockstep_ranks", state="running") == 2)
        self.assertEqual((m("lockstep_failures_total", kind="signal"), m("lockstep_attempts_total")), (1, 2))
        self.assertEqual(sum(m.all("lockstep_failures_total").values()), 1)
        at_restart = m("lockstep_steps_total", rank=0)
        self.assertGreaterEqual(at_restart, before("lockstep_steps_total", rank=0))
        m = self.wait(url, lambda m: m("lockstep_checkpoints_total", rank=0) == 2)
        self.assertGreaterEqual(m("lockstep_steps_total", rank=0), at_restart)
        self.touch("stop")
        self.assertEqual(tree.finish()[0], 0, self.error())

    def test_kinds_of_failures(self):
        path = self.path("job.prom")
        self.start("--metrics-textfile", path, "--max-restarts", "1",
                   program=["sh", "-c", 'exit "$((RANK + 3))"']).process.wait(30)
        with open(path, encoding="utf-8") as file:
            m = Metrics(file.read())
        self.assertEqual(m("lockstep_failures_total", kind="exit_code"), 2)
        self.assertEqual((m("lockstep_job_state", state="failed"), m("lockstep_restarts_total")), (1, 1))

    def test_health_while_a_job_hangs_and_moves_again(self):
        _, url = self.serve(environment={"LOCKSTEP_HANG_SECONDS": "2"})
        self.wait(url, lambda m: m("lockstep_steps_total", rank=0) >= 3)
        self.assertEqual(get(url + "/healthz"), (200, "running\n"))
        self.touch("hang")
        self.assertTrue(wait_for(lambda: get(url + "/healthz")[0] == 503, 30), self.error())
        self.assertRegex(get(url + "/healthz")[1],
                         r"^the job hangs: no progress for .*: rank 0 waits in .* for rank 1\n$")
        self.assertEqual(self.metrics(url)("lockstep_job_hanging"), 1)
        os.unlink(self.path("hang"))
        self.assertTrue(wait_for(lambda: get(url + "/healthz")[0] == 200, 30), self.error())
        self.assertEqual(self.metrics(url)("lockstep_job_hanging"), 0)

    def test_other_requests(self):
        _, url = self.serve(program=["sleep", "1000"], ranks=1)
        self.assertEqual(get(url + "/")[0], 404)
        self.assertEqual(get(url + "/../../etc/passwd")[0], 404)
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        self.addCleanup(connection.close)
        connection.request("POST", "/metrics", body="x")
        self.assertEqual(connection.getresponse().status, 405)
        # Whoever connects and says nothing keeps nobody else from asking.
        silent = [socket.create_connection(connection_address(url)) for _ in range(70)]
        self.addCleanup(lambda: [each.close() for each in silent])
        self.assertEqual(get(url + "/healthz")[0], 200)


def connection_address(url):
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


class AddressTest(WatchedTest):
    SLEEP = ["sleep", "1000"]

    def listening(self, url, table):
        port = f":{connection_address(url)[1]:04X}"
        with open("/proc/net/" + table, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        return [row[1].partition(":")[0] for row in rows if row[1].endswith(port) and row[3] == "0A"]

    def test_a_port_alone_is_of_the_loopback(self):
        _, url = self.serve(program=self.SLEEP)
        self.assertEqual(self.listening(url, "tcp"), ["0100007F"])
        self.assertEqual(self.listening(url, "tcp6"), [])

    def test_an_address_is_listened_at(self):
        _, url = self.serve(port="[::1]:0", program=self.SLEEP)
        self.assertRegex(url, r"^http://\[::1\]:\d+$")
        self.assertEqual(get(url + "/healthz")[0], 200)
        self.assertEqual(self.listening(url, "tcp6"), ["00000000000000000000000001000000"])

    def test_a_taken_port_is_an_error_before_ranks_start(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            tree = self.start("--metrics-port", str(port), program=["touch", self.path("started")])
            self.assertEqual(tree.finish()[0], 2)
        self.assertRegex(self.error(), rf"^lockstep: cannot serve metrics: .*127.0.0.1:{port}: .*process {os.getpid()} "
                                       ".*; if the port is taken, choose another, or 0 for a free one")
        self.assertFalse(os.path.exists(self.path("started")))

    def test_what_is_no_port(self):
        for text in ("", "65536", "x", "host", "1:2:3", "::1"):
            tree = self.start("--metrics-port", text, program=["true"])
            self.assertEqual(tree.finish()[0], 2, text)
            self.assertIn("--metrics-port", self.error())

    def test_ranks_inherit_nothing_of_it(self):
        tree, _ = self.serve(program=["sh", "-c", "sleep 1000; true"], ranks=1)
        pid = wait_for(lambda: rank_process(tree.pid, 0))
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            ignored = int(re.search(r"SigIgn:\t(\w+)", file.read())[1], 16)
        self.assertFalse(ignored >> signal.SIGPIPE - 1 & 1)
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        self.assertFalse([link for link in links if link.startswith("socket:")], links)


class TextfileTest(WatchedTest):
    def test_it_is_there_from_the_beginning_to_the_end(self):
        path = self.path("job.prom")
        tree = self.start("--metrics-textfile", path)
        self.assertTrue(wait_for(lambda: os.path.exists(path), 20), self.error())
        # node_exporter is another user.
        self.assertTrue(wait_for(lambda: stat.S_IMODE(os.stat(path).st_mode) == 0o644), self.error())

        def read():
            with open(path, encoding="utf-8") as file:
                return Metrics(file.read())

        self.assertTrue(wait_for(lambda: read()("lockstep_steps_total", rank=1) > 0, 40), self.error())
        self.touch("stop")
        self.assertEqual(tree.finish()[0], 0, self.error())
        self.assertEqual(read()("lockstep_job_state", state="succeeded"), 1)
        self.assertEqual(read()("lockstep_ranks", state="succeeded"), 2)
        self.assertEqual([name for name in os.listdir(self.folder) if "prom" in name], ["job.prom"])

    def test_a_file_that_cannot_be_written_is_an_error_before_ranks_start(self):
        os.mkdir(self.path("folder.prom"))
        for path in ("/nowhere/job.prom", self.path("folder.prom"), self.path("x" * 300 + ".prom"), "/proc/job.prom"):
            tree = self.start("--metrics-textfile", path, program=["touch", self.path("started")])
            self.assertEqual(tree.finish()[0], 2, self.error())
            self.assertTrue(self.error().startswith(f"lockstep: --metrics-textfile: saving {path}: "), self.error())
            self.assertFalse(os.path.exists(self.path("started")))

    def test_all_may_read_it_whatever_the_umask(self):
        mask = os.umask(0o077)
        try:
            tree = self.start("--metrics-textfile", self.path("job.prom"), program=["true"])
        finally:
            os.umask(mask)
        self.assertEqual(tree.finish()[0], 0, self.error())
        self.assertEqual(stat.S_IMODE(os.stat(self.path("job.prom")).st_mode), 0o644)


class HostsTest(WatchedTest):
    def job(self, *options):
        job = Job(LOCKSTEP, "--nnodes", "2", *options)
        self.addCleanup(job.__exit__)
        return job

    def url_of(self, agent):
        self.assertTrue(agent.says("metrics are at", 20), agent.error)
        return re.search(r"metrics are at (http://\S+)/metrics\n", agent.error)[1]

    def test_the_first_host_tells_of_all_ranks(self):
        job = self.job("--metrics-port", "0", "--max-restarts", "1")
        a = job.start("a", [WORKER, self.folder])
        url = self.url_of(a)
        self.assertEqual(get(url + "/healthz"), (200, "gathering\n"))
        b = job.start("b", [WORKER, self.folder])
        m = self.wait(url, lambda m: all(m("lockstep_steps_total", rank=rank) >= 10 for rank in range(4)))
        self.assertEqual((m("lockstep_world_size"), m("lockstep_hosts")), (4, 2), job.texts())
        for rank in range(4):
            self.assertEqual(len(m.all("lockstep_steps_total", rank=rank, host="ab"[rank // 2])), 1)
            self.assertTrue(0 < m("lockstep_value", rank=rank, name="loss") < 10)
            self.assertEqual(m("lockstep_checkpoints_total", rank=rank), 1)
        other = self.url_of(b)
        self.assertEqual(get(other + "/healthz"), (200, "running\n"))
        self.assertEqual(get(other + "/metrics"), (200, "# The first host of this job reports all of its ranks.\n"))

        os.kill(rank_process(b.pid, 3), signal.SIGKILL)
        m = self.wait(url, lambda m: m("lockstep_restarts_total") == 1 and m("lockstep_ranks", state="running") == 4)
        self.assertEqual(m("lockstep_failures_total", kind="signal"), 1)
        self.assertGreaterEqual(m("lockstep_steps_total", rank=3), 10)
        self.touch("stop")
        self.assertEqual(job.codes(), [0, 0], job.texts())

    def test_hosts_that_leave(self):
        job = Job(LOCKSTEP, "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=0")
        self.addCleanup(job.__exit__)
        program = "trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.02; done"
        a = job.start("a", program, "--metrics-port", "0", "--metrics-textfile", self.path("a.prom"))
        b = job.start("b", program, ranks=1)
        url = self.url_of(a)
        self.assertTrue(wait_for(lambda: a.output.count("ready") == 3, 30), job.texts())
        self.assertEqual(get(url + "/healthz"), (200, "running\n"))
        b.process.send_signal(signal.SIGTERM)
        self.assertEqual(b.code(), 5, job.texts())
        # Fewer than the least are there.
        m = self.wait(url, lambda m: m("lockstep_job_state", state="gathering") == 1)
        self.assertEqual((m("lockstep_hosts"), m("lockstep_world_size")), (1, 2))
        self.assertEqual(sum(m.all("lockstep_ranks").values()), 2)
        a.process.send_signal(signal.SIGTERM)
        self.assertEqual(a.code(), 75, job.texts())
        with open(self.path("a.prom"), encoding="utf-8") as file:
            self.assertEqual(Metrics(file.read())("lockstep_job_state", state="stopped"), 1)

    def test_the_first_host_leaves(self):
        job = Job(LOCKSTEP, "--nnodes", "1:2")
        self.addCleanup(job.__exit__)
        program = "trap 'exit 0' TERM INT; echo ready; while :; do sleep 0.02; done"
        a = job.start("a", program, "--metrics-textfile", self.path("a.prom"), ranks=1)
        job.start("b", program, ranks=1)
        self.assertTrue(wait_for(lambda: a.output.count("ready") == 2, 30), job.texts())
        a.process.send_signal(signal.SIGTERM)
        self.assertEqual(a.code(), 5, job.texts())
        with open(self.path("a.prom"), encoding="utf-8") as file:
            self.assertEqual(Metrics(file.read())("lockstep_job_state", state="stopped"), 1)

    def test_a_lost_host_counts(self):
        job = self.job("--metrics-port", "0", "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=2")
        a = job.start("a", [WORKER, self.folder], "--metrics-port", "0")
        b = job.start("b", [WORKER, self.folder])
        url = self.url_of(a)
        self.wait(url, lambda m: m("lockstep_steps_total", rank=3) >= 3)
        os.kill(b.pid, signal.SIGKILL)
        m = self.wait(url, lambda m: m("lockstep_attempts_total") == 2 and m("lockstep_ranks", state="running") == 2)
        self.assertEqual((m("lockstep_hosts_lost_total"), m("lockstep_failures_total", kind="lost_host")), (1, 1))
        self.assertEqual((m("lockstep_world_size"), m("lockstep_hosts")), (2, 1))
        self.assertEqual({dict(of)["host"] for of in m.all("lockstep_steps_total")}, {"a"})
        self.touch("stop")
        self.assertEqual(a.code(), 0, job.texts())


@unittest.skipUnless(PROMTOOL and PROMETHEUS, "needs Prometheus")
class PrometheusTest(WatchedTest):
    def promtool(self, *words, **more):
        done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60, check=False, **more)
        return done.returncode, done.stdout + done.stderr

    def ask(self, api, what, **parameters):
        """The series of a query; None while the server is not up."""
        with contextlib.suppress(OSError):
            status, text = get(f"{api}/api/v1/{what}?{urllib.parse.urlencode(parameters)}")
            if status == 503:
                return None
            self.assertEqual(status, 200, (text, parameters))
            return json.loads(text)["data"]["result"]

    def prometheus(self, url):
        """Where a Prometheus that scrapes the job every second answers."""
        shutil.copy(os.path.join(SHARE, "alerts.yml"), self.folder)
        with open(self.path("prometheus.yml"), "w", encoding="ascii") as file:
            json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"},  # JSON is YAML, too
                       "rule_files": ["alerts.yml"],
                       "scrape_configs": [{"job_name": "lockstep", "static_configs": [
                           {"targets": [url.removeprefix("http://")]}]}]}, file)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with open(self.path("prometheus.log"), "wb") as log:
            server = Tree([PROMETHEUS, "--config.file", self.path("prometheus.yml"), "--storage.tsdb.path",
                           self.path("data"), "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log)
        self.addCleanup(server.__exit__)
        api = f"http://127.0.0.1:{port}"
        found = wait_for(lambda: self.ask(api, "query", query="rate(lockstep_steps_total[10s]) > 0"), 60)
        with open(self.path("prometheus.log"), encoding="utf-8") as file:
            self.assertTrue(found, file.read())
        self.assertEqual({each["metric"]["rank"] for each in found}, {"0", "1"})
        return api

    def test_promtool_finds_nothing(self):
        _, url = self.serve()
        self.wait(url, lambda m: m("lockstep_checkpoints_total", rank=0) == 1)
        self.assertEqual(self.promtool("check", "metrics", input=get(url + "/metrics")[1]), (0, ""))

    def test_prometheus_scrapes_a_job_and_alerts(self):
        tree, url = self.serve("--max-restarts", "0", environment={"LOCKSTEP_HANG_SECONDS": "1"})
        api = self.prometheus(url)
        self.assertEqual([each["value"][1] for each in self.ask(api, "query", query='up{job="lockstep"}')], ["1"])
        self.assertEqual(self.ask(api, "query", query='{exported_job=~".+"}'), [])  # no label of ours is one of its own
        self.assertEqual(self.ask(api, "query", query='ALERTS{alertstate="firing"}'), [])
        self.touch("hang")
        firing = wait_for(lambda: self.ask(api, "query", query='ALERTS{alertstate="firing"}'), 60)
        self.assertEqual([each["metric"]["alertname"] for each in firing], ["LockstepJobHangs"])
        os.unlink(self.path("hang"))
        self.touch("stop")
        self.assertEqual(tree.finish()[0], 0, self.error())

    def test_all_rules_and_panels_ask_for_what_there_is(self):
        self.assertEqual(self.promtool("check", "rules", os.path.join(SHARE, "alerts.yml"))[0], 0)
        with open(os.path.join(SHARE, "grafana-dashboard.json"), encoding="utf-8") as file:
            dashboard = json.load(file)
        with open(os.path.join(SHARE, "alerts.yml"), encoding="utf-8") as file:
            rules = file.read()
        with open(os.path.join(PROJECT, "docs", "howto", "monitoring.md"), encoding="utf-8") as file:
            told = set(re.findall(r"`(lockstep_\w+)`", file.read()))
        tree, url = self.serve("--max-restarts", "1")
        there = self.wait(url, lambda m: m("lockstep_checkpoints_total", rank=0) == 1 and
                          m.all("lockstep_lateness_seconds")).names()
        self.assertEqual(told, there)
        self.assertLessEqual(set(re.findall(r"lockstep_\w+", json.dumps(dashboard) + rules)), there)

        api = self.prometheus(url)
        begin = time.time()
        seconds = float(os.environ.get("LOCKSTEP_TEST_PICTURE_SECONDS", "2"))
        self.wait(url, lambda m: time.time() - begin > seconds / 2, seconds + 60)
        os.kill(rank_process(tree.pid, 1), signal.SIGKILL)
        self.wait(url, lambda m: m("lockstep_restarts_total") == 1 and m("lockstep_checkpoints_total", rank=1) == 2)
        self.wait(url, lambda m: time.time() - begin > seconds, seconds + 60)
        panels = []
        for panel in dashboard["panels"]:
            series = {}
            for target in panel["targets"]:
                expression = target["expr"].replace("$job", ".+").replace("$__rate_interval", "5s")
                for each in self.ask(api, "query_range", query=expression, start=begin, end=time.time(), step="1s"):
                    label = re.sub(r"{{(\w+)}}", lambda name, of=each["metric"]: of[name[1]], target["legendFormat"])
                    points = [(at, float(value)) for at, value in each["values"]]
                    series[label] = [point for point in points if math.isfinite(point[1])]
            self.assertTrue(any(series.values()), panel["title"])
            panels.append((panel["title"], panel["type"], {name: found for name, found in series.items() if found}))
        self.draw(picture.page_of(panels))

    def draw(self, page):
        """docs/images/monitoring.png, if LOCKSTEP_TEST_PICTURE names it; takes LOCKSTEP_TEST_PICTURE_SECONDS."""
        target, chromium = os.environ.get("LOCKSTEP_TEST_PICTURE"), shutil.which("chromium")
        self.assertGreaterEqual(page.count("<svg"), 9)
        if not target or not chromium:
            return
        with open(self.path("page.html"), "w", encoding="utf-8") as file:
            file.write(page)
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                        "--hide-scrollbars", "--user-data-dir=" + self.path("profile"), "--window-size=1150,960",
                        "--screenshot=" + os.path.abspath(target), "file://" + self.path("page.html")],
                       check=True, timeout=120, capture_output=True, env={**os.environ, "HOME": self.folder})


if __name__ == "__main__":
    LOCKSTEP, WORKER = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
