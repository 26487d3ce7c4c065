"""Tables and pictures of docs/ARTICLE.md, from the CSV files in docs/article: called by article.py plot."""

import csv
import re

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "lockstep"
from matplotlib import pyplot  # noqa: E402  (the kind of picture is chosen before)

# Title, and for each column its heading and file.
TABLES = {
    "tables": ("The setup of the article's tables", "article_k1", "tables_lockstep_k1", "tables_pytorch_k1",
               "article_k2", "tables_lockstep_k2", "article_k4", "tables_lockstep_k4"),
    "printed": ("A batch of 128", "printed_lockstep_k1", "printed_lockstep_k2", "printed_lockstep_k4",
                "printed_pytorch_k1", "printed_pytorch_k2", "printed_pytorch_k4"),
    "seeds": ("PyTorch with other seeds", "printed_pytorch_k1", "printed_pytorch_k1_seed1", "printed_pytorch_k1_seed2"),
    "mode": ("Lockstep mode", "printed_lockstep_mode_k1", "printed_lockstep_mode_k2", "printed_lockstep_mode_k4"),
}


def read(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def heading(name):
    for word, readable in (("printed_", ""), ("tables_", ""), ("lockstep_mode", "lockstep mode"),
                           ("pytorch", "PyTorch"), ("lockstep_", "Lockstep "), ("seed", "seed ")):
        name = name.replace(word, readable)
    return re.sub(r"k(\d)", r"K = \1", name).replace("_", ", ").replace("Lockstep K", "Lockstep, K")


def table(results, names, column):
    """Markdown; columns whose run is not done yet are left out."""
    runs = {name: read(results / f"{name}.csv") for name in names if (results / f"{name}.csv").exists()}
    lines = ["| epoch | " + " | ".join(heading(name) for name in runs) + " |", "|---" * (len(runs) + 1) + "|"]
    for i in range(max(len(rows) for rows in runs.values())):
        lines.append(f"| {i + 1} | " + " | ".join(f"{float(rows[i][column]):.4f}" for rows in runs.values()) + " |")
    return "\n".join(lines)


def picture(results, names, title, path):
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for name in names:
        file = results / f"{name}.csv"
        if not file.exists():
            continue
        rows = read(file)
        for axis, column in zip(axes, ("train_loss", "val_loss")):
            axis.plot([int(row["epoch"]) for row in rows], [float(row[column]) for row in rows], label=heading(name),
                      linestyle="--" if name.startswith("article") else "-", linewidth=1.2)
    for axis, label in zip(axes, ("training loss", "validation loss")):
        axis.set(xlabel="epoch", ylabel=label)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(results):
    page = results.parent / "ARTICLE.md"
    text = page.read_text()
    for key, (title, *names) in TABLES.items():
        if not any((results / f"{name}.csv").exists() for name in names if not name.startswith("article")):
            continue
        picture(results, names, title, results.parent / "images" / f"article_{key}.svg")
        for column in ("train_loss", "val_loss"):
            marks = f"<!-- {key} {column} -->", f"<!-- end of {key} {column} -->"
            if marks[0] not in text:
                kind = "training" if column == "train_loss" else "validation"
                shown = f"![{title}](images/article_{key}.svg)\n\n" if kind == "training" else ""
                text += f"\n### {title}: {kind} loss\n\n{shown}{marks[0]}\n{marks[1]}\n"
            pattern = re.compile(re.escape(marks[0]) + ".*?" + re.escape(marks[1]), re.DOTALL)
            text = pattern.sub(lambda _: f"{marks[0]}\n{table(results, names, column)}\n{marks[1]}", text)
    page.write_text(text)
