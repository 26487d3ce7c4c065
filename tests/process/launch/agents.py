"""Several launchers that run one job, each as on a host of its own: Job(lockstep), job.start("a", script)."""

import os
import random
import secrets
import socket
import tempfile

from processes import Tree, wait_for


def free_port():
    """One that the kernel does not give to connections."""
    while True:
        port = random.randrange(10000, 15000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def listens(endpoint):
    """Whether a process of this machine listens there."""
    wanted = f":{int(endpoint.rpartition(':')[2]):04X}"
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return any(row[1].endswith(wanted) and row[3] == "0A" for row in rows)


class Agent(Tree):
    """A launcher whose output can be read while it runs."""

    def __init__(self, name, folder, command, environment, stderr=None):
        self.name = name
        self.paths = {stream: os.path.join(folder, f"{name}.{stream}") for stream in ("out", "err")}
        with open(self.paths["out"], "wb") as out, open(self.paths["err"], "wb") as err:
            super().__init__(command, environment, stdout=out, stderr=stderr or err)

    def read(self, stream):
        with open(self.paths[stream], encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def output(self):
        return self.read("out")

    @property
    def error(self):
        return self.read("err")

    def code(self, timeout=60):
        return self.process.wait(timeout)

    def says(self, text, timeout=30, stream="err"):
        """Whether the text is there within the time."""
        return wait_for(lambda: text in self.read(stream), timeout)


class Job:
    """The launchers of one job. `wrap`: from a host's name to what stands before its command."""

    def __init__(self, lockstep, *options, endpoint=None, wrap=lambda name: []):
        self.lockstep, self.options, self.wrap = lockstep, options, wrap
        self.endpoint = endpoint or f"127.0.0.1:{free_port()}"
        self.folder = tempfile.TemporaryDirectory()
        self.token = self.write_token("token")
        self.agents = []

    def write_token(self, name):
        path = os.path.join(self.folder.name, name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        return path

    def start(self, name, program, *options, ranks=2, token=None, stderr=None):
        """program: for sh, or a list. stderr: another place than the agent's file."""
        arguments = ["sh", "-c", program] if isinstance(program, str) else program
        command = [*self.wrap(name), self.lockstep, "run", "--nproc-per-node", str(ranks), "--rdzv-endpoint",
                   self.endpoint, *self.options, *options, *arguments]
        environment = {"LOCKSTEP_NODE": name, "LOCKSTEP_TOKEN_FILE": token or self.token}
        agent = Agent(name, self.folder.name, command, environment, stderr)
        # The first one is the first host.
        if not self.agents and not self.wrap(name):
            wait_for(lambda: listens(self.endpoint) or agent.process.poll() is not None, 20)
        self.agents.append(agent)
        return agent

    def codes(self, timeout=60):
        return [agent.code(timeout) for agent in self.agents]

    def texts(self):
        """All that was said, for messages of tests."""
        return "\n".join(f"--- {agent.name}: {agent.process.poll()}\n{agent.output}{agent.error}"
                         for agent in self.agents)

    def left(self, timeout=3):
        return [pid for agent in self.agents for pid in agent.wait_until_gone(timeout)]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for agent in self.agents:
            agent.__exit__()
        self.folder.cleanup()
