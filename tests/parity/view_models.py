"""Models whose layers take their weights from views of parameters; the same names and shapes as in view_models.h."""

import torch
from torch import nn
from torch.nn import functional as F

WORDS, POSITIONS, WIDTH, HEADS = 500, 16, 32, 2
EXPERTS, EXPERT_WIDTH, SAMPLES, PLACES = 8, 48, 8, 48


def random_parameter(*shape, scale):
    return nn.Parameter(scale * torch.randn(*shape))


class WeightNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = random_parameter(64 * 32 * 3 * 3, scale=0.1)
        self.gain = nn.Parameter(torch.ones(64, 1, 1, 1))
        self.left = random_parameter(32 * 576, scale=0.05)
        self.right = random_parameter(32 * 576, scale=0.05)
        self.first = nn.Conv2d(1, 32, 3)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        direction = self.flat.view(64, 32, 3, 3)
        weight = self.gain * direction / direction.square().sum([1, 2, 3], keepdim=True).sqrt()
        x = F.conv2d(self.first(x).relu(), weight, stride=3).relu()
        x = F.linear(x.flatten(1), self.left.view(32, 576) + self.right.view(32, 576)).tanh()
        return self.last(x)


class TiedTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = random_parameter(WORDS + POSITIONS, WIDTH, scale=0.2)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        n, t = tokens.shape
        words, positions = self.table.narrow(0, 0, WORDS), self.table.narrow(0, WORDS, t)
        x = F.embedding(tokens, words) + positions
        qkv = self.qkv(x).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(n, t, WIDTH))
        return self.norm(x).matmul(words.t())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = random_parameter(EXPERTS, EXPERT_WIDTH, EXPERT_WIDTH, scale=0.2)
        self.biases = random_parameter(EXPERTS, EXPERT_WIDTH, scale=0.1)
        self.offset = random_parameter(SAMPLES * PLACES * EXPERT_WIDTH, scale=0.3)
        self.first = nn.Linear(6, EXPERT_WIDTH)
        self.gate = nn.Linear(EXPERT_WIDTH, EXPERTS)
        self.last = nn.Linear(EXPERT_WIDTH, 5)

    def forward(self, x):
        x = self.first(x)
        x = (x + self.offset.view(x.shape)).tanh()
        shares = self.gate(x.select(1, 0)).softmax(1)
        choice = shares.argmax(1)
        out = torch.zeros_like(x)
        for expert in range(EXPERTS):
            samples = choice.eq(expert).nonzero().flatten()
            if samples.numel() == 0:
                continue
            own = x.index_select(0, samples).matmul(self.weights.select(0, expert)) + self.biases[expert:expert + 1]
            share = shares.index_select(0, samples).select(1, expert).view(-1, 1, 1)
            out = out.index_add(0, samples, own.relu() * share)
        return self.last(out.mean(1))
