"""Pods of Kubernetes on one machine, and the controller of an indexed Job: Pods(...), IndexedJob(...).

A pod is a process on a host of a switch, with its own address, host name, /etc/hosts and /dev/shm.
"""

import os
import pathlib
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "launch"))
from processes import wait_for  # noqa: E402
from switch import Switch  # noqa: E402

# As a pod: a name and a memory of its own, and the hosts file that the kubelet writes.
POD = 'hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs shm /dev/shm && shift && exec "$@"'


class Unavailable(Exception):
    """Pods cannot be made here."""


class Pods:
    """What the pods of one service share: a network, a secret and, as by the service, each other's addresses."""

    def __init__(self, folder, names, service, token):
        if os.geteuid() != 0:
            raise Unavailable("it needs root to make namespaces")
        self.folder, self.names, self.service = folder, names, service
        self.processes = []
        (folder / "token").write_text(f"{token}\n")
        self.switch = Switch(names)
        try:
            self.switch.__enter__()
        except (OSError, subprocess.CalledProcessError) as error:
            raise Unavailable(f"network namespaces cannot be made here: {error}") from error
        for name in names:
            self.move(name, 0)

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.switch.__exit__()

    def move(self, name, turn):
        """Gives a pod an address: each time another one, and all know it."""
        self.switch.move(name, f"10.213.9.{10 * (turn + 1) + self.names.index(name)}")
        full = f"{self.service}.default.svc.cluster.local"
        for own in self.names:
            lines = [f"{address} {other}.{full} {other}.{self.service}" + (f" {other}" if other == own else "")
                     for other, address in self.switch.addresses.items()]
            # In place, since it is mounted, and of the same length at once, since it is read meanwhile.
            descriptor = os.open(self.folder / f"hosts-{own}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(descriptor, ("127.0.0.1 localhost\n" + "".join(f"{line}\n" for line in lines)).encode())
            os.close(descriptor)

    def start(self, name, container, changes, environment, out):
        """Runs a container's command. changes: texts of its script, and what stands there in place of a cluster's."""
        script = container["args"][0]
        token = str(self.folder / f"token-{name}")
        for old, new in {**changes, "/etc/lockstep": str(self.folder), "/tmp/token": token}.items():
            script = script.replace(old, new)
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LOCKSTEP_TOKEN_FILE": token, **environment}
        command = [*self.switch.command(name), "unshare", "--uts", "--mount", "sh", "-c", POD, name,
                   str(self.folder / f"hosts-{name}"), *container["command"], script]
        with open(out, "ab") as file:
            process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.processes.append(process)
        return process


class IndexedJob:
    """The controller of an indexed Job: it starts a pod again according to the Job's podFailurePolicy."""

    def __init__(self, pods, job, changes, environment):
        self.pods, self.changes, self.environment = pods, changes, environment
        self.container = job["spec"]["template"]["spec"]["containers"][0]
        self.backoff_limit = job["spec"]["backoffLimit"]
        rules = job["spec"]["podFailurePolicy"]["rules"]
        self.rules = [(rule["action"], rule["onExitCodes"]["values"]) for rule in rules if "onExitCodes" in rule]
        self.codes = {name: [] for name in pods.names}  # of each pod's processes, in order
        self.failures = 0
        self.failed = None
        self.running = {}
        for name in pods.names:
            self.start(name)

    def start(self, name):
        if self.codes[name]:
            self.pods.move(name, len(self.codes[name]))
        environment = {"JOB_COMPLETION_INDEX": str(self.pods.names.index(name)), **self.environment}
        self.running[name] = self.pods.start(name, self.container, self.changes, environment, self.log(name))

    def log(self, name):
        return self.pods.folder / f"log-{name}"

    def said(self):
        return "\n".join(f"--- {name}: {self.codes[name]}\n{self.log(name).read_text()}" for name in self.pods.names)

    def evict(self, *names):
        for name in names:
            self.running[name].send_signal(signal.SIGTERM)

    def reconcile(self):
        """Looks at pods that ended; whether the Job is done or has failed."""
        for name, process in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[name]
            self.codes[name].append(code)
            action = next((action for action, values in self.rules if code in values), "Count")
            if code == 0:
                continue
            self.failures += action == "Count"
            if action == "FailJob" or self.failures > self.backoff_limit:
                self.failed = f"{name}: exit code {code}, {self.failures} failures"
            else:
                self.start(name)
        return self.failed is not None or not self.running

    def run_until(self, condition, timeout=60):
        return wait_for(lambda: self.reconcile() or condition(), timeout) and condition()
