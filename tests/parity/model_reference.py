"""Writes what one training step of each model gives in Python: <out>/<case>.safetensors.

Tensors: initial/<name> (parameters and buffers after torch.manual_seed(1)), x, y, loss (of the forward pass after
torch.manual_seed(2)), grad/<name>, after/<name> (parameters and buffers after one step of SGD). Metadata: parameters,
their names in the model's order.
"""

import argparse
import os

import torch
from safetensors.torch import save_file

import models

CASES = {"toy": {}, "mlp": {}, "cnn": {}, "resnet18": {}, "gpt": {}, "gpt_dropout": {"dropout": 0.1}}


def run(case, options, path):
    name = case.split("_")[0]
    torch.manual_seed(1)
    model = models.make(name, **options)
    tensors = {f"initial/{key}": value.clone() for key, value in model.state_dict().items()}
    x, y = models.make_batch(name, 8, torch.Generator().manual_seed(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    torch.manual_seed(2)
    loss = models.loss_of(name, model(x), y)
    loss.backward()
    optimizer.step()

    tensors.update({"x": x, "y": y, "loss": loss.detach()})
    tensors.update({f"grad/{key}": parameter.grad for key, parameter in model.named_parameters()})
    tensors.update({f"after/{key}": value for key, value in model.state_dict().items()})
    names = ",".join(key for key, _ in model.named_parameters())
    save_file(tensors, path, metadata={"parameters": names})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    os.makedirs(out, exist_ok=True)
    for case, options in CASES.items():
        run(case, options, os.path.join(out, case + ".safetensors"))


if __name__ == "__main__":
    main()
