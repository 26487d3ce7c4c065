# The safetensors package on one side, Lockstep on the other:
# state_oracle.py <written by Lockstep> <to be written here>.
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

expected = {
    "f32": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
    "f64": torch.tensor(1 / 3, dtype=torch.float64),
    "f16": torch.tensor([0.5, -2.0, 65504.0], dtype=torch.float16),
    "bf16": torch.tensor([0.5, -2.0, 3e38, 1.0, 2.0], dtype=torch.bfloat16),
    "i8": torch.tensor([-128, 127, 1], dtype=torch.int8),
    "i16": torch.tensor([-32768, 32767], dtype=torch.int16),
    "i32": torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32),
    "i64": torch.tensor([-(2**63), 2**63 - 1], dtype=torch.int64),
    "u8": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "empty": torch.empty(0, 4),
    "strange \"name\" é/ü": torch.ones(1),
}
given, wanted = sys.argv[1:]
loaded = load_file(given)
assert loaded.keys() == expected.keys(), sorted(loaded)
for name, tensor in expected.items():
    other = loaded[name]
    assert other.dtype == tensor.dtype and other.shape == tensor.shape, (name, other)
    assert torch.equal(other, tensor), (name, other)
with safe_open(given, "pt") as file:
    assert file.metadata()["epoch"] == "3", file.metadata()
save_file(expected, wanted, metadata={"epoch": "4", "format": "pt"})
