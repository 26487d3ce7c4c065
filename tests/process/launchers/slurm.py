"""A cluster of Slurm on this machine: two nodes, each in a network namespace of its own, for as long as a test runs.

Everything it keeps is in one folder, munge's key included; nothing of the machine's own configuration is touched.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "links"))
from links_test import Namespaces  # noqa: E402

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "salloc", "munged")
CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={host}({addresses[0]})
SlurmctldParameters=enable_configless
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
KillWait=5
CryptoType=crypto/munge
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr={addresses[0]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr={addresses[1]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=5 State=UP
"""


def why_not():
    """Why there can be no cluster here; empty if there can."""
    missing = [program for program in PROGRAMS if find(program) is None]
    if missing:
        return f"Slurm is not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return ""


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Cluster:
    def __init__(self, folder):
        self.folder = os.path.join(folder, "slurm")
        self.namespaces = Namespaces()
        self.daemons = []

    def __enter__(self):
        self.namespaces.__enter__()
        try:
            self.write_files()
            self.start_munge()
            first, second = self.namespaces.names
            self.start(first, find("slurmctld"), "-D", "-f", self.configuration)
            self.start(first, find("slurmd"), "-D", "-N", "n1", "-f", self.configuration)
            self.start(second, find("slurmd"), "-D", "-N", "n2", "-f", self.configuration)
            self.wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for namespace in self.namespaces.names:  # what a step leaves behind if its node's daemon ends first
            left = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout
            for pid in left.split():
                os.kill(int(pid), signal.SIGKILL)
        self.namespaces.__exit__()

    def write_files(self):
        os.makedirs(os.path.join(self.folder, "munge"), mode=0o755)
        for name in ("state", "spool-n1", "spool-n2"):
            os.mkdir(os.path.join(self.folder, name))
        host = os.uname().nodename.split(".")[0]
        self.configuration = os.path.join(self.folder, "slurm.conf")
        with open(self.configuration, "w", encoding="ascii") as file:
            file.write(CONFIGURATION.format(host=host, addresses=self.namespaces.addresses, folder=self.folder))
        # The nodes' names, as a network would know them.
        self.hosts = os.path.join(self.folder, "hosts")
        with open(self.hosts, "w", encoding="ascii") as file:
            file.write("127.0.0.1 localhost\n")
            file.writelines(f"{address} {name}\n" for address, name in zip(self.namespaces.addresses, ("n1", "n2")))
            file.write(f"{self.namespaces.addresses[0]} {host}\n")

    def start_munge(self):
        folder = os.path.join(self.folder, "munge")
        key = os.path.join(folder, "key")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.urandom(128))
        self.start(None, find("munged"), "--foreground", "--force", f"--key-file={key}",
                   f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--seed-file={folder}/seed",
                   f"--log-file={folder}/log")
        wait_for(lambda: os.path.exists(os.path.join(folder, "socket")), "munged's socket")

    def inside(self, namespace, *command):
        """The command as it runs on a host of the cluster: with its network, and names of hosts."""
        if namespace is None:
            return list(command)
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        enter = ["nsenter", f"--net=/run/netns/{namespace}"]
        return ["unshare", "--mount", "sh", "-c", script, self.hosts, *enter, *command]

    def start(self, namespace, *command):
        with open(os.path.join(self.folder, "daemons.log"), "a", encoding="utf-8") as log:
            self.daemons.append(subprocess.Popen(self.inside(namespace, *command), stdin=subprocess.DEVNULL,
                                                 stdout=log, stderr=log))

    def command(self, *command):
        """The same, on the first node, with Slurm's commands."""
        return self.inside(self.namespaces.names[0], "env", f"SLURM_CONF={self.configuration}", *command)

    def wait_until_idle(self):
        def idle():
            query = self.command("sinfo", "-h", "-t", "idle", "-o", "%D")
            return subprocess.run(query, capture_output=True, text=True).stdout.strip() == "2"

        wait_for(idle, "two idle nodes")


def wait_for(condition, what, timeout=30):
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"there was no {what} within {timeout} s")
        time.sleep(0.05)
