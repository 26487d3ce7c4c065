"""How fast checkpoints are saved and loaded, beside the disk and PyTorch: checkpoint.py BIN [--mib 1024] [--ranks 2]
[--rounds 5] [--folder DIR] [--json FILE] [--page FILE]

Each round writes the same number of bytes with dd, Lockstep and PyTorch, one after the other, to the same disk. Shows
medians and spreads, and Lockstep's share of what dd and PyTorch reach in the same round."""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# What is divided by what, in the same round: more than 1 is better.
RATIOS = (("dd / save", "dd", "save"), ("torch.save / save", "torch_save", "save"), ("DCP / save", "dcp_save", "save"),
          ("torch.load / load", "torch_load", "load"), ("DCP / load", "dcp_load", "load"),
          ("DCP / load, from the disk", "dcp_load_cold", "load_cold"),
          ("DCP's stall / AsyncSaver's stall", "dcp_async_stall", "async_stall"),
          ("the same in the second save", "dcp_async_stall_again", "async_stall_again"),
          ("save / stall of a copy in the background", "save", "background_stall"),
          ("DCP / AsyncSaver, until it is on disk", "dcp_async", "async"))


# What the page shows: what is done, Lockstep's time, and those of others.
ROWS = (("save, until it is on the disk", "save", {"dd": "dd", "torch.save": "torch_save", "DCP": "dcp_save"}),
        ("load, from the file cache", "load", {"torch.load": "torch_load", "DCP": "dcp_load"}),
        ("load, from the disk", "load_cold", {"DCP": "dcp_load_cold"}),
        ("save in the background: the training waits", "async_stall", {"DCP": "dcp_async_stall"}),
        ("the same, second save", "async_stall_again", {"DCP": "dcp_async_stall_again"}),
        ("the same with `copy_in_background`", "background_stall", {"DCP": "dcp_async_stall_again"}),
        ("save in the background, until it is on the disk", "async", {"DCP": "dcp_async"}))
MARKS = "<!-- bench/checkpoint.py -->", "<!-- end of bench/checkpoint.py -->"


def drop_caches():
    """So that reads come from the disk; without the right to, they come from memory, for all alike."""
    subprocess.run(["sync"], check=True)
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        pass


def dd(folder, mebibytes):
    start = time.perf_counter()
    subprocess.run(["dd", "if=/dev/zero", f"of={folder / 'dd'}", "bs=1M", f"count={mebibytes}", "conv=fsync",
                    "status=none"], check=True)
    return {"dd": time.perf_counter() - start}


def ranks(launcher, count, command):
    done = subprocess.run([launcher, "run", "--nproc-per-node", str(count), "--no-prefix", *map(str, command)],
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours_or_theirs(options, worker, folder):
    """Saves and loads, and then loads from the disk."""
    command = [*worker, folder, options.mib]
    result = ranks(options.bin / "lockstep", options.ranks, command)
    drop_caches()
    return result | ranks(options.bin / "lockstep", options.ranks, [*command, "load"])


def measure(options):
    rounds = []
    for _ in range(options.rounds):
        result = {}
        for turn in (lambda folder: dd(folder, options.mib),
                     lambda folder: ours_or_theirs(options, [options.bin / "bench_checkpoint_worker"], folder),
                     lambda folder: ours_or_theirs(options, [options.python, HERE / "checkpoint_worker.py"], folder)):
            folder = pathlib.Path(tempfile.mkdtemp(dir=options.folder))
            try:
                drop_caches()
                result.update(turn(folder))
            finally:
                shutil.rmtree(folder)
        rounds.append(result)
        print(json.dumps(result), file=sys.stderr, flush=True)
    return rounds


def show(rounds):
    def line(name, values, unit):
        print(f"{name:40} {statistics.median(values):8.3f} {unit}  ({min(values):.3f} to {max(values):.3f})")
    for name in rounds[0]:
        line(name, [each[name] for each in rounds], "MiB" if name.endswith("_mib") else "s")
    for name, above, below in RATIOS:
        line(name, [each[above] / each[below] for each in rounds], "times")


def median_and_spread(values):
    return f"{statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"


def page_table(rounds, options):
    lines = [f"{options.mib} MiB of state, {options.ranks} ranks, medians of {len(rounds)} rounds, with the fastest "
             "and the slowest one:", "", "| | Lockstep | beside it | times as fast |", "|---|---:|---:|---:|"]
    for what, ours, others in ROWS:
        for name, key in others.items():
            ratio = statistics.median(each[key] / each[ours] for each in rounds)
            lines.append(f"| {what} | {median_and_spread([each[ours] for each in rounds])} "
                         f"| {name}: {median_and_spread([each[key] for each in rounds])} | {ratio:.2g} |")
    memory = {what: max(each[f"{what}_memory_mib"] for each in rounds) for what in ("save", "load")}
    lines += ["", f"A rank takes {memory['save']:.1f} MiB more than its state to save it, and {memory['load']:.1f} MiB "
              "to load it."]
    return "\n".join(lines)


def write_page(path, rounds, options):
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    path.write_text(before + MARKS[0] + "\n" + page_table(rounds, options) + "\n" + MARKS[1] + rest.split(MARKS[1])[1],
                    encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="on the disk that is measured", default=None)
    parser.add_argument("--python", default=str(HERE.parent / ".venv" / "bin" / "python"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path, help="replaces the table of docs/CHECKPOINTS.md")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    if options.folder:
        pathlib.Path(options.folder).mkdir(parents=True, exist_ok=True)
    rounds = measure(options)
    show(rounds)
    if options.json:
        options.json.write_text(json.dumps({"mib": options.mib, "ranks": options.ranks, "rounds": rounds}) + "\n")
    if options.page:
        write_page(options.page, rounds, options)


if __name__ == "__main__":
    main()
