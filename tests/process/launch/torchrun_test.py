"""torchrun's options under `lockstep run`: torchrun_test.py <lockstep> <root of the sources> [<a Python with torch>]"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from processes import Tree

LOCKSTEP = ""
ROOT = ""
PYTHON = ""

SCRIPT = """\
import os, sys
print(__name__, sys.argv[0].rsplit("/", 1)[-1], sys.argv[1:], os.environ["RANK"])
"""


class TorchrunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_with(self, *words, environment=None, expected=0, **options):
        with Tree([LOCKSTEP, "run", *words], environment, cwd=self.folder, **options) as tree:
            code, output, error = tree.finish()
            self.assertEqual(tree.survivors(), [], "left behind")
            self.assertEqual(code, expected, error)
            return output, error

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    def read(self, *names):
        with open(os.path.join(self.folder, *names), encoding="ascii") as file:
            return file.read()


class ProgramTest(TorchrunTest):
    def test_python_scripts(self):
        self.write("train.py", SCRIPT)
        self.assertEqual(self.run_with("train.py", "--lr", "1")[0], "__main__ train.py ['--lr', '1'] 0\n")
        self.assertEqual(self.run_with("--run-path", "train.py", "a")[0], "__main__ train.py ['a'] 0\n")
        self.assertEqual(self.run_with("-m", "train", "a", environment={"PYTHONPATH": self.folder})[0],
                         "__main__ train.py ['a'] 0\n")

    def test_a_script_as_it_is(self):
        script = self.write("train.py", "#!/bin/sh\necho shell $RANK\n")
        os.chmod(script, 0o755)
        self.assertEqual(self.run_with("--no-python", script)[0], "shell 0\n")

    def test_a_script_of_another_name(self):
        self.write("train", SCRIPT)
        for words in (("--run-path", "train"), (sys.executable, "train")):
            self.assertEqual(self.run_with(*words, "a")[0], "__main__ train ['a'] 0\n")
        self.assertIn("not found in PATH", self.run_with("train", expected=127)[1])

    def test_the_interpreter_is_chosen(self):
        self.write("python", "#!/bin/sh\necho interpreter $@\n")
        os.chmod(os.path.join(self.folder, "python"), 0o755)
        environment = {"PYTHON_EXEC": os.path.join(self.folder, "python")}
        self.assertEqual(self.run_with("train.py", "x", environment=environment)[0], "interpreter -u train.py x\n")

    # feature: J-12
    def test_the_wheel_starts_it(self):
        environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python"),
                       "PATH": os.path.dirname(LOCKSTEP) + os.pathsep + os.environ["PATH"]}
        self.write("train.py", "import sys; print(sys.executable)")
        done = subprocess.run([sys.executable, "-m", "lockstep.run", "train.py"], env=environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=60, check=True)
        self.assertEqual(os.path.realpath(done.stdout.strip()), os.path.realpath(sys.executable))


class SourcesTest(TorchrunTest):
    def ranks(self, *words, **options):
        return len(self.run_with(*words, "echo", "here", **options)[0].splitlines())

    def test_variables_stand_for_options(self):
        self.assertEqual(self.ranks(environment={"PET_NPROC_PER_NODE": "3"}), 3)
        self.assertEqual(self.ranks("--nproc_per_node=2", environment={"PET_NPROC_PER_NODE": "3"}), 2)
        self.assertEqual(self.ranks(environment={"PET_STANDALONE": "1", "PET_NNODES": "1:1"}), 1)
        # A cluster manager that does not tell how many hosts there are is not asked.
        self.assertEqual(self.ranks(environment={"PET_NNODES": "1", "JOB_COMPLETION_INDEX": "0",
                                                 "KUBERNETES_SERVICE_HOST": "10.96.0.1"}), 1)
        _, error = self.run_with("true", environment={"PET_MAX_RESTARTS": "many"}, expected=2)
        self.assertIn("PET_MAX_RESTARTS: --max-restarts", error)

    def test_the_time_to_stop_stands_in_a_variable(self):
        script = "trap '' TERM; test $RANK = 0 && { sleep 0.3; exit 4; }; while :; do sleep 0.05; done"
        begin = time.monotonic()
        _, error = self.run_with("--nproc-per-node=2", "sh", "-c", script, expected=4,
                                 environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0.3"})
        self.assertIn("did not stop in time and was killed", error)
        self.assertLess(time.monotonic() - begin, 4.5)  # it is 5 s without it
        _, error = self.run_with("true", environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"}, expected=2)
        self.assertIn("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: --shutdown-timeout", error)

    def test_what_is_not_read_does_no_harm(self):
        with socket.socket() as taken:  # so that whoever listens fails
            taken.bind(("", 0))
            environment = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": "/nowhere/file",
                           "TORCHELASTIC_HEALTH_CHECK_PORT": str(taken.getsockname()[1]), "PET_ROLE": ""}
            output, error = self.run_with("sh", "-c", "echo $ROLE_NAME", environment=environment)
        self.assertEqual((output, error.count("\n")), ("default\n", 1), error)

    def test_contradictions_are_refused(self):
        for words, wanted in ((("-m", "--no-python", "train"), "--module: it cannot be used with --no-python"),
                              (("--nproc-per-node", "xpu", "true"), "give a number"),
                              (("--standalone", "--nnodes", "2", "true"), "--standalone: it is for one host"),
                              (("--hang-timeout", "nan", "true"), "--hang-timeout")):
            self.assertIn(wanted, self.run_with(*words, expected=2)[1])
        for name, value in (("PET_TEE", "7"), ("PET_LOCAL_RANKS_FILTER", "x"), ("PET_REDIRECTS", "0:9")):
            self.assertIn(f"{name}: --", self.run_with("true", environment={name: value}, expected=2)[1])

    def test_an_empty_value_takes_no_other_word(self):
        self.assertEqual(self.run_with("--log-dir=", "echo", "a")[0], "a\n")
        self.assertEqual(self.run_with("--role", "", "echo", "a")[0], "a\n")
        output, _ = self.run_with("--env", "A=", "--rdzv_id=", "--bind", "none", "--log-dir=", "echo", "--role=")
        self.assertEqual(output, "--role=\n")
        self.assertEqual(os.listdir(self.folder), [])
        self.write("x.toml", 'role = ""\nnproc-per-node = 2\n')
        self.assertEqual(self.ranks("--config=x.toml"), 2)
        for words in (("--max-restarts=",), ("--nproc-per-node=",), ("--master-port", ""), ("--stop-grace=",)):
            self.assertIn(words[0].rstrip("="), self.run_with(*words, "true", expected=2)[1])

    def test_numbers_are_decimal(self):
        script = "echo $TORCHELASTIC_MAX_RESTARTS $MASTER_PORT"
        output, _ = self.run_with("--max-restarts", "010", "--master-port=0100", "sh", "-c", script)
        self.assertEqual(output, "10 100\n")
        self.assertIn("'0x10' is not a number from 0 to",
                      self.run_with("--max-restarts", "0x10", "true", expected=2)[1])

    def test_a_file_stands_for_options_and_gives_way(self):
        path = self.write("lockstep.toml", 'nproc-per-node = 3\n[run]\nmax_restarts = 2\nprefix = true\n'
                                           'env = ["A=1", "B=x y"]\n')
        script = "echo $A $B $TORCHELASTIC_MAX_RESTARTS"
        output, _ = self.run_with("--config", path, "--nproc-per-node", "1", "sh", "-c", script)
        self.assertEqual(output, "[0] 1 x y 2\n")
        self.assertEqual(self.ranks("--config", path, environment={"PET_NPROC_PER_NODE": "2"}), 2)
        self.write("quiet.toml", "no-prefix = true\n")
        output, _ = self.run_with("--config", "quiet.toml", "--prefix", "echo", "a")
        self.assertEqual(output, "[0] a\n")

    def test_a_file_that_is_not_named_is_not_read(self):
        self.write("lockstep.toml", "nproc-per-node = 3\n")
        self.assertEqual(self.ranks(), 1)

    def test_what_is_wrong_in_a_file_is_told_with_its_line(self):
        for text, wanted in (("nnodes = 1\nmax-restarts = -1\n", "x.toml:2: --max-restarts"),
                             ("\nno-such = 1\n", "x.toml:2: there is no option --no-such\n"),
                             ("prefix = 3\n", "x.toml:1: prefix must be true or false"),
                             ("nnodes = [1\n", "x.toml:1: "),
                             ("nnodes = { a = 1 }\n", "nnodes must be a string or a number")):
            self.write("x.toml", text)
            self.assertIn(wanted, self.run_with("--config", "x.toml", "true", expected=2)[1])
        for path in ("missing.toml", "."):
            self.assertIn("there is no such file", self.run_with("--config", path, "true", expected=2)[1])

    def test_the_last_one_counts(self):
        self.assertEqual(self.ranks("--nproc-per-node", "3", "--nproc_per_node", "2"), 2)
        output, _ = self.run_with("--env", "A=1", "--env", "B=2", "sh", "-c", "echo $A $B")
        self.assertEqual(output, "1 2\n")


class OutputTest(TorchrunTest):
    BOTH = ("sh", "-c", "echo out $RANK; echo err $RANK >&2")

    def test_streams_to_files(self):
        output, error = self.run_with("--nproc-per-node=2", "-r", "0:1,1:3", "-t", "1:2", "--log-dir", "logs",
                                      *self.BOTH)
        self.assertEqual(output, "")
        self.assertEqual(sorted(line for line in error.splitlines() if "err" in line), ["[0] err 0", "[1] err 1"])
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "logs"))),
                         ["rank_0.stdout.log", "rank_1.stderr.log", "rank_1.stdout.log"])
        self.assertEqual(self.read("logs", "rank_1.stderr.log"), "err 1\n")

    def test_streams_to_files_without_a_folder_get_one(self):
        output, error = self.run_with("--redirects=3", *self.BOTH)
        self.assertEqual(output, "")
        folder = re.search(r"log files are in (lockstep-logs-\w{6})\n", error).group(1)
        self.assertEqual(self.read(folder, "rank_0.stdout.log"), "out 0\n")

    def test_some_ranks_are_shown(self):
        output, error = self.run_with("--nproc-per-node=3", "--local-ranks-filter", "0,2", *self.BOTH)
        self.assertEqual(sorted(output.splitlines()), ["[0] out 0", "[2] out 2"])
        self.assertNotIn("err 1", error)
        _, error = self.run_with("--local-ranks-filter", "7", "true", expected=2)
        self.assertIn("there are 0 to 0", error)

    def test_lines_to_files_of_their_own(self):
        script = "echo an apple; echo a,b; echo pear; echo error >&2"
        output, _ = self.run_with("--duplicate-stdout-filters", "apple,a,,b", "--duplicate_stderr_filters=err",
                                  "--log-dir", "logs", "sh", "-c", script)
        self.assertEqual(output, "an apple\na,b\npear\n")
        self.assertEqual(self.read("logs", "filtered_stdout.log"), "[0] an apple\n[0] a,b\n")
        self.assertEqual(self.read("logs", "filtered_stderr.log"), "[0] error\n")


    def test_the_prefix_is_the_users(self):
        template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}-${rank}/${local_rank}>:"}
        for hosts, local in (((), 1), (("--hosts", "localhost:1,127.0.0.1:1"), 0)):
            output, _ = self.run_with("--nproc-per-node=2", "--role", "r", *hosts, "echo", "a", environment=template)
            self.assertEqual(sorted(output.splitlines()), ["<r-0/0>:a", f"<r-1/{local}>:a"])
        self.assertEqual(self.run_with("echo", "a", environment=template)[0], "<default-0/0>:a\n")
        self.assertEqual(self.run_with("--no-prefix", "echo", "a", environment=template)[0], "a\n")


class HostsOptionTest(TorchrunTest):
    """--hosts of which all are this host: each has a launcher of its own, which gets the options."""

    HOSTS = ("--hosts", "localhost:1,127.0.0.1:2")

    def test_options_reach_the_launchers_of_all_hosts(self):
        script = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES $MASTER_ADDR"
        output, _ = self.run_with(*self.HOSTS, "--virtual-local-rank", "--master-addr", "h", "--no-prefix", "sh", "-c",
                                  script, environment={"CUDA_VISIBLE_DEVICES": "4,6"})
        self.assertEqual(sorted(output.splitlines()), ["0 0 4 h", "1 0 4 h", "2 0 6 h"])

    def test_streams_and_filters_reach_the_launchers_of_all_hosts(self):
        output, error = self.run_with(*self.HOSTS, "-r", "0:1,1:3", "-t", "1:2", "--log-dir", "logs",
                                      *OutputTest.BOTH)
        self.assertEqual(output, "")
        self.assertEqual(sorted(line for line in error.splitlines() if "] err" in line),
                         ["[0] err 0", "[1] err 1", "[2] err 2"])
        self.assertEqual(sorted(os.listdir(os.path.join(self.folder, "logs"))),
                         ["rank_0.stdout.log", "rank_1.stdout.log", "rank_2.stderr.log", "rank_2.stdout.log"])
        output, _ = self.run_with(*self.HOSTS, "--local-ranks-filter", "1", *OutputTest.BOTH)
        self.assertEqual(output, "[2] out 2\n")
        self.run_with("--hosts", "localhost:2", "--duplicate-stdout-filters", "t 1,a,,b", "--duplicate-stderr-filters",
                      "err 0", "--log-dir", "filtered", "sh", "-c", "echo out $RANK; echo a,b; echo err $RANK >&2")
        self.assertEqual(sorted(self.read("filtered", "filtered_stdout.log").splitlines()),
                         ["[0] a,b", "[1] a,b", "[1] out 1"])
        self.assertEqual(self.read("filtered", "filtered_stderr.log"), "[0] err 0\n")

    def test_what_does_not_go_with_them_is_refused(self):
        for words, wanted in ((("-r", "2:1"), "there are local ranks 0 to 1"),
                              (("--standalone",), "--standalone: it cannot be used with --hosts"),
                              (("--node-rank", "1"), "--node-rank: it cannot be used with --hosts"),
                              (("--local-addr", "h"), "--local-addr: it cannot be used with --hosts"),
                              (("--nnodes", "3"), "--nnodes: --hosts names 2")):
            self.assertIn(wanted, self.run_with(*self.HOSTS, *words, "true", expected=2)[1])
        self.run_with(*self.HOSTS, "--nnodes", "2", "true")


class RanksTest(TorchrunTest):
    def test_roles_and_what_is_accepted(self):
        words = ("--role", "trainer", "--rdzv-backend=c10d", "--monitor-interval", "5", "--start-method", "fork",
                 "--event-log-handler", "null", "--logs-specs", "default", "--rdzv-conf", "timeout=5,read_timeout=3")
        output, _ = self.run_with(*words, "sh", "-c",
                                  "echo $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE $TORCHELASTIC_USE_AGENT_STORE")
        self.assertEqual(output, "trainer 0 1 False\n")

    def test_settings_for_pytorch(self):
        names = ("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
        command = ("sh", "-c", "echo " + " ".join(f"${name}" for name in names))
        for hosts in ((), ("--hosts", "localhost")):
            self.assertEqual(self.run_with("--no-prefix", *hosts, *command)[0], "SIGTERM,SIGINT,SIGHUP,SIGQUIT 1\n")
        output, _ = self.run_with("--signals-to-handle", "SIGUSR1,SIGTERM", *command, environment={names[1]: "3"})
        self.assertEqual(output, "SIGUSR1,SIGTERM 3\n")

    def test_names_that_torchrun_does_not_know_are_refused(self):
        for name in ("c10d", "static", "etcd", "etcd-v2"):
            self.run_with("--rdzv-backend", name, "true")
        for words, wanted in (
                (("--rdzv-backend", "zookeeper"),
                 "--rdzv-backend: 'zookeeper' is not known; there are c10d, static, etcd, etcd-v2: all of "
                 "them have the same effect\n"),
                (("--logs-specs", "mine"), "--logs-specs: 'mine' is not known; there is default: others are Python "
                                           "classes, which this launcher does not load\n")):
            self.assertIn(wanted, self.run_with(*words, "true", expected=2)[1])
        _, error = self.run_with("true", environment={"PET_RDZV_BACKEND": "x"}, expected=2)
        self.assertIn("PET_RDZV_BACKEND: --rdzv-backend: 'x' is not known", error)

    def test_arguments_can_hold_the_local_rank(self):
        for hosts in ((), ("--hosts", "localhost:2")):
            output, _ = self.run_with("--nproc-per-node=2", "--no-prefix", *hosts, "echo", "--rank=${local_rank}.",
                                      "$local_rank $$ ${other}", "${local_rank}${local_rank}")
            self.assertEqual(sorted(output.splitlines()),
                             [f"--rank={rank}. $local_rank $$ ${{other}} {rank}{rank}" for rank in range(2)])

    def test_virtual_local_ranks(self):
        script = "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES"
        for environment, expected in (({"CUDA_VISIBLE_DEVICES": "4,6"}, ["0 0 4", "1 0 6"]),
                                      ({"CUDA_VISIBLE_DEVICES": ""}, ["0 0", "1 0"]), ({}, ["0 0 0", "1 0 1"])):
            output, _ = self.run_with("--nproc-per-node=2", "--virtual-local-rank", "--no-prefix", "sh", "-c", script,
                                      environment=environment)
            self.assertEqual(sorted(output.splitlines()), expected)

    def test_binding_in_torchruns_words(self):
        self.run_with("--numa-binding", "node", "true")
        self.assertIn("--numa-binding", self.run_with("--numa-binding", "near", "true", expected=2)[1])

    def test_a_dry_run_starts_nothing(self):
        output, error = self.run_with("--dry-run", "--nproc-per-node", "4", "--env", "A=b c", "touch", "file 1")
        self.assertEqual(error, "")
        self.assertEqual(os.listdir(self.folder), [])
        self.assertIn("ranks 0 to 3\n", output)
        self.assertIn("command: touch 'file 1'\n", output)
        self.assertIn("variable: A='b c'\n", output)
        output, _ = self.run_with("--dry-run", "--nnodes=2:4", "--master-addr", "h1", "--node-rank", "1", "true")
        self.assertIn("numbered when all have met at h1:29500\nhosts: 2 to 4\n", output)
        output, _ = self.run_with("--dry-run", "--hosts", "a,b:3", "no-such-program", "x")
        self.assertIn("host a: rank 0, over ssh\nhost b: ranks 1 to 3, over ssh\n"
                      "program: no-such-program, to be found on each host\ncommand: no-such-program x\n", output)
        output, _ = self.run_with("--dry-run", "--hosts", "localhost:2", "--hang-timeout", "1.5", "-r", "3", "-t",
                                  "1:1", "--report", "r", "true")
        self.assertIn("host localhost: ranks 0 to 1, which is this one\n", output)
        self.assertIn("a job that hangs ends after: 1.5 s\n", output)
        self.assertIn("to files alone: both streams of all ranks\nto files, too: standard output of local rank 1\n",
                      output)
        self.assertIn("report: r\n", output)
        for hosts in ((), ("--hosts", "a")):
            _, error = self.run_with("--dry-run", "--bind", "foo", *hosts, "true", expected=2)
            self.assertIn("ranks cannot be bound to 'foo'", error)


COMMANDS = ["run", "trace", "doctor", "env", "ps", "top", "stop", "checkpoint", "report"]
COMMANDS += ["checkpoint " + verb for verb in ("ls", "show", "verify", "diff", "convert", "strip-prefix", "prune")]


class DocumentTest(unittest.TestCase):
    def options(self):
        text = subprocess.run([LOCKSTEP, "run", "--help-all"], capture_output=True, text=True, timeout=30,
                              check=True).stdout
        return {name for line in re.findall(r"^  (-\S+)", text, re.M) for name in line.split(",")}

    def ask(self, *words):
        return subprocess.run([LOCKSTEP, *words], capture_output=True, text=True, timeout=30, check=False)

    def test_each_command_has_help_of_its_own(self):
        everything = self.ask("--help-all")
        self.assertEqual((everything.returncode, everything.stderr), (0, ""))
        for command in COMMANDS:
            text = self.ask(*command.split(), "--help-all" if command == "run" else "--help").stdout
            self.assertIn(text, everything.stdout)
            examples = text.partition("Examples:\n")[2].strip().splitlines()
            self.assertTrue(examples, command)
            for line in examples:
                self.assertIn(f"lockstep {command}", line)
            wrong = self.ask(*command.split(), "--bogus")
            self.assertEqual(wrong.returncode, 2)
            self.assertIn(f"Try 'lockstep {command} --help'.", wrong.stderr)
        self.assertIn("Try 'lockstep --help'.", self.ask("--bogus").stderr)

    def document(self, *names):
        with open(os.path.join(ROOT, *names), encoding="utf-8") as file:
            return file.read()

    def test_the_man_page_has_what_the_help_says(self):
        page = self.document("share", "man", "man1", "lockstep.1")
        page = page.replace("\\-", "-").replace("\\(aq", "'").replace("\n", " ")
        for command in COMMANDS:
            text = self.ask(*command.split(), "--help-all" if command == "run" else "--help").stdout
            options = re.findall(r"^  (-\S+)(.*(?:\n {20,}.*)?)", text, re.M)
            self.assertTrue(options)
            for names, rest in options:
                self.assertIn(names.split(",")[-1 if "_" not in names else 0], page)
                self.assertIn(re.split(r"\s{2,}", rest)[-1], page, (command, names))
            for rest in re.findall(r"^  \w+ TEXT REQUIRED +(.*)", text, re.M):
                self.assertIn(rest, page, command)

    def test_common_options_come_alone(self):
        text = subprocess.run([LOCKSTEP, "run", "--help"], capture_output=True, text=True, timeout=30,
                              check=True).stdout
        self.assertIn("--nproc-per-node", text)
        self.assertNotIn("--virtual-local-rank", text)

    # feature: J-01
    def test_the_table_has_each_option_and_variable_of_torchrun_and_names_tests_that_exist(self):
        if not PYTHON:
            self.skipTest("there is no PyTorch here")
        code = ("import inspect, re, torch.distributed.run as r, torch.distributed.launcher.api as l, "
                "torch.distributed.elastic.agent.server.local_elastic_agent as a; "
                "print(*[o for each in r.get_args_parser()._actions for o in each.option_strings]); "
                "print(*re.findall('[\"\\'](\\w*TORCH_?ELASTIC_\\w+|PYTHON_EXEC|TORCH_NCCL_\\w+)[\"\\']', "
                "''.join(map(inspect.getsource, (r, l, a)))))")
        done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=120, check=True)
        options, variables = (set(line.split()) for line in done.stdout.splitlines())
        options -= {"-h", "--help"}
        self.assertGreater(len(options), 40)
        self.assertEqual(options - self.options() - {"-r", "-t", "-m"}, set())
        page = self.document("docs", "TORCHRUN.md")
        self.assertEqual([name for name in options if "_" not in name and f"`{name}`" not in page], [])
        self.assertGreater(len(variables), 8)
        self.assertEqual([name for name in variables if f"`{name}`" not in page], [])
        for test in set(re.findall(r"`(\w+_test\.py)`", page)):
            self.assertTrue(os.path.exists(os.path.join(ROOT, "tests", "process", "launch", test)), test)

    def test_completion_offers_commands_and_options(self):
        script = self.document("share", "bash-completion", "completions", "lockstep") + """
            complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lockstep; printf '%s\\n' "${COMPREPLY[@]}"; }
            complete_words "$LOCKSTEP" d; complete_words "$LOCKSTEP" run --max
            complete_words "$LOCKSTEP" checkpoint s; complete_words "$LOCKSTEP" checkpoint diff --tol
        """
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True,
                              env={**os.environ, "LOCKSTEP": LOCKSTEP})
        self.assertEqual(done.stdout.split(), ["doctor", "--max-restarts", "--max_restarts", "show", "strip-prefix",
                                               "--tolerance"])


if __name__ == "__main__":
    LOCKSTEP = os.path.abspath(sys.argv[1])
    ROOT = os.path.abspath(sys.argv[2])
    PYTHON = sys.argv[3] if len(sys.argv) > 3 else ""
    unittest.main(argv=sys.argv[:1])
