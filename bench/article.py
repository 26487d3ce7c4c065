"""Runs an article's experiment, Lockstep beside PyTorch: article.py run BIN --folder DIR [--only PATTERN] [--dry-run]
                                                       article.py steps BIN --folder DIR [--steps 50]
                                                       article.py plot

run    trains what is not done yet, ten epochs each, which takes hours; killed and started again it goes on. Each run
       that is done becomes docs/article/NAME.csv.
steps  compares the losses of the first steps of Lockstep, PyTorch over Gloo and PyTorch over Lockstep's backend, for 1,
       2 and 4 ranks.
plot   makes the tables and the pictures of docs/ARTICLE.md from these files. Needs matplotlib."""

import argparse
import csv
import fnmatch
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "article"
# What the article's tables were made with: by the program beside it that runs all three, whose batch is 16.
TABLES = ("--batch-size", 16, "--article-bugs")
COLUMNS = ("epoch", "train_loss", "val_loss", "val_accuracy")


def runs():
    """Name, engine and options of each run, those that say most first."""
    for ranks in (1, 2, 4):
        yield f"printed_lockstep_mode_k{ranks}", "lockstep", ["--world-size", ranks, "--lockstep", "--shards", 4]
    for ranks in (1, 2, 4):
        synced = ["--sync-batchnorm"] if ranks > 1 else []
        yield f"tables_lockstep_k{ranks}", "lockstep", ["--world-size", ranks, *TABLES, *synced]
    yield "tables_pytorch_k1", "pytorch", ["--world-size", 1, *TABLES]
    for engine in ("lockstep", "pytorch"):
        for ranks in (2, 4, 1):
            yield f"printed_{engine}_k{ranks}", engine, ["--world-size", ranks]
    for seed in (1, 2):
        yield f"printed_pytorch_k1_seed{seed}", "pytorch", ["--world-size", 1, "--seed", seed]


def command_of(engine, options):
    if engine.startswith("pytorch"):
        return [sys.executable, "-B", HERE / "article_torch.py"]
    return [options.bin / "fashion_mnist_ddp"]


def epochs_of(folder):
    """The newest line of each epoch."""
    lines = {}
    metrics = folder / "metrics.jsonl"
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        values = json.loads(line)
        if "train_loss" in values:
            lines[values["epoch"]] = values
    return [lines[epoch] for epoch in sorted(lines)]


def write_csv(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def run(options):
    for name, engine, chosen in runs():
        if not fnmatch.fnmatch(name, options.only) or (RESULTS / f"{name}.csv").exists():
            continue
        folder = options.folder / name
        command = [*map(str, command_of(engine, options)), *map(str, chosen), "--num-epochs", str(options.epochs),
                   "--out", str(folder)]
        if engine == "lockstep":
            command += ["--checkpoint-every", "100"]
        if options.device != "cpu":
            command += ["--device", options.device]
        print(name, ":", " ".join(command), flush=True)
        if options.dry_run:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "a") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
        rows = [[each["epoch"] + 1, *(f"{each[column]:.6f}" for column in COLUMNS[1:])] for each in epochs_of(folder)]
        if len(rows) != options.epochs:
            sys.exit(f"article.py: {folder}/metrics.jsonl has {len(rows)} epochs of {options.epochs}")
        write_csv(RESULTS / f"{name}.csv", COLUMNS, rows)


def first_losses(engine, name, ranks, options):
    folder = options.folder / f"steps_{name}"
    shutil.rmtree(folder, ignore_errors=True)  # a checkpoint there would be gone on with
    folder.mkdir(parents=True)
    file = folder / "losses.csv"
    command = [*map(str, command_of(engine, options)), "--world-size", str(ranks), "--max-steps", str(options.steps),
               "--step-losses", str(file), "--out", str(folder / "out")]
    environment = dict(os.environ)
    if name.startswith("pytorch_on_lockstep"):
        command += ["--backend", "lockstep"]
        environment["PYTHONPATH"] = str(options.bin.parent / "python" / "tests" / "site")
    with open(folder / "log.txt", "w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)
    return [float(row["train_loss"]) for row in csv.DictReader(file.open())]


def largest_difference(ours, theirs):
    return max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))


def steps(options):
    columns = {}
    for ranks in (1, 2, 4):
        for engine in ("lockstep", "pytorch", "pytorch_on_lockstep"):
            name = f"{engine}_k{ranks}"
            columns[name] = first_losses(engine, name, ranks, options)
    for ranks in (1, 2, 4):
        ours = columns[f"lockstep_k{ranks}"]
        gloo, same = (largest_difference(ours, columns[f"{engine}_k{ranks}"])
                      for engine in ("pytorch", "pytorch_on_lockstep"))
        print(f"{ranks} ranks: {len(ours)} steps, largest relative difference to PyTorch over Gloo {gloo:.1e}, "
              f"over Lockstep {same:.1e}")
    for engine in ("lockstep", "pytorch"):
        among = max(largest_difference(columns[f"{engine}_k{ranks}"], columns[f"{engine}_k1"]) for ranks in (2, 4))
        print(f"{engine}: largest relative difference of 2 and 4 ranks to 1: {among:.1e}")
    write_csv(RESULTS / "first_steps.csv", ["step", *columns],
              ([step, *(f"{value:.7f}" for value in row)] for step, row in enumerate(zip(*columns.values()), start=1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "steps", "plot"))
    parser.add_argument("bin", nargs="?", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, help="for checkpoints and logs of the runs")
    parser.add_argument("--only", default="*", help="names of runs, as a pattern")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dry-run", action="store_true", help="only show the commands")
    options = parser.parse_args()
    if options.what == "plot":
        import article_plot
        return article_plot.main(RESULTS)
    if not options.bin or not options.folder:
        parser.error("BIN and --folder are needed")
    options.bin, options.folder = options.bin.resolve(), options.folder.resolve()
    if not (options.bin / "fashion_mnist_ddp").exists():
        parser.error(f"{options.bin} has no fashion_mnist_ddp; build it with script/build")
    if not any(fnmatch.fnmatch(name, options.only) for name, _, _ in runs()):
        parser.error(f"no run is called {options.only}; there are {', '.join(name for name, _, _ in runs())}")
    return run(options) if options.what == "run" else steps(options)


if __name__ == "__main__":
    main()
