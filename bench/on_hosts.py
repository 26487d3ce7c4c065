"""Network namespaces stand for hosts, so that engines can be compared between hosts on one machine; needs root.

    on_hosts.py make [--hosts 2] [--mbit 1000] -- build/bin/bench_all_reduce --ranks 4 ...

makes the hosts, every two joined by a bridge, each one's link limited to --mbit Mbit/s in either direction (0: as fast
as it goes), runs the command with "--hosts NAME=ADDRESS,... --link-mbit MBIT" behind it, and removes the hosts. What
bench_all_reduce then starts, with the ranks dealt to the hosts in equal runs:

    on_hosts.py ranks HOSTS RANKS PROGRAM [ARGUMENT...]    one PROGRAM a rank; rank 0 has standard input and output
    on_hosts.py openmpi HOSTS RANKS PROGRAM [ARGUMENT...]  Open MPI's mpirun, which comes back for
    on_hosts.py agent HOSTS ADDRESS COMMAND...             its daemon on another host
"""

import argparse
import contextlib
import ctypes
import os
import secrets
import subprocess
import sys
import tempfile

INTERFACE = "wire"
NETWORK = "10.214.7"
CLONE_NEWNET = 0x40000000


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def made_hosts(count, mbit):
    """[(name, address)]; besides them a bridge in a namespace of its own, so that nothing else can be reached."""
    tag = secrets.token_hex(2)
    switch = f"bench{tag}s"
    hosts = [(f"bench{tag}h{i}", f"{NETWORK}.{i + 1}") for i in range(count)]
    try:
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for i, (name, address) in enumerate(hosts):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", f"port{i}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{address}/24", "dev", INTERFACE)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", INTERFACE, "up")
            if mbit:
                for where, interface in ((name, INTERFACE), (switch, f"port{i}")):
                    # A small bucket: what it holds would be sent faster than the link allows.
                    subprocess.run(["tc", "-n", where, "qdisc", "add", "dev", interface, "root", "tbf", "rate",
                                    f"{mbit}mbit", "burst", "128kb", "latency", "20ms"], check=True)
        yield hosts
    finally:
        for name in [switch, *(name for name, _ in hosts)]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def parse_hosts(text):
    hosts = [tuple(host.split("=")) for host in text.split(",")]
    if not all(len(host) == 2 and all(host) for host in hosts):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=ADDRESS,NAME=ADDRESS,...")
    return hosts


def host_of(rank, ranks, hosts):
    return hosts[rank * len(hosts) // ranks]


def move_to(name):
    """This process, and what it starts, lives on that host from now on."""
    with open(f"/run/netns/{name}", encoding="ascii") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name}")


def start_ranks(hosts, ranks, command):
    with tempfile.TemporaryDirectory() as folder:
        token = os.path.join(folder, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
        environment = {**os.environ, "LOCKSTEP_TOKEN_FILE": token, "MASTER_ADDR": hosts[0][1], "MASTER_PORT": "29400",
                       "WORLD_SIZE": str(ranks)}
        environment.pop("LOCKSTEP_TOKEN_FD", None)
        started = []
        for rank in range(ranks):
            name, _ = host_of(rank, ranks, hosts)
            streams = {} if rank == 0 else {"stdin": subprocess.DEVNULL, "stdout": sys.stderr}
            started.append(subprocess.Popen(["ip", "netns", "exec", name, *command],
                                            env={**environment, "RANK": str(rank)}, **streams))
        return max(process.wait() for process in started)


def open_mpi(hosts, ranks, program):
    agent = f"{sys.executable} {os.path.abspath(__file__)} agent {','.join(map('='.join, hosts))}"
    slots = ",".join(f"{address}:{ranks // len(hosts)}" for _, address in hosts)
    move_to(hosts[0][0])
    name_host(hosts[0][0])
    command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--map-by", "slot",
               "--mca", "plm_rsh_agent", agent, "--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include",
               INTERFACE, "--host", slots, "-n", str(ranks), *program]
    os.execvp(command[0], command)


def name_host(name):
    """Open MPI tells hosts apart by their names."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x04000000) != 0:  # CLONE_NEWUTS
        raise OSError(ctypes.get_errno(), "cannot make a namespace for the host's name")
    with open("/proc/sys/kernel/hostname", "w", encoding="ascii") as file:
        file.write(name)


def be_agent(hosts, address, command):
    name = dict((address, name) for name, address in hosts)[address]
    move_to(name)
    name_host(name)
    os.execvp("sh", ["sh", "-c", " ".join(command)])


def make(count, mbit, command):
    if os.geteuid() != 0:
        raise OSError("making network namespaces needs root")
    with made_hosts(count, mbit) as hosts:
        there = ["--hosts", ",".join(map("=".join, hosts)), "--link-mbit", str(mbit)]
        return subprocess.run([*command, *there], check=False).returncode


def number(least, most):
    def parse(text):
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least} to {most}")
        return int(text)
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("make")
    verb.add_argument("--hosts", type=number(1, 254), default=2)
    verb.add_argument("--mbit", type=number(0, 1000000), default=1000)
    for name in ("ranks", "openmpi"):
        verb = verbs.add_parser(name)
        verb.add_argument("hosts", type=parse_hosts)
        verb.add_argument("ranks", type=number(1, 4096))
    verb = verbs.add_parser("agent")
    verb.add_argument("hosts", type=parse_hosts)
    verb.add_argument("address")
    for verb in verbs.choices.values():
        verb.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.command[:1] == ["--"]:
        options.command.pop(0)
    if not options.command:
        parser.error(f"{options.verb} needs a command")
    if options.verb == "openmpi" and options.ranks % len(options.hosts) != 0:
        parser.error(f"{options.ranks} ranks cannot be dealt to {len(options.hosts)} hosts in equal runs")
    if options.verb == "agent" and options.address not in dict(map(reversed, options.hosts)):
        parser.error(f"none of the hosts has the address {options.address}")
    return options


def main():
    options = parse_arguments()
    try:
        if options.verb == "make":
            return make(options.hosts, options.mbit, options.command)
        if options.verb == "ranks":
            return start_ranks(options.hosts, options.ranks, options.command)
        if options.verb == "openmpi":
            return open_mpi(options.hosts, options.ranks, options.command)
        return be_agent(options.hosts, options.address, options.command)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"on_hosts.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
