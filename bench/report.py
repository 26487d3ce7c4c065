"""Writes the page about performance from what the benchmarks measured: report.py FOLDER [--out FILE]

FOLDER holds machine.json and the files of JSON lines that bench_all_reduce and bench_ddp wrote, by any name. Every
number of the page comes from there.
"""

import argparse
import json
import pathlib
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENGINES = {
    "native": "Lockstep",
    "native-ordinary": "Lockstep, ordinary memory",
    "python": "Lockstep, from Python",
    "gloo": "Gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "memcpy": "memcpy",
    "memcpy-alone": "memcpy alone",
    "lockstep": "Lockstep",
    "lockstep-mode": "Lockstep, lockstep mode",
    "pytorch": "PyTorch DDP over Gloo",
    "pytorch-on-lockstep": "PyTorch DDP on Lockstep's backend",
    "unconnected": "unconnected, C++",
    "pytorch-unconnected": "unconnected, PyTorch",
}
STARTS = {
    "load-libtorch": "only load libtorch and make a tensor",
    "lockstep-run": "`lockstep run` to the first all-reduce",
    "lockstep-spawn": "`lockstep::spawn` to the first all-reduce",
    "pytorch-fork": "PyTorch, ranks forked after `import torch`",
    "pytorch-torchrun": "PyTorch, `torchrun`",
}
MIN_SPEED_BYTES = 65536  # below, the time is not about bytes


def read_runs(folder):
    """The records of each file, which is what one program wrote."""
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != "machine.json"]
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def table(header, rows):
    """Of Markdown; all columns but the first are aligned to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def prose(text):
    return textwrap.fill(" ".join(text.split()), 120)


def size_text(size):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def significant(value):
    """Three digits, and no exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def time_text(microseconds):
    if microseconds >= 1000:
        return f"{significant(microseconds / 1000)} ms"
    return f"{significant(microseconds)} µs"


def times(value):
    return f"{significant(value)}×" if value is not None else "–"


class Run:
    """The records of one run: by engine and size."""

    def __init__(self, records):
        self.cells = {(record["engine"], record["bytes"]): record for record in records}
        self.sizes = sorted({record["bytes"] for record in records})
        self.engines = [engine for engine in ENGINES if any(record["engine"] == engine for record in records)]
        self.names = [ENGINES[engine] for engine in self.engines]
        self.repetitions = min(record["iterations"] for record in records)
        self.ranks = max(record["ranks"] for record in records)
        self.op, self.dtype = records[0]["op"], records[0]["dtype"]
        self.mbit = records[0]["link_mbit"]

    def p50(self, engine, size):
        return self.cells[engine, size]["p50_us"] if (engine, size) in self.cells else None

    def ratio(self, own, size, *others):
        """How many times as long as `own` the best of the others takes."""
        found = [self.p50(other, size) for other in others if self.p50(other, size)]
        return times(min(found) / self.p50(own, size) if found and self.p50(own, size) else None)

    def times_of(self, size):
        return [time_text(self.p50(engine, size)) if self.p50(engine, size) else "–" for engine in self.engines]

    def spreads(self):
        rows = [[size_text(size), *(spread(self.cells.get((engine, size))) for engine in self.engines)]
                for size in self.sizes]
        return [f"From the 10th to the 90th percentile of {self.repetitions} repetitions or more:",
                table(["bytes", *self.names], rows)]


def collective_section(records):
    """Of one host."""
    run = Run(records)
    compared = [("native", ["gloo"], "Gloo / Lockstep"), ("native", ["openmpi", "mpich"], "best MPI / Lockstep"),
                ("python", ["gloo"], "Gloo / Lockstep from Python"), ("native", ["memcpy"], "memcpy / Lockstep"),
                ("native-ordinary", ["memcpy"], "memcpy / Lockstep, ordinary memory")]
    compared = [each for each in compared if {each[0], *each[1]} & set(run.engines) >= {each[0]}
                and set(each[1]) & set(run.engines)]
    rows = [[size_text(size), *run.times_of(size), *(run.ratio(own, size, *others) for own, others, _ in compared)]
            for size in run.sizes]
    name = run.op.replace("_", "-").capitalize()
    return "\n\n".join([f"## {name} of {run.dtype}, {run.ranks} ranks",
                        table(["bytes", *run.names, *(title for _, _, title in compared)], rows), *run.spreads()])


def hosts_section(records):
    run = Run(records)
    own = "native-ordinary"
    link = f"{run.mbit} Mbit/s" if run.mbit else "unlimited"
    rows = []
    for size in run.sizes:
        row = [size_text(size), *run.times_of(size), run.ratio(own, size, "gloo"), run.ratio(own, size, "openmpi")]
        if run.mbit:
            row.append(f"{size * 8 / run.p50(own, size) / run.mbit:.0%}")
        rows.append(row)
    header = ["bytes", *run.names, "Gloo / Lockstep", "Open MPI / Lockstep", *(["of the link"] if run.mbit else [])]
    return "\n\n".join([f"## All-reduce of {run.dtype} between two hosts, {run.ranks // 2} ranks each, link {link}",
                        table(header, rows), *run.spreads()])


def checks_section(records):
    rows = [[size_text(r["bytes"]), time_text(r["checked_us"]), time_text(r["bare_us"]),
             *(f"{r[key] * 1000:.0f} ns" for key in ("difference_us", "signature_us", "checks_us")),
             f"{r['share']:.1%}"] for r in records]
    header = ["bytes", "all-reduce", "without recorder and deadline", "difference", "signature", "checks together",
              "of the all-reduce"]
    return "\n\n".join(["## What checks cost", prose(CHECKS_RULE), table(header, rows)])


def spread(record):
    return f"{time_text(record['p10_us'])} to {time_text(record['p90_us'])}" if record else "–"


ALL_REDUCE_RULE = """Median times. One rule for all: a repetition begins with the engine's own barrier; each rank
measures from the return of the barrier to the return of the all-reduce, and the slowest rank counts; up to 64 KiB a
repetition is 20 all-reduces that follow one another, and its time is divided by 20. Engines take turns in blocks of
repetitions, and while one measures, the ranks of the others sleep. Results are checked once a block. "Lockstep"
reduces tensors in the memory that the ranks share, where gradients lie in training; "ordinary memory" is any other
tensor. Gloo is PyTorch's own process group, used from Python; a call from there costs a few microseconds more than
one from C++. MPI is `MPI_Allreduce` in place. `memcpy` is no all-reduce: every rank copies as many bytes, all at
once; "alone", one process does while the others sleep. Bytes are those of the longer side: what is reduced or
broadcast, all that is gathered, all that is scattered. A ratio above 1 means that Lockstep is faster."""

HOSTS_RULE = """Two network namespaces of this machine act as hosts, joined by a bridge; a token bucket filter limits
each one's link in each direction. The same rule as above. "Of the link": the bytes that must cross it at least once, in
each direction, by the time and the link's speed, headers of packets not counted."""

CHECKS_RULE = """Every collective compares signatures, keeps a deadline and is recorded. The difference is between
neighbouring blocks of all-reduces with recorder and deadline and without, on one engine of 2 ranks, threads that share
memory; the signature is timed alone. No check touches the data, so their cost does not grow with it."""

DDP_RULE = """A step is zero_grad, forward, loss, backward and SGD with momentum on one random batch, one thread a rank;
gpt's samples are sequences of 128 tokens. Engines take turns in blocks of steps. A step's time is the mean of the
ranks' times. In lockstep mode a step has as many shards as ranks. "Unconnected" are as many processes that train at the
same time without communicating. Throughput is that of median steps. The ratios are medians over rounds, in each of
which all engines had a turn."""

STARTUP_RULE = """From starting the program until rank 0 has finished its first all-reduce, with everything in the page
cache. Loading libtorch alone is what any such program pays; in the second row as many processes do it at once."""


STEP_ENGINES = ("lockstep", "lockstep-mode", "pytorch", "pytorch-on-lockstep", "unconnected", "pytorch-unconnected")


def ddp_section(records):
    groups = {}
    for record in records:
        groups.setdefault((record["model"], record["batch"], record["ranks"]), {})[record["engine"]] = record
    rows, details = [], []
    for (model, batch, ranks), engines in groups.items():
        over = engines["lockstep"]["step_time_over"]
        rows.append([
            f"{model}, {batch} a rank, {ranks} ranks",
            *(f"{engines[name]['p50_ms']:.1f} ms" if name in engines else "–"
              for name in STEP_ENGINES),
            times(1 / over["pytorch"] if "pytorch" in over else None),
            times(over["unconnected"]),
            times(1 / over["lockstep-mode"] if "lockstep-mode" in over else None),
            times(engines["pytorch"]["step_time_over"].get("pytorch-on-lockstep") if "pytorch" in engines else None),
        ])
        for engine, record in engines.items():
            details.append([
                f"{model}, {batch} a rank, {ranks} ranks: {ENGINES[engine]}",
                *(f"{record[key]:.1f} ms" for key in ("p10_ms", "p50_ms", "p90_ms")),
                f"{record['samples_per_second']:.0f}",
                str(record["steps"]),
            ])
    header = ["model", *(ENGINES[name] for name in STEP_ENGINES), "samples/s over PyTorch DDP",
              "step time over unconnected", "lockstep mode over Lockstep", "PyTorch on Lockstep over Gloo"]
    return "\n\n".join([
        "## Training steps",
        prose(DDP_RULE),
        table(header, rows),
        table(["", "10th percentile", "median", "90th percentile", "samples/s", "steps"], details),
    ])


def startup_section(records):
    rows = [
        [STARTS[record["engine"]], str(record["ranks"]), *(f"{record[key]:.0f} ms" for key in ("min_ms", "p50_ms"))]
        for record in records
    ]
    return "\n\n".join(["## Start-up", prose(STARTUP_RULE), table(["", "processes", "least", "median"], rows)])


def order(records):
    """All-reduce first, and what is most used."""
    first = records[0]
    return (first["op"] != "all_reduce", first["dtype"] != "float32", first["op"], max(r["ranks"] for r in records))


def page(machine, runs):
    def runs_of(bench):
        found = [[record for record in run if record["bench"] == bench] for run in runs]
        return [run for run in found if run]

    parts = [
        "# Performance",
        prose("This page is written by `bench/report.py` from what the benchmarks measured; edits would be lost."),
        table(["", "measured on"], [[name, str(value)] for name, value in machine.items()]),
    ]
    if runs_of("all_reduce"):
        parts.append("## How collectives are measured\n\n" + prose(ALL_REDUCE_RULE))
    parts += [collective_section(run) for run in sorted(runs_of("all_reduce"), key=order)]
    if runs_of("all_reduce_between_hosts"):
        parts.append("## How hosts are made\n\n" + prose(HOSTS_RULE))
    parts += [hosts_section(run) for run in runs_of("all_reduce_between_hosts")]
    if checks := sum(runs_of("checks"), []):
        parts.append(checks_section(checks))
    if training := sum(runs_of("ddp"), []):
        parts.append(ddp_section(training))
    if starts := sum(runs_of("startup"), []):
        parts.append(startup_section(starts))
    commands = (pathlib.Path(__file__).parent / "run_all.sh").read_text().split("# measure\n")[1].split("# report\n")[0]
    parts += [
        "## Measure it yourself",
        "```sh\nscript/bootstrap --bench && script/build\nbench/run_all.sh\n```",
        "which runs, into a folder `$out`, and then writes this page:",
        "```sh\n" + commands.strip() + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "PERFORMANCE.md")
    arguments = parser.parse_args()
    machine = json.loads((arguments.folder / "machine.json").read_text())
    arguments.out.write_text(page(machine, read_runs(arguments.folder)))
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
