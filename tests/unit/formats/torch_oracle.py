# PyTorch on one side, Lockstep on the other.
#   torch_oracle.py make DIR        writes files of torch.save, and beside each, as NAME.txt, what is in it
#   torch_oracle.py describe FILE   loads a file with weights_only=True and prints what is in it
# A line per value: its name, its kind and its content; tensors with type, shape, flags and bytes.
import collections
import pathlib
import struct
import sys
import warnings

import torch

warnings.filterwarnings("ignore")

TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.uint32: "U32", torch.int32: "I32", torch.float32: "F32",
    torch.uint64: "U64", torch.int64: "I64", torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def content(value):
    if isinstance(value, torch.Tensor):
        raw = bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()) if value.numel() else b""
        flags = f"{int(value.requires_grad)}{int(isinstance(value, torch.nn.Parameter))}"
        return f"tensor {TYPES[value.dtype]} {list(value.shape)} {flags} {raw.hex()}"
    if value is None:
        return "None"
    if isinstance(value, bool):
        return f"bool {int(value)}"
    if isinstance(value, int):
        return f"int {value}"
    if isinstance(value, float):
        return f"float {struct.pack('>d', value).hex()}"
    if isinstance(value, str):
        return f"str {value.encode().hex()}"
    if isinstance(value, (bytes, bytearray)):
        return f"bytes {bytes(value).hex()}"
    return f"object {value}" if isinstance(value, torch.device) else f"name {value}"


def lines(value, name=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from lines(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple, set)):
        for index, item in enumerate(value):
            yield from lines(item, f"{name}.{index}" if name else str(index))
    else:
        yield f"{name} {content(value)}"


def describe(value):
    return "".join(line + "\n" for line in lines(value))


def every_type():
    sizes = {torch.bool: 1}
    values = {}
    for dtype, name in TYPES.items():
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.arange(6 * size, dtype=torch.uint8) * 37 % 200
        values[name] = (raw % 2 if dtype in sizes else raw).view(dtype).reshape(2, 3)
        values[name + " 0-d"] = values[name].reshape(-1)[5].clone()
        values[name + " empty"] = torch.empty(0, 4, dtype=dtype)
    return values


def views():
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    large = torch.arange(300 * 400, dtype=torch.int32).reshape(300, 400)
    return {
        "base": base, "transposed": base.transpose(0, 2), "permuted": base.permute(1, 2, 0), "row": base[1],
        "column": base[:, :, 3], "steps": base[::2, 1::2, ::3], "expanded": base[:, :1, :].expand(3, 7, 5),
        "scalar": base[2, 3, 4], "one for all": torch.tensor(7.0).expand(4, 3), "diagonal": torch.diagonal(base[0]),
        "overlapping": base.reshape(-1).as_strided((5, 6), (2, 3), 4), "no elements": base[:, 4:],
        "large turned": large.t(), "large steps": large[::7, ::11], "large columns": large[:, 399:],
        "channels last": torch.arange(120.).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    }


def containers():
    attributed = torch.ones(2)
    attributed.note = "attributes are left out"
    tied = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    tied_with_state = torch.nn.Parameter(torch.tensor([3.0]))
    tied_with_state.note = 1
    shared = [1, 2]
    return collections.OrderedDict(
        none=None, yes=True, no=False, small=5, byte=255, word=65535, negative=-1, int32=-(2**31), int64=2**63 - 1,
        least=-(2**63), real=0.1, huge=1e300, infinite=float("inf"), text="ä𝄞 \n", empty="", raw=bytes(range(256)),
        array=bytearray(b"ab\xff"), nothing={}, nobody=[], pair=(1, "x"), one=(1,), three=(1, 2, 3), four=(1, 2, 3, 4),
        nested={"a": {"b": [{"c": torch.ones(1)}, 2]}}, numbered={0: "zero", -7: "minus"}, group={3},
        size=torch.Size([2, 0]), tied=tied, again=tied, stated=tied_with_state, frozen=torch.nn.Parameter(
            torch.ones(1), requires_grad=False), leaf=torch.ones(2, requires_grad=True), noted=attributed,
        shared=shared, twice=[shared, shared], device=torch.device("cpu"), type=torch.float16, ordered=
        collections.OrderedDict(z=1, a=2), counted=collections.defaultdict(dict, {"k": {"v": 1}}), long="x" * 300)


def models():
    net = torch.nn
    plain = net.Sequential(net.Linear(3, 4), net.BatchNorm1d(4), net.ReLU(), net.Linear(4, 2))
    lstm = net.LSTM(3, 4, num_layers=2)
    layer = net.TransformerEncoderLayer(8, 2, 16)
    convolution = net.Sequential(net.Conv2d(1, 2, 3), net.GroupNorm(1, 2), net.Embedding(5, 3))
    tied = net.ModuleDict({"in": net.Embedding(5, 3), "out": net.Linear(3, 5, bias=False)})
    tied["out"].weight = tied["in"].weight
    return {name: model.state_dict() for name, model in
            dict(plain=plain, lstm=lstm, layer=layer, convolution=convolution, tied=tied).items()}


def optimizers():
    optim = torch.optim
    made = {
        "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "adam": lambda p: optim.Adam(p, amsgrad=True),
        "adamw": optim.AdamW, "adagrad": optim.Adagrad, "adadelta": optim.Adadelta, "adamax": optim.Adamax,
        "asgd": optim.ASGD, "nadam": optim.NAdam, "radam": optim.RAdam,
        "rmsprop": lambda p: optim.RMSprop(p, centered=True),
        "rprop": optim.Rprop, "lbfgs": optim.LBFGS,
    }
    states = {}
    for name, make in made.items():
        model = torch.nn.Linear(3, 2)
        optimizer = make(list(model.parameters()))

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 3)).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        states["optimizer " + name] = {"optimizer": optimizer.state_dict(), "epoch": 3}
    return states


def make(directory):
    torch.manual_seed(0)
    cases = {"types": every_type(), "views": views(), "containers": containers(), "tensor": torch.arange(3),
             "number": 5, "list": [torch.ones(2), 1], **models(), **optimizers()}
    for name, value in cases.items():
        for ending, is_zip in ((".pt", True), (".legacy.pt", False)):
            torch.save(value, directory / (name + ending), _use_new_zipfile_serialization=is_zip)
            (directory / (name + ending + ".txt")).write_text(describe(value))
    for name, value in {"complex": torch.ones(2, dtype=torch.complex64), "sparse": torch.eye(2).to_sparse(),
                        "csr": torch.eye(2).to_sparse_csr(), "meta": torch.ones(2, device="meta"),
                        "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
                        "negated": torch.ones(2, dtype=torch.complex64).conj().imag,
                        "module": torch.nn.Linear(1, 1), "function": torch.save}.items():
        torch.save(value, directory / ("refused " + name))
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), directory / "script.pt")


if sys.argv[1] == "make":
    make(pathlib.Path(sys.argv[2]))
else:
    print(describe(torch.load(sys.argv[2], weights_only=True)), end="")
