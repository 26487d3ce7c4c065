"""Random training of a random model by PyTorch's DistributedDataParallel, over Gloo and over lockstep in one process.

A case is plain data: {"kind": "training", "seed", "model", "options", "hook", "optimizer", "steps"}. Both sides have
the same weights, inputs and random numbers. After each step gradients, parameters, buffers, outputs and errors are
compared.
"""

import contextlib
import copy
import gc

import torch
import torch.distributed as dist
from random_modules import NEEDS_FIND_UNUSED, SPARSE, SPECIAL_TYPES, TOKENS, WIDTH, RandomModel, draw_model, tensors_in
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

OPTIONS = {"find_unused_parameters": False, "static_graph": False, "gradient_as_bucket_view": False,
           "bucket_cap_mb": None, "broadcast_buffers": True}
PLAIN_STEP = {"do": "train", "parts": 1, "zero": "none", "update": True}
SAMPLES = 4


def draw_case(draw, seed, ranks):
    hook = draw.choices(["", "all_reduce", "fp16", "bf16", "chain", "power_sgd"], [10, 2, 2, 2, 2, 2])[0]
    if hook == "power_sgd" and ranks > 2:  # it makes much of the last bit
        hook = "chain"
    options = {"find_unused_parameters": draw.random() < 0.4, "static_graph": draw.random() < 0.2,
               "gradient_as_bucket_view": draw.random() < 0.5,
               "bucket_cap_mb": draw.choice([None, 0.00005, 0.0005, 0.02]), "broadcast_buffers": draw.random() < 0.7}
    avoid = set()
    if hook or options["gradient_as_bucket_view"] or draw.random() < 0.5:
        avoid |= SPARSE
    if hook:
        avoid |= SPECIAL_TYPES
    if hook == "power_sgd":  # a thread of its own starts its reductions one after the other: it must be the only one
        options |= {"bucket_cap_mb": None, "find_unused_parameters": False}
        avoid |= {"large"}
    if not options["find_unused_parameters"] and draw.random() < 0.95:
        avoid |= NEEDS_FIND_UNUSED
    if options["find_unused_parameters"] or draw.random() < 0.5:
        avoid |= {"checkpointed_reentrant"}
    model = draw_model(draw, avoid)
    if options["find_unused_parameters"] and not options["static_graph"]:
        for description in model["layers"][1:]:  # without the first, a rank might have nothing to differentiate
            if draw.random() < 0.2:
                description["when"] = draw.choice(["even_ranks", "odd_steps", "never"])
    sparse = any(description["kind"] in SPARSE for description in model["layers"])
    optimizer = draw.choice(["sgd", "momentum", "adam", "adagrad"]) if not sparse else "sgd"
    steps = [draw_step(draw, options) for _ in range(draw.randint(2, 6))]
    if options["static_graph"]:  # PyTorch fails an assertion if the first step is without synchronisation
        steps[0] = PLAIN_STEP
    return {"kind": "training", "seed": seed, "model": model, "options": options, "hook": hook, "optimizer": optimizer,
            "steps": steps}


def draw_step(draw, options):
    if draw.random() < 0.4:
        return PLAIN_STEP
    if options["static_graph"]:
        return PLAIN_STEP | {"do": draw.choice(["train", "evaluate", "reload"]), "parts": draw.choice([1, 2])}
    kinds = ["train", "train", "losses", "input_gradient", "penalty", "no_backward", "evaluate", "reload",
             "local_reload", "throw_forward", "throw_backward", "join"]
    if not options["find_unused_parameters"]:  # there, PyTorch refuses a second backward on some ranks only, and hangs
        kinds += ["retain", "apart"]
    return {"do": draw.choice(kinds), "parts": draw.choice([1, 1, 2, 3]),
            "zero": draw.choice(["none", "zeros", "keep"]), "update": draw.random() < 0.9}


def hook_of(name, group):
    if name == "power_sgd":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2,
                                            min_compression_rate=1)
        return state, powerSGD_hook.powerSGD_hook
    if name == "chain":
        def hook(state, bucket):
            work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0] / group.size() * 0.5)
        return None, hook
    plain = {"all_reduce": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook,
             "bf16": default_hooks.bf16_compress_hook}[name]
    # Not by its name, by which some are refused where there is no GPU.
    return None, lambda state, bucket: plain(group, bucket)


class Side:
    """The model and its training over one group."""

    def __init__(self, case, rank, group):
        self.case, self.rank, self.group, self.count = case, rank, group, 0
        torch.manual_seed(case["seed"] + 1000 * rank)  # the wrapper replaces the weights of all ranks but 0
        self.model = RandomModel(case["model"])
        self.ddp = DistributedDataParallel(self.model, process_group=group, **case["options"])
        if case["hook"]:
            self.ddp.register_comm_hook(*hook_of(case["hook"], group))
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = {
            "sgd": lambda: torch.optim.SGD(trained, 0.05),
            "momentum": lambda: torch.optim.SGD(trained, 0.05, momentum=0.9, nesterov=True),
            "adam": lambda: torch.optim.Adam(trained, 0.01),
            "adagrad": lambda: torch.optim.Adagrad(trained, 0.02),
        }[case["optimizer"]]()

    def inputs(self, requires_grad=False):
        generator = torch.Generator().manual_seed(self.case["seed"] * 7919 + self.rank * 101 + self.count)
        self.count += 1
        x = torch.randn(SAMPLES, WIDTH, generator=generator).requires_grad_(requires_grad)
        return x, torch.randint(TOKENS, (SAMPLES,), generator=generator)

    def outputs(self, index, inputs, fault=None):
        return tensors_in(self.ddp(*inputs, self.rank, index, fault))

    def step(self, index, step):
        """[(name, tensor or text)]: what this step gave."""
        torch.manual_seed(self.case["seed"] * 31 + self.rank * 7 + index)
        seen = []
        try:
            getattr(self, step["do"])(index, step, seen)
        except ArithmeticError as error:  # the one that was asked for
            seen.append(("expected error", str(error)))
            self.quiet()
            self.optimizer.zero_grad()
        seen += [(f"gradient of {name}", copy_of(parameter.grad)) for name, parameter in self.model.named_parameters()]
        if step["update"] and step["do"] not in ("throw_forward", "throw_backward", "no_backward", "evaluate"):
            self.optimizer.step()
        for name, value in self.model.state_dict().items():
            seen.append((name, copy_of(value)))
        return seen

    def quiet(self):
        """Waits for what a failed backward left under way; it would write into memory that the next step uses."""
        dist.barrier(self.group)

    def clear(self, step):
        if step["zero"] != "keep":
            self.optimizer.zero_grad(set_to_none=step["zero"] == "none")

    def train(self, index, step, seen, backward=None, requires_grad=False, fault=None):
        self.clear(step)
        for part in range(step["parts"]):
            inputs = self.inputs(requires_grad)
            with self.ddp.no_sync() if part + 1 < step["parts"] else contextlib.nullcontext():
                outputs = self.outputs(index, inputs, fault)
                if backward is None:
                    loss_of(outputs).backward()
                else:
                    backward(outputs, inputs[0])
            seen += [("output", copy_of(output)) for output in outputs]
            if requires_grad:
                seen.append(("gradient of the input", copy_of(inputs[0].grad)))

    def retain(self, index, step, seen):
        def backward(outputs, x):
            loss = loss_of(outputs)
            loss.backward(retain_graph=True)
            loss.backward()

        self.train(index, step, seen, backward)

    def losses(self, index, step, seen):
        def backward(outputs, x):
            losses = [output.square().mean() for output in outputs if output.requires_grad]
            torch.autograd.backward(losses)

        self.train(index, step, seen, backward)

    def apart(self, index, step, seen):
        def backward(outputs, x):
            for output in filter(lambda output: output.requires_grad, outputs):
                output.square().mean().backward(retain_graph=True)

        self.train(index, step, seen, backward)

    def input_gradient(self, index, step, seen):
        def backward(outputs, x):
            seen.append(("autograd.grad", torch.autograd.grad(loss_of(outputs), x)[0]))

        self.train(index, step | {"parts": 1}, seen, backward, requires_grad=True)

    def penalty(self, index, step, seen):
        def backward(outputs, x):
            loss = loss_of(outputs)
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + slope.square().sum()).backward()

        self.train(index, step, seen, backward, requires_grad=True)

    def no_backward(self, index, step, seen):
        self.clear(step)
        seen += [("output", copy_of(output)) for output in self.outputs(index, self.inputs())]

    def evaluate(self, index, step, seen):
        self.ddp.eval()
        with torch.no_grad():
            seen += [("output", copy_of(output)) for output in self.outputs(index, self.inputs())]
        self.ddp.train()

    def reload(self, index, step, seen):
        state, memory = copy.deepcopy(self.ddp.state_dict()), copy.deepcopy(self.optimizer.state_dict())
        self.train(index, step, seen)
        self.optimizer.step()
        self.ddp.load_state_dict(state)
        self.optimizer.load_state_dict(memory)

    def local_reload(self, index, step, seen):
        """As resume from a file: the inner model's state, loaded on all ranks with new memory behind the gradients."""
        self.model.load_state_dict({name: 0.9 * value if value.is_floating_point() else value
                                    for name, value in self.model.state_dict().items()})
        for parameter in self.model.parameters():
            parameter.grad = None
        self.train(index, step, seen)

    def throw_forward(self, index, step, seen):
        self.train(index, step, seen, fault="forward")

    def throw_backward(self, index, step, seen):
        self.train(index, step, seen, fault="backward")

    def join(self, index, step, seen):
        with self.ddp.join():
            for _ in range(1 + (self.rank + index) % 3):
                self.train(index, step | {"parts": 1, "zero": "none"}, seen)
                self.optimizer.step()
        self.optimizer.zero_grad()  # those of the last inputs are averaged in different ways


def loss_of(outputs):
    return sum((i + 1) * output.square().mean() for i, output in enumerate(outputs))


def copy_of(tensor):
    return None if tensor is None else tensor.detach().clone()


def bits_of(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg().flatten()
    return plain.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def difference(ours, gloo, tolerance):
    """What differs, or None. tolerance: in units of the last place of the largest number; 0 wants the same bits."""
    if type(ours) is not type(gloo) or not isinstance(ours, torch.Tensor):
        return None if ours == gloo and type(ours) is type(gloo) else f"{ours!r} where Gloo gives {gloo!r}"
    if (ours.dtype, ours.layout, ours.shape) != (gloo.dtype, gloo.layout, gloo.shape):
        return f"{ours.dtype} {ours.layout} {list(ours.shape)}, Gloo {gloo.dtype} {gloo.layout} {list(gloo.shape)}"
    if ours.is_sparse:
        ours, gloo = ours.coalesce(), gloo.coalesce()
        if not torch.equal(ours.indices(), gloo.indices()):
            return "the indices differ"
        return difference(ours.values(), gloo.values(), tolerance)
    if torch.equal(bits_of(ours), bits_of(gloo)):
        return None
    if tolerance and (ours.is_floating_point() or ours.is_complex()):
        if (ours - gloo).abs().max() <= tolerance * torch.finfo(ours.dtype).eps * gloo.abs().max():
            return None
    return f"{ours.flatten()[:6].tolist()}..., Gloo {gloo.flatten()[:6].tolist()}... (largest difference " \
           f"{(ours.to(torch.complex128) - gloo.to(torch.complex128)).abs().max().item():g})"


def guarded(call):
    try:
        return call(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"


def tolerance_of(case, step, ranks):
    if ranks == 2:
        return 0
    return {"fp16": 2.0 ** 15, "bf16": 2.0 ** 18}.get(case["hook"], 2.0 ** 9) * (64 if step["do"] == "join" else 1)


def run_case(case, rank, ranks, groups, note, agree):
    """How lockstep differs from Gloo on any rank, as agree() tells; None if it does not. groups: gloo's, lockstep's."""
    sides = {}
    try:
        made = {name: guarded(lambda: Side(case, rank, group)) for name, group in groups.items()}
        sides = {name: side for name, (side, _) in made.items()}
        if made["gloo"][1] or made["lockstep"][1]:
            note(f"making the wrapper: {made['gloo'][1]}")
            same = made["gloo"][1] == made["lockstep"][1]
            return agree(None if same else f"{made['lockstep'][1]} where Gloo says {made['gloo'][1]}")
        for index, step in enumerate(case["steps"]):
            results = {name: guarded(lambda: side.step(index, step)) for name, side in sides.items()}
            found = compare_step(results, tolerance_of(case, step, ranks))
            failures = agree(found and f"step {index} ({step['do']}): {found}")
            if failures:
                return failures
            refusal = agree(results["gloo"][1])
            if refusal:  # PyTorch's own, and the same on both sides; perhaps on some ranks only
                note(f"{step['do']}: {refusal.splitlines()[0][8:]}")
                for side in sides.values():
                    side.quiet()
                return None
            note(step["do"])
            if ranks > 2:
                take_state(sides["gloo"], sides["lockstep"])
        return None
    finally:
        # A wrapper that outlives its group waits for Gloo's thread while it holds the interpreter's lock.
        sides.clear()
        gc.collect()


def compare_step(results, tolerance):
    (ours, our_error), (gloo, gloo_error) = results["lockstep"], results["gloo"]
    if our_error != gloo_error:
        return f"{our_error} where Gloo says {gloo_error}"
    if our_error:
        return None
    if [name for name, _ in ours] != [name for name, _ in gloo]:
        return "the two sides saw different things"
    for (name, one), (_, other) in zip(ours, gloo):
        found = difference(one, other, tolerance)
        if found:
            return f"{name}: {found}"
    return None


def take_state(to, source):
    """So that the last bit of one step does not grow in the following ones."""
    to.model.load_state_dict(source.model.state_dict())
    to.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))
    for parameter, original in zip(to.model.parameters(), source.model.parameters()):
        if parameter.grad is not None and not parameter.grad.is_sparse:
            parameter.grad.copy_(original.grad)


def smaller(case):
    """Cases with a little less, the largest steps first."""
    for i in range(len(case["steps"])):
        if len(case["steps"]) > 1:
            yield case | {"steps": case["steps"][:i] + case["steps"][i + 1:]}
    layers = case["model"]["layers"]
    for i, description in enumerate(layers):
        if description["kind"] != "identity":
            kept = [{key: value for key, value in other.items() if key != "share" or value != i} for other in layers]
            kept[i] = {"kind": "identity", "source": description["source"]}
            yield case | {"model": case["model"] | {"layers": kept}}
    for option, value in OPTIONS.items():
        if case["options"][option] != value:
            yield case | {"options": case["options"] | {option: value}}
    for key, value in (("hook", ""), ("optimizer", "sgd")):
        if case[key] != value:
            yield case | {key: value}
    if case["model"]["form"] != "tensor":
        yield case | {"model": case["model"] | {"form": "tensor"}}
    for i, description in enumerate(layers):
        for key in ("share", "when"):
            if key in description:
                kept = [dict(other) for other in layers]
                del kept[i][key]
                yield case | {"model": case["model"] | {"layers": kept}}
    for i, step in enumerate(case["steps"]):
        for key, value in (("parts", 1), ("zero", "none"), ("update", True), ("do", "train")):
            if step[key] != value:
                yield case | {"steps": case["steps"][:i] + [step | {key: value}] + case["steps"][i + 1:]}
