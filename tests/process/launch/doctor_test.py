"""`lockstep doctor` and `lockstep env`: doctor_test.py <lockstep> [<a program that links libtorch>]"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

LOCKSTEP = ""
PROGRAM = ""


def ask(*command, environment=None, **options):
    return subprocess.run([LOCKSTEP, *command], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **(environment or {})}, **options)


class DoctorTest(unittest.TestCase):
    def findings(self, *arguments, **options):
        done = ask("doctor", "--json", *arguments, **options)
        document = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if document["verdict"] == "error" else 0, done)
        return {finding["subject"]: finding for finding in document["findings"]}

    def test_each_subject_has_a_verdict(self):
        findings = self.findings()
        for subject in ("kernel", "cores", "vector instructions", "NUMA nodes", "clocks", "threads", "memory",
                        "memory that ranks share", "/dev/shm", "locked memory", "open files", "processes and threads",
                        "size of files", "host name", "ports", "lockstep", "token", "variables", "started by",
                        "launchers", "torch of Python"):
            self.assertIn(subject, findings)
            self.assertIn(findings[subject]["verdict"], ("ok", "warning", "error"))
            self.assertTrue(findings[subject]["found"])
        for finding in findings.values():
            self.assertTrue(finding["verdict"] == "ok" or finding["remedy"], finding)

    def test_text_has_a_line_each(self):
        lines = ask("doctor").stdout.splitlines()
        self.assertTrue(all(line.split()[0] in ("ok", "warning", "error", "->") for line in lines), lines)

    def test_limits_that_are_too_low(self):
        def lower():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

        findings = self.findings(preexec_fn=lower)
        self.assertEqual(findings["open files"]["verdict"], "warning")
        self.assertIn("ulimit -Hn", findings["open files"]["remedy"])
        self.assertEqual(findings["memory that ranks share"]["verdict"], "warning")

    def test_a_token_that_others_may_read_and_one_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "token")
            findings = self.findings(environment={"LOCKSTEP_TOKEN_FILE": path})
            self.assertEqual(findings["token"]["verdict"], "error")
            with open(path, "w", encoding="ascii") as file:
                file.write("ab" * 32)
            os.chmod(path, 0o644)
            findings = self.findings(environment={"LOCKSTEP_TOKEN_FILE": path})
            self.assertEqual(findings["token"]["verdict"], "error")
            self.assertIn("chmod 600", findings["token"]["remedy"])
            os.chmod(path, 0o600)
            findings = self.findings(environment={"LOCKSTEP_TOKEN_FILE": path})
            self.assertEqual(findings["token"]["verdict"], "ok")

    def test_a_token_that_cannot_be_made(self):
        with tempfile.TemporaryDirectory() as folder:
            for home, verdict in ((folder, "ok"), (os.path.join(folder, "missing"), "warning")):
                findings = self.findings(environment={"HOME": home, "LOCKSTEP_TOKEN_FILE": ""})
                self.assertEqual(findings["token"]["verdict"], verdict, findings["token"])
            self.assertIn("LOCKSTEP_TOKEN_FILE", findings["token"]["remedy"])
            self.assertEqual(os.listdir(folder), [])

    def test_a_python_that_cannot_be_started(self):
        with tempfile.TemporaryDirectory() as folder:
            python = os.path.join(folder, "python3")
            with open(python, "wb") as file:
                file.write(b"\0not a program")
            os.chmod(python, 0o755)
            finding = self.findings(environment={"PATH": folder})["torch of Python"]
            self.assertEqual((finding["verdict"], finding["found"]),
                             ("warning", f"{python} cannot be started, or fails"))

    def test_its_own_version(self):
        version = ask("--version").stdout.split()[1]
        self.assertTrue(self.findings()["lockstep"]["found"].startswith(f"{version}, built "))

    @unittest.skipUnless(shutil.which("cc"), "there is no compiler")
    def test_the_version_of_a_programs_libtorch(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "lib"))
            library, program = os.path.join(folder, "lib", "libtorch_cpu.so"), os.path.join(folder, "train")
            subprocess.run(["cc", "-shared", "-Wl,-soname,libtorch_cpu.so", "-x", "c", "/dev/null", "-o", library],
                           check=True)
            subprocess.run(["cc", "-x", "c", "-", "-x", "none", "-o", program, "-Wl,--no-as-needed", library,
                            f"-Wl,-rpath,{os.path.dirname(library)}"],
                           check=True, input=b"int main(void) { return 0; }")
            with open(os.path.join(folder, "version.py"), "w", encoding="ascii") as file:
                file.write("__all__ = ['__version__']\n__version__ = '1.2.3+cpu'\n")
            findings = self.findings(program)
            finding = findings[f"libtorch of {program}"]
            self.assertTrue(finding["found"].startswith(f"1.2.3+cpu {library}"), finding)
            built_for_torch = "for libtorch" in findings["lockstep"]["found"]
            self.assertEqual(finding["verdict"], "warning" if built_for_torch else "ok")

    def test_variables(self):
        findings = self.findings(environment={"LOCKSTEP_BACKENT": "gloo", "OMP_NUM_THREADS": "many"})
        self.assertEqual(findings["variables"]["verdict"], "warning")
        self.assertIn("LOCKSTEP_BACKENT", findings["variables"]["found"])
        self.assertEqual(findings["threads"]["verdict"], "warning")

    def test_libtorch_of_a_program(self):
        findings = self.findings("/bin/true")
        self.assertIn("does not link libtorch", findings["libtorch of /bin/true"]["found"])
        self.assertEqual(self.findings("/nowhere")["libtorch of /nowhere"]["verdict"], "error")
        if PROGRAM:
            self.assertIn("libtorch_cpu.so", self.findings(PROGRAM)[f"libtorch of {PROGRAM}"]["found"])

    def test_it_can_be_the_program_of_a_job(self):
        done = ask("run", "--nproc-per-node", "2", LOCKSTEP, "doctor")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[1] ok       kernel", done.stdout)


class HostsTest(unittest.TestCase):
    """Hosts of which all are this one: nothing is started over ssh, which ssh_test.py does."""

    def test_each_host_is_checked_and_they_are_compared(self):
        done = ask("doctor", "--json", "--hosts", "localhost,127.0.0.1", "/bin/true")
        document = json.loads(done.stdout)
        self.assertEqual(done.returncode, 1 if document["verdict"] == "error" else 0, done)
        findings = {finding["subject"]: finding for finding in document["findings"]}
        for host in ("localhost", "127.0.0.1"):
            for subject in ("kernel", "lockstep", "ports", "libtorch of /bin/true"):
                self.assertTrue(findings[f"{host}: {subject}"]["found"])
        for subject in ("lockstep on all hosts", "torch of Python on all hosts"):
            self.assertEqual((findings[subject]["verdict"], findings[subject]["found"]), ("ok", "the same"))
        self.assertEqual(findings["clocks of all hosts"]["found"], "less than a second apart")

    def test_a_problem_of_one_host_is_the_verdict(self):
        done = ask("doctor", "--hosts", "localhost", "/nowhere")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("error    localhost: libtorch of /nowhere: the program cannot be executed\n", done.stdout)
        done = ask("doctor", "--hosts", "a,-b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'-b' in 'a,-b' is not a host name", done.stderr)


class EnvTest(unittest.TestCase):
    def test_it_has_versions_and_variables_and_no_secret(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "token")
            with open(path, "w", encoding="ascii") as file:
                file.write("ab" * 32)
            os.chmod(path, 0o600)
            environment = {"LOCKSTEP_TOKEN_FILE": path, "LOCKSTEP_LOG": "debug", "MY_PASSWORD": "secret-word"}
            text = ask("env", environment=environment).stdout
            document = json.loads(ask("env", "--json", environment=environment).stdout)
        self.assertRegex(document["lockstep"], r"^\d+\.\d+")
        for name in ("compiler", "system", "distribution", "processor", "memory"):
            self.assertTrue(document[name], name)
        self.assertEqual(document["variable LOCKSTEP_LOG"], "debug")
        for secret in ("ab" * 32, "secret-word"):
            self.assertNotIn(secret, text)


if __name__ == "__main__":
    LOCKSTEP = sys.argv[1]
    PROGRAM = sys.argv[2] if len(sys.argv) > 2 else ""
    unittest.main(argv=sys.argv[:1])
