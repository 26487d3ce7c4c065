"""Models that ask something of data parallel training; the same names and shapes as in odd_models.h."""

import torch
from torch import nn
from torch.nn import functional as F

import models
import view_models


class ConvNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x)).relu()
        return self.fc(x.mean([2, 3]))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 24, num_layers=2, batch_first=True)
        self.fc = nn.Linear(24, 5)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


class SparseWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16, sparse=True)
        self.fc = nn.Linear(16, 5)

    def forward(self, tokens):
        return self.fc(self.words(tokens).mean(1))


class TwoHeads(nn.Module):
    """Both heads, as a tuple or by name."""

    def __init__(self, by_name):
        super().__init__()
        self.by_name = by_name
        self.body = nn.Linear(10, 16)
        self.left = nn.Linear(16, 5)
        self.right = nn.Linear(16, 5)

    def forward(self, x):
        x = self.body(x).tanh()
        left, right = self.left(x), self.right(x)
        return {"left": left, "right": right} if self.by_name else (left, right)


class Shared(nn.Module):
    """One layer three times, and an embedding that is the output's weight as well."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.core = nn.Linear(16, 16)

    def forward(self, tokens):
        x = self.words(tokens)
        for _ in range(3):
            x = x + self.core(x).tanh()
        return F.linear(x, self.words.weight)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(10, 16)
        self.extra = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x, take_extra):
        x = self.body(x).relu()
        return self.head(x + self.extra(x).relu() if take_extra else x)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 5)
        for parameter in (*self.first.parameters(), self.norm.weight):
            parameter.requires_grad_(False)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


class MixedTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 16)
        self.precise = nn.Linear(16, 16, dtype=torch.float64)
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        return self.last(self.precise(self.first(x).relu().double()).tanh().float())


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(10, 8, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.zeros(8, dtype=torch.complex64))
        self.last = nn.Linear(16, 5)

    def forward(self, x):
        x = x.to(torch.complex64).mm(self.weight) + self.bias
        return self.last(torch.view_as_real(x).flatten(1).tanh())


_MAKERS = {
    "conv_norm": ConvNorm,
    "recurrent": Recurrent,
    "sparse_words": SparseWords,
    "tuple_heads": lambda: TwoHeads(by_name=False),
    "named_heads": lambda: TwoHeads(by_name=True),
    "shared": Shared,
    "branches": Branches,
    "frozen": Frozen,
    "mixed_types": MixedTypes,
    "complex": Complex,
    "small_gpt": lambda: models.Gpt(vocabulary=33, context=16, layers=2, heads=2, width=32),
    "weight_norm": view_models.WeightNorm,
    "tied_table": view_models.TiedTable,
    "experts": view_models.Experts,
}
_CLASSIFIERS = {"conv_norm", "shared", "small_gpt", "weight_norm", "tied_table"}


def make(name):
    return _MAKERS[name]() if name in _MAKERS else models.make(name)


def make_batch(name, size, generator):
    if name not in _MAKERS:
        return models.make_batch(name, size, generator)
    if name in ("shared", "small_gpt", "tied_table"):
        tokens = torch.randint(view_models.WORDS if name == "tied_table" else 20, (size, 17), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    if name in ("conv_norm", "weight_norm"):
        return torch.randn(size, 1, 12, 12, generator=generator), torch.randint(10, (size,), generator=generator)
    if name == "sparse_words":
        return torch.randint(50, (size, 4), generator=generator), torch.randn(size, 5, generator=generator)
    shape = {"recurrent": (7, 6), "experts": (view_models.PLACES, 6)}.get(name, (10,))
    return torch.randn(size, *shape, generator=generator), torch.randn(size, 5, generator=generator)


def takes_extra(rank, step):
    """Odd ranks take it in no step, nobody in every fourth."""
    return rank % 2 == 0 and step % 4 != 3


def loss_of(name, model, x, y, rank, step):
    if name not in _MAKERS:
        return models.loss_of(name, model(x), y)
    output = model(x, takes_extra(rank, step)) if name == "branches" else model(x)
    if name in _CLASSIFIERS:
        return F.cross_entropy(output.flatten(0, -2), y.flatten())
    if name == "tuple_heads":
        return F.mse_loss(output[0], y) + F.mse_loss(output[1], 2 * y)
    if name == "named_heads":
        return F.mse_loss(output["left"], y) + F.mse_loss(output["right"], 2 * y)
    return F.mse_loss(output, y)
