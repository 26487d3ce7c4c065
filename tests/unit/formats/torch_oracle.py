# PyTorch on one side, Lockstep on the other.
#   torch_oracle.py make DIR        writes files of torch.save, and beside each, as NAME.txt, what is in it
#   torch_oracle.py describe FILE   loads a file with weights_only=True and prints what is in it
# A line per value: its name, its kind and its content; tensors with type, shape, flags and bytes.
import argparse
import collections
import enum
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
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0", torch.complex32: "C32", torch.complex64: "C64", torch.complex128: "C128",
    torch.float4_e2m1fn_x2: "F4_E2M1_X2", torch.bits8: "BITS8", torch.bits16: "BITS16", torch.bits1x8: "BITS1X8",
    torch.bits2x4: "BITS2X4", torch.bits4x2: "BITS4X2",
}
PACKED = {torch.quint4x2, torch.quint2x4}
STORAGES = (torch.storage.TypedStorage, torch.storage.UntypedStorage)


def elements(storage):
    return torch.empty(0, dtype=getattr(storage, "dtype", torch.uint8)).set_(storage)


def quantised_parts(tensor):
    scheme = tensor.qscheme()
    is_packed = tensor.dtype in PACKED
    values = elements(tensor.untyped_storage()) if is_packed else tensor.int_repr()
    written = torch.per_channel_affine if is_packed else scheme  # numbers of its parameters' type make it another one
    parts = {"type": str(tensor.dtype), "scheme": written, "values": values}
    if is_packed:
        parts["size"] = tensor.size()
    if scheme == torch.per_tensor_affine:
        return parts | {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return parts | {"scale": tensor.q_per_channel_scales(), "zero_point": tensor.q_per_channel_zero_points(),
                    "axis": tensor.q_per_channel_axis()}


def parts(tensor):
    """What Lockstep reads of a tensor that is not plain elements; None for one that is."""
    if tensor.is_nested:
        return {"layout": "nested", "buffer": tensor.values(), "sizes": tensor._nested_tensor_size(),
                "strides": tensor._nested_tensor_strides(), "offsets": tensor._nested_tensor_storage_offsets()}
    if tensor.is_quantized:
        return quantised_parts(tensor)
    if tensor.is_meta:
        return {"device": "meta", "type": tensor.dtype, "size": tensor.size(), "strides": tensor.stride()}
    if tensor.layout == torch.strided:
        return None
    tensor = tensor.detach()
    layout, size = {"layout": str(tensor.layout)}, {"size": tensor.size()}
    if tensor.layout == torch.sparse_coo:
        return layout | {"indices": tensor._indices(), "values": tensor._values()} | size | {
            "is_coalesced": tensor.is_coalesced()}
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = {"crow_indices": tensor.crow_indices(), "col_indices": tensor.col_indices()}
    else:
        indices = {"ccol_indices": tensor.ccol_indices(), "row_indices": tensor.row_indices()}
    return layout | indices | {"values": tensor.values()} | size


def content(value):
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = bytes(plain.view(torch.uint8).tolist()) if value.numel() else b""
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
        replaced = "".join("\ufffd" if "\ud800" <= each < "\ue000" else each for each in value)
        return f"str {replaced.encode().hex()}"
    if isinstance(value, (bytes, bytearray)):
        return f"bytes {bytes(value).hex()}"
    return f"{'object' if isinstance(value, (torch.device, torch.layout, complex)) else 'name'} {value}"


def key_text(key):
    if isinstance(key, (tuple, frozenset)):
        return f"({', '.join(map(key_text, key))})"
    return key.hex() if isinstance(key, bytes) else str(key)


def lines(value, name=""):
    if isinstance(value, STORAGES):
        value = elements(value)
    if isinstance(value, torch.Tensor) and (found := parts(value)) is not None:
        value = found
    if isinstance(value, dict):
        for key, item in value.items():
            yield from lines(item, f"{name}.{key_text(key)}" if name else key_text(key))
    elif isinstance(value, (list, tuple, set)):
        for index, item in enumerate(value):
            yield from lines(item, f"{name}.{index}" if name else str(index))
    else:
        yield f"{name} {content(value)}"


def describe(value):
    return "".join(line + "\n" for line in lines(value))


def every_type():
    values = {}
    for dtype, name in TYPES.items():
        size = torch.empty(0, dtype=dtype).element_size()
        raw = torch.arange(6 * size, dtype=torch.uint8) * 37 % 200
        if dtype == torch.bool:
            raw %= 2
        values[name] = raw.view(dtype).reshape(2, 3)
        values[name + " 0-d"] = raw[:size].clone().view(dtype).reshape(())
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
        "conjugated": torch.arange(12.).reshape(3, 4).to(torch.complex64).mul(1 + 2j)[:, 1:].conj(),
        "imaginary part of it": torch.complex(torch.ones(3), torch.arange(3.)).conj().imag,
        "both": torch._neg_view(torch.tensor([[1 + 2j, 3 - 4j]], dtype=torch.complex128).conj()),
        "negated": torch._neg_view(torch.arange(700)), "negated bytes": torch._neg_view(torch.arange(5).byte()),
        "real part": torch.complex(torch.arange(3.), torch.ones(3)).real,
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


def others():
    """Tensors that are not plain elements, and what else the list of torch/_weights_only_unpickler.py has."""
    dense = torch.tensor([[0.0, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 4.0]])
    wide = torch.arange(8.0).reshape(2, 4) / 4
    scales, zeros = torch.tensor([0.1, 0.5]), torch.tensor([1, 2])
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
    noted = torch.nn.Parameter(dense.to_sparse())
    noted.note = {"is": "left out"}
    return {
        "coo": dense.to_sparse(), "not coalesced": twice, "hybrid": torch.ones(2, 3).to_sparse(1),
        "csr": dense.to_sparse_csr(), "csc": dense.to_sparse_csc(), "bsr": dense.to_sparse_bsr((1, 2)),
        "bsc": dense.to_sparse_bsc((1, 2)), "complex coo": dense.to(torch.complex64).to_sparse(),
        "parameter": torch.nn.Parameter(dense.to_sparse()), "noted": noted,
        "qint8": torch.quantize_per_tensor(wide, 0.1, 3, torch.qint8),
        "qint8 turned": torch.quantize_per_tensor(wide, 0.1, 3, torch.qint8).t(),
        "quint8": torch.quantize_per_channel(wide, scales, zeros, 0, torch.quint8),
        "qint32": torch.quantize_per_tensor(wide, 0.01, 0, torch.qint32),
        "quint4x2": torch.quantize_per_channel(wide, scales, zeros.float(), 0, torch.quint4x2),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0)]),
        "meta": torch.empty(2, 3, dtype=torch.bfloat16, device="meta"), "complex parameter":
        torch.nn.Parameter(torch.tensor([1 + 2j])), "storage": torch.arange(3.0).storage(),
        "complex storage": torch.tensor([1 + 2j]).storage(), "bytes": torch.arange(3).untyped_storage(),
        "counter": collections.Counter("abca"), "complex": 1 + 2j, "imaginary": -2j, "part": complex(0.5, -1),
        "large": 2**64 - 1, "larger": 10**60, "negative": -(2**63) - 1, "most negative": -(10**70),
        "surrogate": "a\udcffb", "group": {"x"}, "gpu": torch.device("cuda", 1), "layout": torch.sparse_csr,
        "scheme": torch.per_channel_affine, "types": [torch.qint8, torch.uint3, torch.float8_e8m0fnu, torch.complex32],
        "keys": {(1, ("x", None)): 1, 0.5: 2, None: 3, True: 4, torch.float32: 5, -7: 6, 10**20: 7, b"\x01": 8},
    }


class Colour(enum.Enum):
    red = 1


class Row(list):
    pass


class Table(dict):
    pass


Pair = collections.namedtuple("Pair", "left right")


def strangers():
    """A checkpoint with values of classes that PyTorch does not load, either."""
    table = Table(a=torch.ones(1), n=1)
    table.note = torch.ones(2)
    arguments = argparse.Namespace(lr=0.1, weights=torch.ones(3))
    arguments.itself = arguments
    return {"w": torch.arange(2.0), "epoch": 3, "args": arguments, "colour": Colour.red, "row": Row([torch.ones(4), 1]),
            "table": table, "pair": Pair(torch.ones(5), 2), "path": pathlib.PurePosixPath("/data/x.txt"),
            "root": pathlib.PurePosixPath("/"), "here": pathlib.PurePosixPath("a/b"), "none": pathlib.PurePosixPath(),
            "drive": pathlib.PureWindowsPath("C:\\x\\y"), "function": torch.nn.functional.relu,
            "queue": collections.deque([torch.ones(6)]), "last": torch.ones(1)}


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
             "number": 5, "list": [torch.ones(2), 1], "others": others(), "imaginary": 2j, **models(), **optimizers()}
    for name, value in cases.items():
        for ending, is_zip in ((".pt", True), (".legacy.pt", False)):
            torch.save(value, directory / (name + ending), _use_new_zipfile_serialization=is_zip)
            (directory / (name + ending + ".txt")).write_text(describe(value))
    for name, value in {"whole model": torch.nn.Sequential(torch.nn.Linear(1, 2)), "function": torch.save,
                        "nothing": argparse.Namespace(x=1), "strangers": strangers()}.items():
        torch.save(value, directory / name)
        torch.save(value, directory / ("legacy " + name), _use_new_zipfile_serialization=False)
    for protocol in (1, 3):
        torch.save({"a": [1, "x"]}, directory / f"protocol {protocol}", pickle_protocol=protocol)
    torch.save({"a": [1, "x"]}, directory / "legacy protocol 3", pickle_protocol=3,
               _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), directory / "script.pt")


if sys.argv[1] == "make":
    make(pathlib.Path(sys.argv[2]))
else:
    print(describe(torch.load(sys.argv[2], weights_only=True)), end="")
