"""Writes what one training step of each model gives in Python: <out>/<case>.safetensors. With --check DIR reads what
models_test.cpp has made of it there: <case>.pt has to be the model after the step, for load_state_dict().

Tensors: initial/<name> (parameters and buffers after torch.manual_seed(1)), x, y, loss (of the forward pass after
torch.manual_seed(2)), grad/<name>, after/<name> (parameters and buffers after one step of SGD). Metadata: parameters,
their names in the model's order. The model after the step is also in <case>.pt, <case>_legacy.pt and <case>_dcp, as
PyTorch saves it.
"""

import argparse
import os

import torch
import torch.distributed.checkpoint as dcp
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
    base = path.removesuffix(".safetensors")
    torch.save(model.state_dict(), base + ".pt")
    torch.save(model.state_dict(), base + "_legacy.pt", _use_new_zipfile_serialization=False)
    dcp.save(model.state_dict(), checkpoint_id=base + "_dcp", no_dist=True)


def check(case, options, out, directory):
    model = models.make(case.split("_")[0], **options)
    model.load_state_dict(torch.load(os.path.join(directory, case + ".pt"), weights_only=True), strict=True)
    expected = torch.load(os.path.join(out, case + ".pt"), weights_only=True)
    for name, value in model.state_dict().items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), f"{case}: {name} differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--check", metavar="DIR")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.makedirs(arguments.out, exist_ok=True)
    for case, options in CASES.items():
        if arguments.check:
            check(case, options, arguments.out, arguments.check)
        else:
            run(case, options, os.path.join(arguments.out, case + ".safetensors"))


if __name__ == "__main__":
    main()
