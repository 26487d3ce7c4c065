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
    "gloo": "Gloo",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "memcpy": "memcpy",
    "memcpy-alone": "memcpy alone",
    "lockstep": "Lockstep",
    "pytorch": "PyTorch DDP over Gloo",
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


def all_reduce_section(records):
    """`records` of one run."""
    cells = {(record["engine"], record["bytes"]): record for record in records}
    sizes = sorted({record["bytes"] for record in records})
    engines = [engine for engine in ENGINES if any(record["engine"] == engine for record in records)]

    def p50(engine, size):
        return cells[engine, size]["p50_us"] if (engine, size) in cells else None

    def faster(size, *others):
        """How many times as long as the native engine the best of the others takes."""
        found = [p50(other, size) for other in others if p50(other, size)]
        return min(found) / p50("native", size) if found and p50("native", size) else None

    times_rows, spread_rows, speed_rows = [], [], []
    for size in sizes:
        row = [time_text(p50(engine, size)) if p50(engine, size) else "–" for engine in engines]
        compared = (["gloo"], ["openmpi", "mpich"], ["memcpy"])
        times_rows.append([size_text(size), *row, *(times(faster(size, *others)) for others in compared)])
        found = [cells.get((engine, size)) for engine in engines]
        spread_rows.append([size_text(size), *(spread(record) for record in found)])
        if size >= MIN_SPEED_BYTES:
            speed_rows.append([size_text(size), *(significant(r["algbw_gbps"]) if r else "–" for r in found)])
    repetitions = min(record["iterations"] for record in records)
    names = [ENGINES[engine] for engine in engines]
    ratios = ["Gloo / Lockstep", "best MPI / Lockstep", "memcpy / Lockstep"]
    return "\n\n".join([
        f"## All-reduce of float32, {max(record['ranks'] for record in records)} ranks",
        table(["bytes", *names, *ratios], times_rows),
        f"From the 10th to the 90th percentile of {repetitions} repetitions or more:",
        table(["bytes", *names], spread_rows),
        *(["Bytes of the tensor by time, in GB/s:", table(["bytes", *names], speed_rows)] if speed_rows else []),
    ])


def spread(record):
    return f"{time_text(record['p10_us'])} to {time_text(record['p90_us'])}" if record else "–"


ALL_REDUCE_RULE = """Median times. One rule for all: a repetition begins with the engine's own barrier; each rank
measures from the return of the barrier to the return of the all-reduce, and the slowest rank counts; up to 64 KiB a
repetition is 20 all-reduces that follow one another, and its time is divided by 20. Engines take turns in blocks of
repetitions, and while one measures, the ranks of the others sleep. Results are checked once a block. "Lockstep"
reduces tensors in the memory that the ranks share, where gradients lie in training; "ordinary memory" is any other
tensor. Gloo is PyTorch's own process group, used from Python; a call from there costs a few microseconds more than
one from C++. MPI is `MPI_Allreduce` in place. `memcpy` is no all-reduce: every rank copies as many bytes, all at
once; "alone", one process does while the others sleep. A ratio above 1 means that Lockstep is faster."""

DDP_RULE = """A step is zero_grad, forward, loss, backward and SGD with momentum on one random batch, one thread a rank;
gpt's samples are sequences of 128 tokens. Engines take turns in blocks of steps. A step's time is the mean of the
ranks' times. "Unconnected" are as many processes that train at the same time without communicating. Throughput is that
of median steps. The ratios are medians over rounds, in each of which all engines had a turn."""

STARTUP_RULE = """From starting the program until rank 0 has finished its first all-reduce, with everything in the page
cache. Loading libtorch alone is what any such program pays; in the second row as many processes do it at once."""


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
              for name in ("lockstep", "pytorch", "unconnected", "pytorch-unconnected")),
            times(1 / over["pytorch"] if "pytorch" in over else None),
            times(over["unconnected"]),
        ])
        for engine, record in engines.items():
            details.append([
                f"{model}, {batch} a rank: {ENGINES[engine]}",
                *(f"{record[key]:.1f} ms" for key in ("p10_ms", "p50_ms", "p90_ms")),
                f"{record['samples_per_second']:.0f}",
                str(record["steps"]),
            ])
    header = ["model", *(ENGINES[name] for name in ("lockstep", "pytorch", "unconnected", "pytorch-unconnected")),
              "samples/s over PyTorch DDP", "step time over unconnected"]
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
        parts.append("## How all-reduce is measured\n\n" + prose(ALL_REDUCE_RULE))
    parts += [all_reduce_section(run) for run in runs_of("all_reduce")]
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
