"""Random collectives on odd tensors: lazily conjugated or negated, strided, expanded, of no dimensions, empty.

A case is plain data: {"kind": "collectives", "seed", "calls": [{"call", "dtype", "shape", "layout", ...}]}. What has
to come out follows from what all ranks put in, bit for bit, since lockstep adds in rank order. Gloo is asked as well
where it takes such tensors; elsewhere it ends the process, hangs or moves other numbers.
"""

import functools

import torch
import torch.distributed as dist
from random_training import bits_of, guarded

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int8", "uint8", "int16", "int32", "int64"]
COMPLEX = ["complex64", "complex128"]
CALLS = ["all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
         "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send_and_receive"]
SHAPES = [(), (0,), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 4, 5), (70, 70), (40, 2, 33)]
LAYOUTS = ["plain", "plain", "strided", "offset", "transposed", "channels_last", "conjugated", "negated", "expanded",
           "leaf"]
REDUCTIONS = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
    "avg": lambda a, b: a + b,
}

LAZY = ("conjugated", "negated")
IN_PLACE = ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce")


def draw_case(draw, seed, ranks):
    return {"kind": "collectives", "seed": seed, "calls": [draw_call(draw, ranks) for _ in range(draw.randint(1, 6))]}


def draw_call(draw, ranks):
    dtype = draw.choice(FLOATS + INTEGERS + COMPLEX + COMPLEX + ["bool"])
    fit = ["sum"] if dtype in COMPLEX else ["sum", "min", "max", "product"]
    fit += ["avg"] if dtype in FLOATS + COMPLEX else []
    fit += ["band", "bor", "bxor"] if dtype in INTEGERS else []
    fit = ["band", "bor", "max", "min"] if dtype == "bool" else fit
    layouts = [layout for layout in LAYOUTS if layout not in LAZY or dtype in COMPLEX]
    layouts = [layout for layout in layouts if layout != "leaf" or dtype in FLOATS]
    if dtype in ("float32", "float64"):
        layouts.append("negated")
    call = draw.choice(CALLS)
    # torch hands every backend a resolved copy of such a tensor, and drops what is written to it; with Gloo too.
    written = [layout for layout in layouts if layout not in LAZY]
    # One rank only would write to it.
    written = [layout for layout in written if layout != "expanded" or call not in ("broadcast", "reduce")]
    return {"call": call, "dtype": dtype, "shape": draw.choice(SHAPES),
            "layout": draw.choice(written if call in IN_PLACE else layouts),
            "target": draw.choice([layout for layout in written if layout != "expanded"]), "op": draw.choice(fit),
            "root": draw.randrange(ranks), "async": draw.random() < 0.3}


def values(call, shape, *key):
    """Random values that belong to the key: on every rank the same ones."""
    generator = torch.Generator().manual_seed(hash(key) % 2**62)
    dtype = getattr(torch, call["dtype"])
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=generator).to(dtype)


def laid_out(content, layout):
    """A tensor of these values in a layout, and the memory it lies in, where nothing else may change."""
    shape = list(content.shape)
    if layout == "strided" and shape:
        base = torch.zeros(shape[:-1] + [2 * shape[-1]], dtype=content.dtype)
        tensor = base[..., ::2]
    elif layout == "offset":
        base = torch.zeros(content.numel() + 5, dtype=content.dtype)
        tensor = base[3:3 + content.numel()].view(shape)
    elif layout == "transposed" and len(shape) > 1:
        base = torch.zeros(shape[::-1], dtype=content.dtype)
        tensor = base.permute(*reversed(range(len(shape))))
    elif layout == "channels_last" and len(shape) == 4:
        base = tensor = torch.zeros(shape, dtype=content.dtype).contiguous(memory_format=torch.channels_last)
    elif layout == "conjugated":
        base = torch.zeros(shape, dtype=content.dtype)
        tensor = base.conj()
    elif layout == "negated":
        if content.is_complex():
            base = torch.zeros(shape, dtype=content.dtype)
            tensor = torch._neg_view(base)
        else:
            base = torch.zeros(shape, dtype=torch.complex64 if content.dtype == torch.float32 else torch.complex128)
            tensor = base.conj().imag
    elif layout == "expanded" and shape and shape[0]:
        base = torch.zeros([1] + shape[1:], dtype=content.dtype)
        base.copy_(content[:1])
        return base.expand(shape), base
    else:
        base = tensor = torch.zeros(shape, dtype=content.dtype)
    tensor.copy_(content)
    return (tensor.requires_grad_() if layout == "leaf" else tensor), base


def as_seen(content, layout):
    """The values that laid_out() really gives."""
    expanded = layout == "expanded" and content.dim() and content.shape[0]
    return content[:1].expand(content.shape) if expanded else content


def reduced(contents, op):
    wide = torch.float32 if contents[0].dtype in (torch.float16, torch.bfloat16) else contents[0].dtype
    result = functools.reduce(REDUCTIONS[op], [content.to(wide) for content in contents])
    return (result / len(contents) if op == "avg" else result).to(contents[0].dtype)


class Exchange:
    """One call on one rank: its tensors, made anew for each group, and what has to be in them afterwards."""

    def __init__(self, call, key, rank, ranks):
        self.call, self.key, self.rank, self.ranks = call, key, rank, ranks
        self.op = getattr(dist.ReduceOp, call["op"].upper())

    def content(self, rank, part=0, shape=None):
        shape = self.call["shape"] if shape is None else shape
        return as_seen(values(self.call, shape, *self.key, rank, part), self.call["layout"])

    def tensor(self, rank, part=0, shape=None):
        return laid_out(self.content(rank, part, shape), self.call["layout"])[0]

    def target(self, shape=None):
        shape = self.call["shape"] if shape is None else shape
        return laid_out(torch.zeros(shape, dtype=getattr(torch, self.call["dtype"])), self.call["target"])

    def everywhere(self, part=0, shape=None):
        return [self.content(rank, part, shape) for rank in range(self.ranks)]

    def run(self, group):
        """[(what there is, what has to be there)]."""
        return getattr(self, self.call["call"])(group, {"group": group, "async_op": self.call["async"]})

    @staticmethod
    def finish(work):
        if work is not None:
            work.wait()

    def in_place(self, collective, wanted, count=1):
        tensors = [laid_out(self.content(self.rank, part), self.call["layout"])[0] for part in range(count)]
        self.finish(collective(tensors))
        return [(tensor, wanted(part)) for part, tensor in enumerate(tensors)]

    def all_reduce(self, group, named):
        return self.in_place(lambda tensors: dist.all_reduce(tensors[0], self.op, **named),
                             lambda part: reduced(self.everywhere(part), self.call["op"]))

    def all_reduce_coalesced(self, group, named):
        return self.in_place(lambda tensors: dist.all_reduce_coalesced(tensors, self.op, **named),
                             lambda part: reduced(self.everywhere(part), self.call["op"]), 3)

    def broadcast(self, group, named):
        return self.in_place(lambda tensors: dist.broadcast(tensors[0], self.call["root"], **named),
                             lambda part: self.content(self.call["root"], part))

    def reduce(self, group, named):
        def wanted(part):
            root = self.rank == self.call["root"]
            return reduced(self.everywhere(part), self.call["op"]) if root else self.content(self.rank, part)

        return self.in_place(lambda tensors: dist.reduce(tensors[0], self.call["root"], self.op, **named), wanted)

    def all_gather(self, group, named):
        outputs = [self.target() for _ in range(self.ranks)]
        self.finish(dist.all_gather([output for output, _ in outputs], self.tensor(self.rank), **named))
        return list(zip([output for output, _ in outputs], self.everywhere()))

    def all_gather_into_tensor(self, group, named):
        output, _ = self.target((self.ranks, *self.call["shape"]))
        self.finish(dist.all_gather_into_tensor(output, self.tensor(self.rank), **named))
        return [(output, torch.stack(self.everywhere()))]

    def gather(self, group, named):
        root = self.rank == self.call["root"]
        outputs = [self.target()[0] for _ in range(self.ranks)] if root else None
        self.finish(dist.gather(self.tensor(self.rank), outputs, self.call["root"], **named))
        return list(zip(outputs or [], self.everywhere()))

    def scatter(self, group, named):
        root = self.call["root"]
        inputs = [self.tensor(root, part) for part in range(self.ranks)] if self.rank == root else None
        output, _ = self.target()
        self.finish(dist.scatter(output, inputs, root, **named))
        return [(output, self.content(root, self.rank))]

    def reduce_scatter(self, group, named):
        output, _ = self.target()
        inputs = [self.tensor(self.rank, part) for part in range(self.ranks)]
        self.finish(dist.reduce_scatter(output, inputs, self.op, **named))
        return [(output, reduced(self.everywhere(self.rank), self.call["op"]))]

    def reduce_scatter_tensor(self, group, named):
        output, _ = self.target()
        shape = (self.ranks, *self.call["shape"])
        self.finish(dist.reduce_scatter_tensor(output, self.tensor(self.rank, shape=shape), self.op, **named))
        return [(output, reduced([content[self.rank] for content in self.everywhere(shape=shape)], self.call["op"]))]

    def all_to_all(self, group, named):
        outputs = [self.target()[0] for _ in range(self.ranks)]
        self.finish(dist.all_to_all(outputs, [self.tensor(self.rank, part) for part in range(self.ranks)], **named))
        return [(output, self.content(peer, self.rank)) for peer, output in enumerate(outputs)]

    def all_to_all_single(self, group, named):
        """Rank r sends r + p rows to rank p."""
        rows = tuple(self.call["shape"][1:])

        def shape_of(rank):
            return (sum(rank + peer for peer in range(self.ranks)), *rows)

        splits = [self.rank + peer for peer in range(self.ranks)]
        output, _ = self.target(shape_of(self.rank))
        self.finish(dist.all_to_all_single(output, self.tensor(self.rank, shape=shape_of(self.rank)), splits, splits,
                                           **named))
        parts = []
        for peer in range(self.ranks):
            rows_of_peer = [peer + other for other in range(self.ranks)]
            parts.append(self.content(peer, shape=shape_of(peer)).split(rows_of_peer)[self.rank])
        return [(output, torch.cat(parts))]

    def send_and_receive(self, group, named):
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        output, _ = self.target()
        works = [dist.isend(self.tensor(self.rank), after, group), dist.irecv(output, before, group)]
        for work in works:
            work.wait()
        return [(output, self.content(before))]


def check(results, exact, dtype):
    for tensor, wanted in results:
        tensor = tensor.detach()
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return f"{tensor.dtype} {list(tensor.shape)} where {wanted.dtype} {list(wanted.shape)} belongs"
        if torch.equal(bits_of(tensor), bits_of(wanted)):
            continue
        if not exact and (dtype in FLOATS or dtype in COMPLEX):
            step = torch.finfo(wanted.dtype).eps * max(1, wanted.abs().max().item())
            if (tensor - wanted).abs().max().item() <= 16 * step:
                continue
        return f"{tensor.flatten()[:4].tolist()}... where {wanted.flatten()[:4].tolist()}... belongs"
    return None


def run_case(case, rank, ranks, groups, note, agree):
    """Where lockstep or Gloo is wrong, as agree() tells; None if neither is."""
    for index, call in enumerate(case["calls"]):
        exchange = Exchange(call, (case["seed"], index), rank, ranks)
        if gloo_takes(call):
            results, error = guarded(lambda: exchange.run(groups["gloo"]))
            found = error or check(results, False, call["dtype"])
            failures = agree(found and f"call {index} {call}: Gloo: {found}")
            if failures:
                return failures
            note(f"{call['call']} as Gloo's")
        results, error = guarded(lambda: exchange.run(groups["lockstep"]))
        refused = error and is_refused(call, error)
        found = None if refused else error or check(results, True, call["dtype"])
        failures = agree(found and f"call {index} {call}: {found}")
        if failures:
            return failures
        note(f"{call['call']} refused" if refused else call["call"])
    return None


def gloo_takes(call):
    simple = call["layout"] in ("plain", "leaf", "offset") and call["target"] in ("plain", "offset")
    return (simple and call["dtype"] in ("float32", "float64", "int32", "int64") and call["op"] != "avg"
            and len(call["shape"]) > 0 and call["shape"][0] > 1 and 0 not in call["shape"]
            and call["call"] not in ("reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather_into_tensor",
                                     "all_to_all"))


def is_refused(call, error):
    # torch.distributed makes complex tensors real before it calls a backend.
    if "conjugated" in (call["layout"], call["target"]) and error.startswith("RuntimeError: view_as_real doesn't work"):
        return True
    # Results cannot be written to where several elements are one memory.
    writes = call["call"] in ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce")
    return call["layout"] == "expanded" and writes and error.startswith("ValueError")


def smaller(case):
    """Cases with a little less, the largest steps first."""
    for i in range(len(case["calls"])):
        if len(case["calls"]) > 1:
            yield case | {"calls": case["calls"][:i] + case["calls"][i + 1:]}
    plain = {"layout": "plain", "target": "plain", "dtype": "float32", "shape": (3, 4), "root": 0, "async": False}
    for i, call in enumerate(case["calls"]):
        for key, value in plain.items():
            if call[key] == value or (key == "dtype" and call["layout"] in ("conjugated", "negated")):
                continue
            yield case | {"calls": case["calls"][:i] + [call | {key: value}] + case["calls"][i + 1:]}
