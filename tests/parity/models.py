"""The models of examples/models/ in Python: the same names, shapes, order of creation and initial distribution."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.net1(x).relu())


class Mlp(nn.Module):
    def __init__(self, widths=(784, 2048, 2048, 10)):
        super().__init__()
        layers = []
        for i, (width_in, width_out) in enumerate(zip(widths, widths[1:])):
            if i > 0:
                layers.append(nn.ReLU())
            layers.append(nn.Linear(width_in, width_out))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x.flatten(1))


class Cnn(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


def _conv(width_in, width_out, kernel, stride):
    return nn.Conv2d(width_in, width_out, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, width_in, width_out, stride):
        super().__init__()
        self.conv1 = _conv(width_in, width_out, 3, stride)
        self.bn1 = nn.BatchNorm2d(width_out)
        self.conv2 = _conv(width_out, width_out, 3, 1)
        self.bn2 = nn.BatchNorm2d(width_out)
        self.downsample = None
        if stride != 1 or width_in != width_out:
            self.downsample = nn.Sequential(_conv(width_in, width_out, 1, stride), nn.BatchNorm2d(width_out))

    def forward(self, x):
        out = self.bn1(self.conv1(x)).relu_()
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return out.relu_()


class ResNet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1 = _conv(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        width_in = 64
        for i, width in enumerate((64, 128, 256, 512), start=1):
            stride = 1 if i == 1 else 2
            stage = nn.Sequential(BasicBlock(width_in, width, stride), BasicBlock(width, width, 1))
            self.add_module(f"layer{i}", stage)
            width_in = width
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu_(), kernel_size=3, stride=2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        n, t, width = x.shape
        qkv = self.c_attn(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(*qkv, dropout_p=self.dropout if self.training else 0, is_causal=True)
        y = self.c_proj(y.transpose(1, 2).reshape(n, t, width))
        return F.dropout(y, self.dropout, self.training)


class FeedForward(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.dropout = dropout
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        return F.dropout(self.c_proj(F.gelu(self.c_fc(x))), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=65, context=128, layers=4, heads=6, width=192, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(context, width),
            "h": nn.ModuleList(Block(width, heads, dropout) for _ in range(layers)),
            "ln_f": nn.LayerNorm(width),
        })
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)

    def forward(self, tokens):
        transformer = self.transformer
        positions = torch.arange(tokens.shape[1])
        x = F.dropout(transformer.wte(tokens) + transformer.wpe(positions), self.dropout, self.training)
        for block in transformer.h:
            x = block(x)
        return self.lm_head(transformer.ln_f(x))


def make(name, dropout=0.0):
    """The model as the tests and benchmarks use it. Dropout is the gpt's."""
    makers = {
        "toy": Toy,
        "mlp": Mlp,
        "cnn": Cnn,
        "resnet18": lambda: ResNet18(10),
        "gpt": lambda: Gpt(dropout=dropout),
    }
    return makers[name]()


def make_batch(name, size, generator):
    """Random inputs and targets that the model takes: size of them."""
    if name == "gpt":
        tokens = torch.randint(65, (size, 129), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = {"toy": (10,), "mlp": (784,), "cnn": (1, 28, 28), "resnet18": (3, 28, 28)}[name]
    x = torch.randn(size, *shape, generator=generator)
    if name == "toy":
        return x, torch.randn(size, 5, generator=generator)
    return x, torch.randint(10, (size,), generator=generator)


def loss_of(name, output, target):
    if name == "toy":
        return F.mse_loss(output, target)
    return F.cross_entropy(output.flatten(0, -2), target.flatten())
