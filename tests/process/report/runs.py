"""Directories of runs, as trainings write them, for the tests of `lockstep report`."""

import json
import os

HOSTILE = "</title><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">\u202e"


def epoch(number, **metrics):
    return {"epoch": number, **metrics, "world_size": 2}


def steps(step, ranks=2, late=0.0):
    times = [{"rank": rank, "data_s": 0.002 + (late if rank == 1 else 0), "forward_s": 0.010, "backward_s": 0.020,
              "waiting_s": 0.0 if rank == 1 else late, "communicating_s": 0.001,
              "optimizer_s": 0.001, "step_s": 0.035 + late,
              "hidden_s": 0.003, "late_s": late if rank == 1 else 0.0} for rank in range(ranks)]
    return {"kind": "steps", "step": step, "steps": 10, "world_size": ranks, "ranks": times,
            "straggler": 1 if late else None}


def start(**fields):
    return {"kind": "run", "command": ["./train", "--name", "two words"], "host": "n1",
            "started": "2026-11-25T18:40:21Z", "threads": 2, "versions": {"torch": "2.13.0"}, **fields}


def whole(epochs=3, text=""):
    """All kinds of lines."""
    lines = [start(host="n1" + text, command=["./train", "--name", "two words" + text])]
    for number in range(epochs):
        lines += [steps(number * 100 + 10 * i, late=0.005 if i == 7 else 0.0) for i in range(1, 11)]
        lines.append(epoch(number, train_loss=1 / (number + 1), val_loss=1.5 / (number + 1),
                           val_accuracy=1 - 0.5 / (number + 1), samples_per_second=1000 + number))
        lines.append({"kind": "checkpoint", "step": number * 100 + 100, "seconds": 0.25,
                      "path": f"out/step-{number * 100 + 100:010}"})
    lines.append({"kind": "restart", "attempt": 1, "reason": "rank 1 was killed by SIGKILL" + text,
                  "at": "2026-11-25T19:00:00Z"})
    return lines


def write(folder, lines):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    return folder
