"""Random models: layers of many kinds over activations of shape [samples, WIDTH], described by plain data.

A model is {"layers": [{"kind", "source", "share", "when"}], "outputs": [indices], "form": ...}. A layer reads value
`source` (0 is the input) and makes value i + 1; with `share` it has the parameters of layer `share`, of its own kind;
`when` says on which ranks and in which steps it is there. Any layer may be replaced by "identity".
"""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

WIDTH = 8
TOKENS = 20
KINDS = {}


def random(*shape, dtype=torch.float32, scale=0.4):
    return lambda: scale * torch.randn(shape, dtype=dtype)


def layer(**parts):
    """Registers a kind of layer: makers of its parameters (what is a module is registered as one), and its forward."""

    def register(forward):
        KINDS[forward.__name__] = SimpleNamespace(parts=parts, forward=forward)
        return forward

    return register


@layer()
def identity(p, h, run):
    return h


@layer(weight=random(WIDTH, WIDTH), bias=random(WIDTH))
def linear(p, h, run):
    return F.linear(h, p.weight, p.bias).tanh()


@layer(flat=random(WIDTH * WIDTH + WIDTH))
def flat_linear(p, h, run):
    weight, bias = p.flat.narrow(0, 0, WIDTH * WIDTH).view(WIDTH, WIDTH), p.flat[WIDTH * WIDTH:]
    return F.linear(h, weight, bias).sigmoid()


@layer(left=random(WIDTH * WIDTH), right=random(WIDTH * WIDTH))
def sum_of_views(p, h, run):
    return h.mm(p.left.view(WIDTH, WIDTH) + p.right.view(WIDTH, WIDTH)).tanh()


@layer(left=random(160 * 128, scale=0.1), right=random(160, 128, scale=0.1), into=random(WIDTH, 160))
def large(p, h, run):
    hidden = h.mm(p.into).tanh().mm(p.left.view(160, 128) + p.right)
    return hidden.view(-1, WIDTH, 128 // WIDTH).mean(2)


@layer(weight=lambda: random(WIDTH, WIDTH)().t(), slices=lambda: random(WIDTH, 2 * WIDTH)()[:, ::2])
def transposed(p, h, run):
    return (h.mm(p.weight) + h.mm(p.slices.t())).tanh()


@layer(upper=random(WIDTH // 2, WIDTH), lower=random(WIDTH // 2, WIDTH), bias=random(2))
def concatenated(p, h, run):
    return (F.linear(h, torch.cat([p.upper, p.lower])) + torch.cat([p.bias] * (WIDTH // 2))).tanh()


@layer(weight=random(WIDTH, WIDTH), scale=random(2))
def in_place(p, h, run):
    y = h.mm(p.weight)
    y += h
    y[:, :2] += p.scale
    y[:, 2:4].add_(p.scale)
    return y.mul_(0.5).relu_()


@layer(table=random(TOKENS, WIDTH))
def indexed(p, h, run):
    return h[:, torch.arange(WIDTH - 1, -1, -1)] * p.table[run.tokens] + p.table[3, 1:2]


@layer(table=random(TOKENS, WIDTH))
def embedded(p, h, run):
    return h + F.embedding(run.tokens, p.table)


@layer(table=random(TOKENS, WIDTH))
def embedded_sparse(p, h, run):
    return h + F.embedding(run.tokens, p.table, sparse=True)


class Product(torch.autograd.Function):
    """Gradients in unusual memory: one that is a transposed view, and one that is expanded."""

    @staticmethod
    def forward(ctx, h, weight, scale):
        ctx.save_for_backward(h, weight, scale)
        return h.mm(weight) * scale

    @staticmethod
    def backward(ctx, gradient):
        h, weight, scale = ctx.saved_tensors
        scaled = gradient * scale
        return scaled.mm(weight.t()), scaled.t().mm(h).t(), (gradient * h.mm(weight)).sum().expand(scale.shape)


@layer(weight=random(WIDTH, WIDTH), scale=random(1))
def custom_function(p, h, run):
    return Product.apply(h, p.weight, p.scale).tanh()


class Same(torch.autograd.Function):
    """Hands one gradient to both of its inputs."""

    @staticmethod
    def forward(ctx, left, right):
        return left + right

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


@layer(left=random(WIDTH, WIDTH), right=random(WIDTH, WIDTH))
def same_gradient(p, h, run):
    return h.mm(Same.apply(p.left, p.right)).tanh()


@layer(weight=random(WIDTH, WIDTH), bias=random(WIDTH))
def checkpointed(p, h, run):
    return checkpoint(lambda x: F.linear(x, p.weight, p.bias).tanh(), h, use_reentrant=False)


@layer(weight=random(WIDTH, WIDTH), bias=random(WIDTH))
def checkpointed_reentrant(p, h, run):
    return checkpoint(lambda x: F.linear(x, p.weight, p.bias).tanh(), h, use_reentrant=True)


@layer(weight=random(WIDTH // 2, WIDTH // 2, dtype=torch.complex64), bias=random(WIDTH // 2, dtype=torch.complex64))
def complex_linear(p, h, run):
    z = torch.view_as_complex(h.reshape(-1, WIDTH // 2, 2))
    z = z.conj().mm(p.weight).conj() + p.bias.conj()
    return torch.view_as_real(z).flatten(1).tanh()


@layer(weight=random(WIDTH, dtype=torch.complex64))
def negated_imaginary(p, h, run):
    return h * p.weight.conj().imag + p.weight.real


@layer(weight=random(WIDTH, WIDTH, dtype=torch.float64), bias=random(WIDTH, dtype=torch.float64))
def double_linear(p, h, run):
    return F.linear(h.double(), p.weight, p.bias).tanh().float()


@layer(weight=random(WIDTH, WIDTH, dtype=torch.bfloat16), bias=random(WIDTH, dtype=torch.bfloat16))
def bfloat16_linear(p, h, run):
    return F.linear(h.bfloat16(), p.weight, p.bias).tanh().float()


@layer(weight=lambda: random(4, 2, 3, 3)().to(memory_format=torch.channels_last), bias=random(4))
def convolution(p, h, run):
    image = h.view(-1, 2, 2, WIDTH // 4).contiguous(memory_format=torch.channels_last)
    return F.conv2d(image, p.weight, p.bias, padding=1).relu().reshape(h.shape[0], 2, WIDTH).mean(1)


@layer(norm=lambda: nn.BatchNorm1d(WIDTH))
def batch_norm(p, h, run):
    return p.norm(h)


@layer(norm=lambda: nn.LayerNorm(WIDTH))
def layer_norm(p, h, run):
    return p.norm(h)


@layer(cell=lambda: nn.GRU(4, WIDTH, batch_first=True))
def recurrent(p, h, run):
    return p.cell(h.view(-1, WIDTH // 4, 4))[0][:, -1]


@layer(inner=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)))
def weight_norm(p, h, run):
    return p.inner(h).tanh()


@layer(stack=random(3, WIDTH, WIDTH), shares=random(3))
def experts(p, h, run):
    first, second, _ = p.stack.unbind(0)
    return (h.mm(first) * p.shares[0] + h.mm(second).relu() * p.shares.softmax(0)[1] + h.mm(p.stack[2])).tanh()


@layer(scale=random(), nothing=random(0))
def scalar(p, h, run):
    return torch.cat([h * p.scale, p.nothing.expand(h.shape[0], 0)], 1)


@layer(bias=random(WIDTH), other=random(3, 2))
def expanded(p, h, run):
    return h + p.bias.sum() + p.other.mean().expand(h.shape)


@layer(weight=random(WIDTH, WIDTH))
def hooked(p, h, run):
    y = h.mm(p.weight).tanh()
    if y.requires_grad:
        y.register_hook(lambda gradient: 2 * gradient)
    return y


@layer(weight=random(WIDTH, WIDTH), rate=lambda: nn.Dropout(0.3))
def dropped(p, h, run):
    return p.rate(h.mm(p.weight))


@layer(weight=random(WIDTH, WIDTH), frozen=lambda: nn.Parameter(random(WIDTH)(), requires_grad=False))
def half_frozen(p, h, run):
    return h.mm(p.weight) + p.frozen


@layer(weight=random(WIDTH, WIDTH), unused=random(5))
def with_unused(p, h, run):
    return h.mm(p.weight).tanh()


class Bomb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("backward was told to fail")


def is_there(when, rank, step):
    return {"always": True, "even_ranks": rank % 2 == 0, "odd_steps": step % 2 == 1, "never": False}[when]


class RandomModel(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        for i, description in enumerate(model["layers"]):
            for name, make in KINDS[description["kind"]].parts.items():
                key = f"{description['kind']}{description.get('share', i)}_{name}"
                if hasattr(self, key):
                    continue
                part = make()
                setattr(self, key, part if isinstance(part, (nn.Module, nn.Parameter)) else nn.Parameter(part))

    def parts_of(self, i):
        description = self.model["layers"][i]
        owner = f"{description['kind']}{description.get('share', i)}_"
        return SimpleNamespace(**{name: getattr(self, owner + name) for name in KINDS[description["kind"]].parts})

    def forward(self, x, tokens, rank, step, fault=None):
        values, run = [x], SimpleNamespace(tokens=tokens)
        layers = self.model["layers"]
        for i, description in enumerate(layers):
            h = values[description["source"]]
            if i == len(layers) // 2 and fault == "forward":
                raise ArithmeticError("forward was told to fail")
            if i == len(layers) // 2 and fault == "backward":
                h = Bomb.apply(h)
            there = is_there(description.get("when", "always"), rank, step)
            values.append(KINDS[description["kind"]].forward(self.parts_of(i), h, run) if there else h)
        outputs = [values[i] for i in self.model["outputs"]]
        form = self.model["form"]
        if form == "tensor":
            return sum(outputs)
        if form == "dict":
            return {f"output{i}": output for i, output in enumerate(outputs)}
        return tuple(outputs) if form == "tuple" else {"nested": [tuple(outputs), {"and": outputs[0].sum(1)}]}


def tensors_in(output):
    if isinstance(output, torch.Tensor):
        return [output]
    return [tensor for part in (output.values() if isinstance(output, dict) else output) for tensor in tensors_in(part)]


SPARSE = {"embedded_sparse"}
SPECIAL_TYPES = {"complex_linear", "negated_imaginary", "double_linear", "bfloat16_linear"}
NEEDS_FIND_UNUSED = {"with_unused"}
ONCE = {"batch_norm"}  # with several inputs its buffers would depend on how the kinds are shared


def draw_model(draw, avoid=()):
    """A random model of none of the kinds in `avoid`. draw: random.Random."""
    kinds = sorted(set(KINDS) - {"identity"} - set(avoid))
    layers = []
    for i in range(draw.randint(2, 8)):
        kind = draw.choice(kinds)
        # Mostly a chain; what nobody reads is an output.
        source = i if draw.random() < 0.7 else draw.randint(0, i)
        description = {"kind": kind, "source": source}
        like = [j for j, other in enumerate(layers) if other["kind"] == kind and "share" not in other]
        if like and kind not in ONCE and draw.random() < 0.8:
            description["share"] = draw.choice(like)
        layers.append(description)
    read = {description["source"] for description in layers}
    outputs = [i for i in range(1, len(layers) + 1) if i not in read]
    extra = [i for i in range(1, len(layers) + 1) if i in read]
    if extra and draw.random() < 0.3:
        outputs.append(draw.choice(extra))
    return {"layers": layers, "outputs": outputs, "form": draw.choice(["tensor", "tensor", "tuple", "dict", "nested"])}
