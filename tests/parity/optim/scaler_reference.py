"""What torch.amp.GradScaler does in random sequences of events: writes <out>/scaler.safetensors.

Of each sequence: options (the scale, factors, interval, whether it is enabled), events ([event, 4]: what, of which
optimizer or set of parameters, a number, whether it raises), x (the input of each backward), and after each event
scale ([event, 2]: the scale and the growth tracker), parameters, gradients and defined (which sets have a gradient).
"""

import argparse
import os
import random

import torch
from safetensors.torch import save_file

SEQUENCES, ITERATIONS = 60, 40
SHAPES = [[(3, 2), (2,)], [(4,)]]  # of the sets of parameters; each has an optimizer
ELEMENTS = 12
# Events. argument: an optimizer; of BACKWARD a bit for each set that the loss is of, and 4 if gradients are zeroed.
BACKWARD, UNSCALE, CLIP, STEP, UPDATE, NEW_SCALE, CONTINUE, LOAD = range(8)


class Training:
    def __init__(self, options):
        scale, growth, backoff, interval, enabled = options
        self.sets = [[torch.nn.Parameter(torch.linspace(-0.5, 0.7, torch.Size(shape).numel()).reshape(shape))
                      for shape in shapes] for shapes in SHAPES]
        self.optimizers = [torch.optim.SGD(self.sets[0], lr=0.1, momentum=0.9), torch.optim.SGD(self.sets[1], lr=0.05)]
        self.scaler = self.new_scaler(init_scale=scale, growth_factor=growth, backoff_factor=backoff,
                                      growth_interval=int(interval), enabled=bool(enabled))
        self.saved = self.scaler.state_dict()

    @staticmethod
    def new_scaler(**options):
        return torch.amp.GradScaler("cpu", **options)

    def loss(self, x, sets):
        values = list(x.split([6, 2, 4]))
        losses = []
        for parameters in self.sets:
            products = [(p.reshape(-1) * values.pop(0)).square().sum() for p in parameters]
            losses.append(sum(products[1:], products[0]))
        wanted = [losses[i] for i in range(2) if sets >> i & 1]
        return sum(wanted[1:], wanted[0])

    def play(self, what, argument, number, x):
        if what == BACKWARD:
            if argument & 4:
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
            self.scaler.scale(self.loss(x, argument)).backward()
        elif what == UNSCALE:
            self.scaler.unscale_(self.optimizers[argument])
        elif what == CLIP:
            torch.nn.utils.clip_grad_norm_(self.sets[argument], 1.0)
        elif what == STEP:
            self.scaler.step(self.optimizers[argument])
        elif what == UPDATE:
            self.scaler.update()
        elif what == NEW_SCALE:
            self.scaler.update(number)
        elif what == CONTINUE:
            self.saved = self.scaler.state_dict()
            self.scaler = self.new_scaler()
            self.scaler.load_state_dict(self.saved)
        elif what == LOAD:
            self.scaler.load_state_dict(self.saved)

    def raises(self, *event):
        try:
            self.play(*event)
        except (RuntimeError, AssertionError):
            return True
        return False


def input_of(draw):
    x = torch.tensor([draw.uniform(-1, 1) for _ in range(ELEMENTS)])
    kind = draw.random()
    if kind < 0.2:
        x[draw.randrange(ELEMENTS)] = draw.choice([float("inf"), float("-inf"), float("nan"), 3e38])
    elif kind < 0.3:
        x = x * 0
    return x


def events_of(draw, is_enabled):
    """What happens in one iteration: what it should be, and now and then something else."""
    yield BACKWARD, draw.choices([3, 1, 2], [8, 1, 1])[0] + 4 * (draw.random() < 0.85), 0
    for optimizer in draw.sample([0, 1], 2):
        if draw.random() < 0.5:
            yield UNSCALE, optimizer, 0
            if draw.random() < 0.5:
                yield CLIP, optimizer, 0
        if is_enabled and draw.random() < 0.03:
            yield LOAD, 0, 0
        if draw.random() < 0.95:
            yield STEP, optimizer, 0
        if draw.random() < 0.05:
            yield draw.choice([UNSCALE, STEP]), optimizer, 0
    if draw.random() < 0.1:
        return
    if draw.random() < 0.1:
        yield NEW_SCALE, 0, draw.choice([0.25, 1.0, 3.3, 1024.0, 2.0**127])
    else:
        yield UPDATE, 0, 0
    if is_enabled and draw.random() < 0.1:
        yield CONTINUE, 0, 0


def play_sequence(seed):
    draw = random.Random(seed)
    is_enabled = seed % 10 != 9
    options = [draw.choice([1.0, 8.0, 1000.0, 65536.0, 2.0**127]), draw.choice([2.0, 1.5, 4.0]),
               draw.choice([0.5, 0.3]), draw.choice([1, 2, 3, 5]), is_enabled]
    training = Training(options)
    rows = {name: [] for name in ("events", "x", "scale", "parameters", "gradients", "defined")}
    events = [(UPDATE, 0, 0), (UNSCALE, 1, 0), (STEP, 0, 0)] if draw.random() < 0.2 else []
    for _ in range(ITERATIONS):
        events += events_of(draw, is_enabled)
    for what, argument, number in events:
        x = input_of(draw) if what == BACKWARD else torch.zeros(ELEMENTS)
        raised = training.raises(what, argument, number, x)
        parameters = [p for parameters in training.sets for p in parameters]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        rows["events"].append(torch.tensor([what, argument, number, raised], dtype=torch.double))
        rows["x"].append(x)
        scaler = training.scaler
        rows["scale"].append(torch.tensor([scaler.get_scale(), scaler._get_growth_tracker()], dtype=torch.double))
        rows["parameters"].append(torch.cat([p.detach().reshape(-1) for p in parameters]))
        rows["gradients"].append(torch.cat([g.reshape(-1) for g in gradients]))
        rows["defined"].append(torch.tensor([parameters[0].grad is not None for parameters in training.sets]))
    tensors = {f"{seed}/{name}": torch.stack(tensors) for name, tensors in rows.items()}
    return tensors | {f"{seed}/options": torch.tensor(options, dtype=torch.double)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(arguments.out, exist_ok=True)
    tensors = {}
    for seed in range(SEQUENCES):
        tensors |= play_sequence(seed)
    save_file(tensors, os.path.join(arguments.out, "scaler.safetensors"), metadata={"sequences": str(SEQUENCES)})


if __name__ == "__main__":
    main()
