"""`lockstep run --hosts` over real ssh: ssh_test.py <lockstep> <rendezvous_worker>

Two hosts are network namespaces with an sshd each; its keys are made here.
"""

import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "links"))
import links_test  # noqa: E402
from processes import Tree, process_state, wait_for  # noqa: E402

SKIPPED = 77
LOCKSTEP = ""
WORKER = ""
SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
PRIVILEGE_SEPARATION = "/run/sshd"
SERVER = """\
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
"""
CLIENT = """\
Host first
  HostName {addresses[0]}
Host second
  HostName {addresses[1]}
Host *
  User root
  IdentityFile {folder}/user_key
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


class SshHosts(links_test.Namespaces):
    """Two hosts with an sshd each, and a configuration of the client's that knows them as first and second."""

    def __enter__(self):
        super().__enter__()
        self.servers = []
        self.made_folder = not os.path.isdir(PRIVILEGE_SEPARATION)
        os.makedirs(PRIVILEGE_SEPARATION, mode=0o755, exist_ok=True)
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.path(key)], check=True)
        with open(self.path("host_key.pub"), encoding="ascii") as file:
            key = " ".join(file.read().split()[:2])
        self.write("known_hosts", "".join(f"{address} {key}\n" for address in self.addresses))
        self.write("client", CLIENT.format(folder=self.folder, addresses=self.addresses))
        os.mkdir(self.path("bin"))
        self.write("bin/ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.path("client")} "$@"\n')
        os.chmod(self.path("bin/ssh"), 0o755)
        for name, address in zip(self.names, self.addresses):
            self.write(f"server-{name}", SERVER.format(folder=self.folder, address=address))
            self.servers.append(subprocess.Popen(
                ["ip", "netns", "exec", name, SSHD, "-D", "-e", "-f", self.path(f"server-{name}")],
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE))
        for server in self.servers:  # it says so once it listens
            line = server.stderr.readline()
            while line and b"Server listening" not in line:
                line = server.stderr.readline()
        return self

    def __exit__(self, *unused):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for server in self.servers:
            server.kill()
            server.wait()
            server.stderr.close()
        if self.made_folder:
            os.rmdir(PRIVILEGE_SEPARATION)
        self.temporary.cleanup()
        super().__exit__()

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text)

    def processes(self, pattern=""):
        """What runs on the hosts, except the servers, and has this in its command line."""
        found = []
        for name in self.names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in set(map(int, pids)) - {server.pid for server in self.servers}:
                try:
                    with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                        if pattern in file.read().replace("\0", " "):
                            found.append(pid)
                except OSError:
                    pass
        return found


class SshTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = cls.enterClassContext(SshHosts())

    def start(self, *arguments, hosts="first,second", **options):
        command = ["ip", "netns", "exec", self.hosts.names[0], LOCKSTEP, "run", "--hosts", hosts, *arguments]
        path = f"{self.hosts.path('bin')}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": self.hosts.folder, **options.pop("environment", {})}
        tree = Tree(command, environment=environment, **options)
        self.addCleanup(tree.__exit__)
        return tree

    def expect_nothing_left(self):
        self.assertTrue(wait_for(lambda: not self.hosts.processes(), 15),
                        subprocess.run(["ps", "-ef"], capture_output=True, text=True).stdout)

    def run_over_ssh(self, *arguments, **options):
        result = self.start(*arguments, **options).finish(60)
        self.expect_nothing_left()
        return result

    # feature: J-09
    def test_ranks_of_both_hosts_form_a_world(self):
        code, output, error = self.run_over_ssh("--nproc-per-node", "2", WORKER, "join")
        ranks = sorted(map(int, re.findall(r"joined as rank (\d+) of 4", output)))
        self.assertEqual((ranks, code), ([0, 1, 2, 3], 0), output + error)
        self.assertRegex(error, r"4 ranks on 2 hosts")

    def test_hosts_have_their_numbers_of_ranks_in_their_order(self):
        script = 'echo "$RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE at ' \
                 '$(ip -o -4 address show cable | grep -o 10.213.7..)"'
        code, output, error = self.run_over_ssh("sh", "-c", script, hosts="second:1,first:2")
        self.assertEqual(code, 0, error)
        first, second = self.hosts.addresses
        self.assertEqual(sorted(re.sub(r"^\[\d\] ", "", line) for line in output.splitlines()),
                         [f"0 0 0 3 at {second}", f"1 0 1 3 at {first}", f"2 1 1 3 at {first}"])

    def test_this_host_needs_no_ssh_and_ranks_can_be_bound(self):
        code, output, error = self.run_over_ssh("--bind", "core", "sh", "-c", "echo $RANK $OMP_NUM_THREADS",
                                                hosts="localhost:2")
        self.assertEqual(code, 0, error)
        self.assertEqual(sorted(re.findall(r"^\[\d\] (\d) \d+$", output, re.M)), ["0", "1"], output)
        self.assertRegex(error, r"rank 0: CPUs [\d,-]+; rank 1: CPUs [\d,-]+ \(ranks of this host\)")

    def test_a_configuration_that_asks_for_a_terminal(self):
        with open(self.hosts.path("client"), encoding="ascii") as file:
            before = file.read()
        self.addCleanup(self.hosts.write, "client", before)
        self.hosts.write("client", before + "  RequestTTY yes\n")
        code, output, error = self.run_over_ssh("sh", "-c", "echo $RANK")
        self.assertEqual((code, sorted(re.findall(r"^\[\d\] (\d)$", output, re.M))), (0, ["0", "1"]), error)
        self.assertNotIn("Pseudo-terminal", error)

    def test_a_machine_that_makes_no_thread(self):
        with open(LOCKSTEP, "rb") as file:
            program = file.read()
        if b"libasan" in program or b"libtsan" in program:
            self.skipTest("the sanitizers make a thread of their own")
        copy = tempfile.NamedTemporaryFile()  # which another user can execute
        self.addCleanup(copy.close)
        shutil.copyfile(LOCKSTEP, copy.name)
        os.chmod(copy.name, 0o755)
        file = os.open(copy.name, os.O_RDONLY)
        copy.file.close()
        self.addCleanup(os.close, file)
        result = subprocess.run([f"/proc/self/fd/{file}", "run", "true"], capture_output=True, text=True, user=65534,
                                group=65534, extra_groups=[], pass_fds=[file], env={"HOME": "/nowhere"},
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)))
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("lockstep: Resource temporarily unavailable (is the limit on processes", result.stderr)

    def test_an_empty_list_of_hosts_is_refused(self):
        result = subprocess.run([LOCKSTEP, "run", "--hosts", "", "true"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--hosts: the list is empty", result.stderr)

    def test_arguments_variables_and_the_folder_arrive_as_they_are(self):
        words = ["it's", 'a "word"', "$HOME `id` \\", "two\nlines", "", "*", "ü"]
        program = "import json, os, sys; print(json.dumps([os.getcwd(), sys.argv[1:], os.environ['A'], " \
                  "os.environ['LOCKSTEP_LOG'], os.environ.get('SECRET')]))"
        folder = self.hosts.path("a folder")
        os.makedirs(folder, exist_ok=True)
        code, output, error = self.run_over_ssh(
            "--no-prefix", "--env", "A=x y='z'", sys.executable, "-c", program, *words, cwd=folder,
            environment={"LOCKSTEP_LOG": "warning", "SECRET": "here"})
        self.assertEqual(code, 0, error)
        lines = output.splitlines()
        self.assertEqual([json.loads(line) for line in lines], 2 * [[folder, words, "x y='z'", "warning", None]])

    def test_the_exit_code_is_that_of_the_rank_that_failed(self):
        for failed in ("0", "1"):
            code, _, error = self.run_over_ssh("sh", "-c", f'[ $RANK = {failed} ] && exit 127; sleep 100')
            self.assertEqual(code, 127, error)
            self.assertRegex(error, rf"rank {failed} \(host .*\) exited with code 127")

    def doctor(self, hosts):
        command = ["ip", "netns", "exec", self.hosts.names[0], LOCKSTEP, "doctor", "--hosts", hosts]
        path = f"{self.hosts.path('bin')}:{os.environ['PATH']}"
        done = subprocess.run(command, env={**os.environ, "PATH": path, "HOME": self.hosts.folder}, timeout=60,
                              capture_output=True, text=True, check=False)
        self.expect_nothing_left()
        return done

    def test_doctor_checks_both_hosts_and_says_which_one_cannot_be_reached(self):
        done = self.doctor("first,second")
        for host in ("first", "second"):
            self.assertIn(f"ok       {host}: kernel: ", done.stdout, done.stderr)
        self.assertIn("ok       lockstep on all hosts: the same\n", done.stdout)
        self.assertIn("ok       clocks of all hosts: ", done.stdout)
        self.assertEqual(done.returncode, 1 if "\nerror " in done.stdout else 0, done.stdout)
        done = self.doctor("first,10.213.7.77")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error    10.213.7.77: checks: it returned no result\n", done.stdout)
        self.assertIn("host 10.213.7.77: ssh could not reach it", done.stderr)

    def test_an_exit_code_of_a_rank_is_not_taken_for_a_failure_of_its_host(self):
        for code in (2, 3):
            for _ in range(6):
                self.assertEqual(self.run_over_ssh("sh", "-c", f'[ $RANK = 1 ] && exit {code}; sleep 100',
                                                   hosts="localhost:1,127.0.0.1:1")[0], code)

    def agent(self, number):
        """The pid of the agent of the host with this number, which has a process that looks after its ranks."""
        keepers = self.hosts.processes("lockstep remote-host")
        return next(pid for pid in self.hosts.processes(f"lockstep run --nnodes=2 --node-rank={number} ")
                    if process_state(pid)[1] in keepers)

    def test_an_agent_that_is_killed_is_named(self):
        for number, host in enumerate(("first", "second")):
            tree = self.start("sh", "-c", "echo ready; sleep 1000")
            tree.read_lines(2)
            os.kill(self.agent(number), signal.SIGKILL)
            code, _, error = tree.finish(30)
            self.assertEqual(code, 3, error)
            if number == 0:  # else the first one can be faster to tell that it is lost
                self.assertIn(f"host {host}: its agent was killed by SIGKILL", error)
            self.expect_nothing_left()

    def test_an_agent_that_ends_before_it_has_joined_is_noticed_at_once(self):
        self.hosts.write("bin/only_here", "#!/bin/sh\nsleep 100\n")
        os.chmod(self.hosts.path("bin/only_here"), 0o755)
        begin = time.monotonic()
        code, _, error = self.run_over_ssh("only_here", hosts="localhost,second")
        self.assertEqual(code, 127, error)
        self.assertLess(time.monotonic() - begin, 5 + links_test.SLACK)
        self.assertIn("host second: its agent exited with code 127 before it had joined the job", error)
        self.assertRegex(error, r"\n  lockstep: .*only_here")

    def test_a_host_that_cannot_reach_the_endpoint_says_so(self):
        subprocess.run(["ip", "-n", self.hosts.names[0], "address", "add", "10.99.0.1/32", "dev", "lo"], check=True)
        # The second host has no way to the first address; at the other one it waits for itself.
        def error():
            with open(self.hosts.path("errors"), encoding="utf-8") as file:
                return file.read()
        for endpoint, words in (("10.99.0.1", "waiting for the first host at 10.99.0.1:41040: "),
                                ("127.0.0.1", "waiting for ")):
            with open(self.hosts.path("errors"), "wb") as file:
                tree = self.start("--rdzv-endpoint", f"{endpoint}:41040", "sleep", "100", stderr=file)
            self.assertTrue(wait_for(lambda: f"[second] lockstep: {words}" in error(), 10 + links_test.SLACK), error())
            tree.process.send_signal(signal.SIGINT)
            self.assertEqual(tree.finish(30)[0], 75)
            self.expect_nothing_left()

    def expect_unusable(self, *words, seconds=10, **options):
        begin = time.monotonic()
        code, _, error = self.run_over_ssh(*options.pop("arguments", ()), "sleep", "100", **options)
        self.assertEqual(code, 3, error)
        self.assertLess(time.monotonic() - begin, seconds + links_test.SLACK)
        for each in words:
            self.assertIn(each, error)

    def test_a_host_whose_key_is_not_known(self):
        known = self.hosts.path("known_hosts")
        with open(known, encoding="ascii") as file:
            lines = file.readlines()
        self.addCleanup(self.hosts.write, "known_hosts", "".join(lines))
        self.hosts.write("known_hosts", lines[0])
        self.expect_unusable("host second: ssh could not reach it", "Host key verification failed", "known_hosts")

    def test_a_host_without_lockstep(self):
        self.expect_unusable("/nowhere/lockstep does not exist there", "--remote-path",
                             arguments=("--remote-path", "/nowhere/lockstep"))

    def test_a_host_that_does_not_answer(self):
        self.expect_unusable("host 10.213.7.77: ssh could not reach it", hosts="first,10.213.7.77", seconds=12)

    def test_a_stop_while_the_first_host_does_not_answer(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            tree = self.start("sleep", "100", hosts="10.213.7.77,second")
            self.assertTrue(wait_for(lambda: self.hosts.processes("--node-rank=1 "), 10 + links_test.SLACK))
            begin = time.monotonic()
            tree.process.send_signal(number)
            code, _, error = tree.finish(30)
            self.assertEqual(code, 128 + number, error)
            self.assertLess(time.monotonic() - begin, 1 + links_test.SLACK)
            self.expect_nothing_left()

    def test_a_signal_reaches_all_ranks_and_nothing_is_left(self):
        script = 'trap "echo stopped; exit 0" TERM INT; echo ready; while :; do sleep 0.05; done'
        for number, expected in ((signal.SIGINT, 75), (signal.SIGTERM, 75)):
            tree = self.start("sh", "-c", script)
            self.assertEqual(sorted(tree.read_lines(2)), ["[0] ready", "[1] ready"])
            tree.process.send_signal(number)
            code, output, error = tree.finish(30)
            self.assertEqual((code, sorted(output.splitlines())), (expected, ["[0] stopped", "[1] stopped"]), error)
            self.expect_nothing_left()

    def test_a_reader_of_standard_error_that_does_not_read_hinders_no_stop(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        tree = self.start("sh", "-c", "while :; do echo a line that nobody reads >&2; done", hosts="localhost:1",
                          stdout=subprocess.DEVNULL, stderr=writer)
        self.addCleanup(os.close, writer)
        self.assertTrue(wait_for(lambda: is_full(writer)))
        tree.process.send_signal(signal.SIGINT)
        time.sleep(1)  # soon after the first a second one may be taken for the same
        tree.process.send_signal(signal.SIGINT)
        self.assertEqual(tree.process.wait(10 + links_test.SLACK), 75)
        self.expect_nothing_left()

    def test_a_slow_reader_of_standard_error_gets_every_line(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        tree = self.start("--no-prefix", "sh", "-c", "for i in $(seq 5000); do echo line $i of many >&2; done",
                          hosts="localhost:1", stdout=subprocess.DEVNULL, stderr=writer)
        self.assertTrue(wait_for(lambda: is_full(writer)))
        os.close(writer)
        read = b""
        with open(reader, "rb", buffering=0) as file:
            while some := file.read(4096):
                read += some
                time.sleep(0.002)
        self.assertEqual(tree.process.wait(10), 0)
        self.assertEqual([line for line in read.decode().splitlines() if line.startswith("line ")],
                         [f"line {i} of many" for i in range(1, 5001)])

    def test_ctrl_z_stops_the_launcher_and_not_the_job(self):
        tree = self.start("sh", "-c", "trap 'echo stopped; exit 0' INT; while :; do echo on; sleep 0.1; done")
        tree.read_lines(2)
        tree.process.send_signal(signal.SIGTSTP)
        self.assertTrue(wait_for(lambda: process_state(tree.pid)[0] == "T"))
        tree.read_lines(20)
        states = {process_state(pid)[0] for pid in self.hosts.processes() if pid != tree.pid}
        self.assertNotIn("T", states)
        tree.process.send_signal(signal.SIGCONT)
        tree.process.send_signal(signal.SIGINT)
        code, output, error = tree.finish(30)
        self.assertEqual((code, output.count("stopped")), (75, 2), error)
        self.assertIn("the job continues on its hosts", error)
        self.expect_nothing_left()

    def test_a_stopped_agent_ends_with_its_connection(self):
        tree = self.start("sh", "-c", "echo ready; sleep 1000")
        tree.read_lines(2)
        for number in range(2):
            os.kill(self.agent(number), signal.SIGSTOP)
        tree.process.kill()
        self.expect_nothing_left()

    def test_hosts_that_do_not_stop_have_the_grace_and_fifteen_seconds(self):
        tree = self.start("--stop-grace", "2", "--shutdown-timeout", "1", "sh", "-c", "echo ready; sleep 1000")
        tree.read_lines(2)
        stopped = [self.agent(0), *self.hosts.processes("lockstep remote-host")]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        os.kill(self.client("second"), signal.SIGKILL)
        code, _, error = tree.finish(60)
        self.assertEqual(code, 3, error)
        self.assertGreater(time.monotonic() - begin, 17)
        self.assertLess(time.monotonic() - begin, 17 + links_test.SLACK)
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        self.expect_nothing_left()

    def client(self, host):
        """The pid of the ssh that leads to this host."""
        clients = [pid for pid in self.hosts.processes(f"-- {host} ") if command_name(pid) == "ssh"]
        self.assertEqual(len(clients), 1)
        return clients[0]

    def test_a_connection_that_dies_ends_its_agent_and_the_job(self):
        for host in ("second", "first"):
            tree = self.start("sh", "-c", "echo ready; sleep 1000")
            tree.read_lines(2)
            os.kill(self.client(host), signal.SIGKILL)
            code, _, error = tree.finish(60)
            self.assertEqual(code, 3, error)
            self.assertIn(f"host {host}: the ssh connection to it was lost: the local ssh process was killed by "
                          "SIGKILL", error)
            self.expect_nothing_left()

    def test_a_launcher_that_is_killed_leaves_nothing(self):
        tree = self.start("sh", "-c", "echo ready; sleep 1000")
        tree.read_lines(2)
        tree.process.kill()
        self.expect_nothing_left()


def is_full(pipe):
    return not select.select([], [pipe], [], 0)[1]


def command_name(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def why_not():
    missing = [name for name, path in (("ssh", shutil.which("ssh")), ("sshd", SSHD)) if path is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: openssh-client openssh-server)"
    return links_test.why_not()


if __name__ == "__main__":
    WORKER = sys.argv.pop(2)
    LOCKSTEP = os.path.abspath(sys.argv.pop(1))
    REASON = why_not()
    if REASON:
        print(f"skipped: {REASON}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
