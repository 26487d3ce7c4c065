"""Prints the facts about this machine and its software that figures need to be understood, as one JSON object."""

import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def first_line(*command):
    """Of the command's output; None if it is not installed or fails."""
    if shutil.which(command[0]) is None:
        return None
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = ended.stdout.strip().splitlines()
    return " ".join(lines[0].split()) if ended.returncode == 0 and lines else None


def field(path, name):
    match = re.search(rf"^{name}\s*:\s*(.+)$", pathlib.Path(path).read_text(), re.MULTILINE)
    return match[1] if match else None


def memory():
    kilobytes = field("/proc/meminfo", "MemTotal")
    return f"{int(kilobytes.split()[0]) / 2**20:.1f} GiB" if kilobytes else None


def commit():
    name = first_line("git", "rev-parse", "--short", "HEAD")
    changed = first_line("git", "status", "--porcelain", "--untracked-files=no")
    return f"{name}, with changes" if name and changed else name


def operating_system():
    names = platform.freedesktop_os_release() if pathlib.Path("/etc/os-release").exists() else {}
    return names.get("PRETTY_NAME", platform.system())


def main():
    torch = "import torch; print(torch.__version__, 'built with', torch._C._show_config().splitlines()[1].strip(' -'))"
    facts = {
        "Processor": field("/proc/cpuinfo", "model name") or platform.machine(),
        "Cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "Memory": memory(),
        "Kernel": platform.release(),
        "System": operating_system(),
        "Compiler": first_line("g++", "--version"),
        "PyTorch": first_line(os.environ.get("LOCKSTEP_BENCH_PYTHON", str(ROOT / ".venv/bin/python")), "-c", torch),
        "Open MPI": first_line("mpirun.openmpi", "--version"),
        "MPICH": first_line("mpichversion"),
        "Lockstep": commit(),
        "Load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "Date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    json.dump({name: value for name, value in facts.items() if value}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
