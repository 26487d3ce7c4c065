# Optimizers of PyTorch on one side, those of libtorch on the other.
#   optimizer_oracle.py make DIR    for each case: trains, writes DIR/CASE.pt, trains on, writes DIR/CASE.after.pt
#   optimizer_oracle.py check DIR   for each case that Lockstep has written so: loads, trains on, compares
# CASE.pt: {"model": .., "optimizer": .., "epoch": 3, "x": .., "y": ..}; x and y have a batch for each further step. The
# after-file has the model's state dict. Models are a Linear, Tanh, Linear whose sizes vary.
import pathlib
import sys

import torch

STEPS = 5
OPTIM = torch.optim
# What a case's optimizer is made with, and the groups: all parameters, or weights and biases, which have another lr.
CASES = {
    "sgd": (OPTIM.SGD, dict(lr=0.05, weight_decay=0.01), 2),
    "sgd_momentum": (OPTIM.SGD, dict(lr=0.05, momentum=0.9, dampening=0.1), 2),
    "sgd_nesterov": (OPTIM.SGD, dict(lr=0.05, momentum=0.8, nesterov=True), 1),
    "adam": (OPTIM.Adam, dict(lr=0.01, betas=(0.8, 0.99), weight_decay=0.1), 2),
    "adam_amsgrad": (OPTIM.Adam, dict(lr=0.01, amsgrad=True, eps=1e-6), 1),
    "adamw": (OPTIM.AdamW, dict(lr=0.01, weight_decay=0.05), 2),
    "rmsprop": (OPTIM.RMSprop, dict(lr=0.01, alpha=0.9), 2),
    "rmsprop_centered": (OPTIM.RMSprop, dict(lr=0.01, centered=True, eps=1e-3), 1),
    "rmsprop_momentum": (OPTIM.RMSprop, dict(lr=0.01, momentum=0.5, weight_decay=0.01), 2),
    "adagrad": (OPTIM.Adagrad, dict(lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1), 2),
    "lbfgs": (OPTIM.LBFGS, dict(lr=0.5, max_iter=4, history_size=6), 1),
    "lbfgs_wolfe": (OPTIM.LBFGS, dict(max_iter=3, history_size=3, line_search_fn="strong_wolfe"), 1),
}


def groups_of(model, groups):
    parameters = list(model.parameters())
    if groups == 1:
        return parameters
    return [{"params": parameters[::2]}, {"params": parameters[1::2], "lr": 0.02}]


def model_of(inputs, hidden, outputs):
    return torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, outputs))


def train(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = (model(inputs) - targets).pow(2).mean()
        loss.backward()
        return loss

    for inputs, targets in zip(x, y):
        optimizer.step(closure)


def make(directory):
    for seed, (name, (kind, options, groups)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        inputs, hidden, outputs = (int(size) for size in torch.randint(1, 8, (3,)))
        model = model_of(inputs, hidden, outputs)
        optimizer = kind(groups_of(model, groups), **options)
        x, y = torch.randn(2 * STEPS, 6, inputs), torch.randn(2 * STEPS, 6, outputs)
        train(model, optimizer, x[:STEPS], y[:STEPS])
        # As a scheduler leaves it.
        optimizer.param_groups[0]["lr"] *= 0.7
        optimizer.param_groups[0]["initial_lr"] = 1.0
        # Where they lie in memory when they are read again: kernels round by alignment.
        x, y = x[STEPS:].clone(), y[STEPS:].clone()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "x": x, "y": y},
                   directory / (name + ".pt"))
        train(model, optimizer, x, y)
        torch.save(model.state_dict(), directory / (name + ".after.pt"))


def plain(value):
    """What can be compared with ==, tensors with their types."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value)(plain(item) for item in value) if isinstance(value, (list, tuple)) else value


def kind_of(value):
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else type(value)


def check(directory):
    for name, (kind, options, groups) in CASES.items():
        saved = torch.load(directory / (name + ".pt"), weights_only=True)
        first, last = saved["model"]["0.weight"], saved["model"]["2.weight"]
        model = model_of(first.shape[1], first.shape[0], last.shape[0])
        model.load_state_dict(saved["model"], strict=True)
        fresh = kind(groups_of(model, groups), **options)
        fresh.param_groups[0]["lr"] *= 0.7  # as in make()
        for ours, theirs in zip(saved["optimizer"]["param_groups"], fresh.state_dict()["param_groups"], strict=True):
            assert ours.keys() == theirs.keys(), (name, ours.keys() ^ theirs.keys())
            assert plain(ours) == plain(theirs), (name, ours, theirs)
        # Each option comes from the file.
        optimizer = kind(groups_of(model, groups))
        optimizer.load_state_dict(saved["optimizer"])
        loaded = optimizer.state_dict()["state"]
        assert plain(loaded) == plain(saved["optimizer"]["state"]), name
        kinds = {number: {field: kind_of(value) for field, value in entry.items()} for number, entry in loaded.items()}
        train(model, optimizer, saved["x"], saved["y"])
        # PyTorch keeps the same by itself. A line search ends with a number or a tensor.
        for number, entry in optimizer.state_dict()["state"].items():
            assert entry.keys() == kinds[number].keys(), (name, entry.keys() ^ kinds[number].keys())
            for field, value in entry.items():
                assert field == "t" or kind_of(value) == kinds[number][field], (name, field, kinds[number][field])
        after = torch.load(directory / (name + ".after.pt"), weights_only=True)
        for key, value in model.state_dict().items():
            difference = (value - after[key]).abs().max().item()
            # A line search amplifies how numbers are rounded.
            tolerance = 1e-5 if name == "lbfgs_wolfe" else 1e-6
            assert torch.allclose(value, after[key], rtol=tolerance, atol=tolerance), (name, key, difference)


torch.set_num_threads(1)
{"make": make, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
