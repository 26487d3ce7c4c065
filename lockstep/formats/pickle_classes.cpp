#include "lockstep/formats/pickle_classes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "lockstep/formats/safetensors/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr PickleClass kClasses[] = {
    {"collections.OrderedDict", PickleRole::ordered_dict},
    {"collections.Counter", PickleRole::ordered_dict},
    {"collections.defaultdict", PickleRole::default_dict},
    {"builtins.dict", PickleRole::factory},
    {"builtins.list", PickleRole::factory},
    {"builtins.int", PickleRole::factory},
    {"builtins.float", PickleRole::factory},
    {"builtins.set", PickleRole::set},
    {"builtins.frozenset", PickleRole::set},
    {"builtins.bytearray", PickleRole::bytearray},
    {"builtins.complex", PickleRole::object},
    {"_codecs.encode", PickleRole::encode},
    {"torch.Size", PickleRole::size},
    {"torch.device", PickleRole::object},
    {"torch.serialization._get_layout", PickleRole::object},
    {"torch.Tensor", PickleRole::tensor_class},
    {"torch.BoolTensor", PickleRole::tensor_class},
    {"torch.ByteTensor", PickleRole::tensor_class},
    {"torch.CharTensor", PickleRole::tensor_class},
    {"torch.ShortTensor", PickleRole::tensor_class},
    {"torch.IntTensor", PickleRole::tensor_class},
    {"torch.LongTensor", PickleRole::tensor_class},
    {"torch.HalfTensor", PickleRole::tensor_class},
    {"torch.BFloat16Tensor", PickleRole::tensor_class},
    {"torch.FloatTensor", PickleRole::tensor_class},
    {"torch.DoubleTensor", PickleRole::tensor_class},
    {"torch.nn.parameter.Parameter", PickleRole::tensor_class},
    {"torch.nn.parameter.Buffer", PickleRole::tensor_class},
    {"torch._utils._rebuild_tensor", PickleRole::tensor_v1},
    {"torch._utils._rebuild_tensor_v2", PickleRole::tensor_v2},
    {"torch._utils._rebuild_tensor_v3", PickleRole::tensor_v3},
    {"torch._tensor._rebuild_from_type_v2", PickleRole::tensor_with_attributes},
    {"torch._utils._rebuild_parameter", PickleRole::parameter},
    {"torch._utils._rebuild_parameter_with_state", PickleRole::parameter},
    {"torch._utils._rebuild_device_tensor_from_cpu_tensor", PickleRole::tensor_of_device},
    {"torch._utils._rebuild_sparse_tensor", PickleRole::sparse_tensor},
    {"torch._utils._rebuild_sparse_csr_tensor", PickleRole::sparse_tensor},
    {"torch._utils._rebuild_qtensor", PickleRole::quantised_tensor},
    {"torch._utils._rebuild_nested_tensor", PickleRole::nested_tensor},
    {"torch._utils._rebuild_meta_tensor_no_storage", PickleRole::meta_tensor},
    {"torch._utils._rebuild_wrapper_subclass", PickleRole::wrapper_tensor},
    {"torch.QInt8Storage", PickleRole::storage_type, "I8"},
    {"torch.QUInt8Storage", PickleRole::storage_type, "U8"},
    {"torch.QInt32Storage", PickleRole::storage_type, "I32"},
    {"torch.QUInt4x2Storage", PickleRole::storage_type, "U8"},
    {"torch.QUInt2x4Storage", PickleRole::storage_type, "U8"},
    {"torch.storage.UntypedStorage", PickleRole::storage_type, "U8"},
    {"torch.UntypedStorage", PickleRole::storage_type, "U8"},
    {"torch.jit._pickle.build_intlist", PickleRole::typed_list},
    {"torch.jit._pickle.build_doublelist", PickleRole::typed_list},
    {"torch.jit._pickle.build_boollist", PickleRole::typed_list},
    {"torch.jit._pickle.build_tensorlist", PickleRole::typed_list},
    {"torch.jit._pickle.restore_type_tag", PickleRole::typed_value},
    {"torch.distributed.checkpoint.metadata.Metadata", PickleRole::object},
    {"torch.distributed.checkpoint.metadata.MetadataIndex", PickleRole::object},
    {"torch.distributed.checkpoint.metadata.StorageMeta", PickleRole::object},
    {"torch.distributed.checkpoint.metadata.TensorStorageMetadata", PickleRole::object},
    {"torch.distributed.checkpoint.metadata.BytesStorageMetadata", PickleRole::object},
    {"torch.distributed.checkpoint.metadata.ChunkStorageMetadata", PickleRole::object},
    {"torch.distributed.checkpoint.metadata.TensorProperties", PickleRole::object},
    {"torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING", PickleRole::object},
    {"torch.distributed._shard.sharded_tensor.metadata.TensorProperties", PickleRole::object},
    {"torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING", PickleRole::object},
    {"torch.distributed.checkpoint.filesystem._StorageInfo", PickleRole::object},
    {"torch.distributed.checkpoint.filesystem._StoragePrefix", PickleRole::object},
    {"pathlib.PosixPath", PickleRole::object},
    {"pathlib.PurePosixPath", PickleRole::object},
    {"pathlib.WindowsPath", PickleRole::object},
    {"pathlib.PureWindowsPath", PickleRole::object},
    {"pathlib._local.PosixPath", PickleRole::object},
    {"pathlib._local.PurePosixPath", PickleRole::object},
    {"pathlib._local.WindowsPath", PickleRole::object},
    {"pathlib._local.PureWindowsPath", PickleRole::object},
    {"torch.strided", PickleRole::constant},
    {"torch.contiguous_format", PickleRole::constant},
    {"torch.preserve_format", PickleRole::constant},
    {"torch.channels_last", PickleRole::constant},
    {"torch.qint8", PickleRole::constant},
    {"torch.quint8", PickleRole::constant},
    {"torch.qint32", PickleRole::constant},
    {"torch.quint4x2", PickleRole::constant},
    {"torch.quint2x4", PickleRole::constant},
    {"torch.per_tensor_affine", PickleRole::constant},
    {"torch.per_tensor_symmetric", PickleRole::constant},
    {"torch.per_channel_affine", PickleRole::constant},
    {"torch.per_channel_symmetric", PickleRole::constant},
    {"torch.per_channel_affine_float_qparams", PickleRole::constant},
};

constexpr PickleClass kUnknown = {"", PickleRole::unknown};

// Modules, with their submodules, and functions that run their arguments. Torch never allows the first four.
constexpr std::string_view kProgramModules[] = {"os",     "posix",   "nt",      "sys",      "subprocess",
                                                "pty",    "shutil",  "runpy",   "ctypes",   "webbrowser",
                                                "pickle", "_pickle", "marshal", "importlib"};
constexpr std::string_view kProgramFunctions[] = {"eval", "exec", "execfile", "compile", "open", "__import__"};

// Of a class of a C++ archive; which one does not matter.
constexpr PickleClass kArchiveClass = {"__torch__", PickleRole::object};

// The types of kTorchTypes, as constants and as storages.
template <PickleRole role>
constexpr auto of_each_type() {
  std::array<PickleClass, kTorchTypes.size()> classes{};
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const TorchType& type = kTorchTypes.at(i);
    classes.at(i) = {role == PickleRole::constant ? type.torch : type.storage, role, type.name};
  }
  return classes;
}
constexpr auto kTypeConstants = of_each_type<PickleRole::constant>();
constexpr auto kStorageTypes = of_each_type<PickleRole::storage_type>();

const PickleClass* find_named(std::span<const PickleClass> classes, std::string_view name) {
  const auto found = std::ranges::find(classes, name, &PickleClass::name);
  return found == classes.end() || name.empty() ? nullptr : &*found;
}

// The Python 3 name of a module of Python 2.
std::string_view modern(std::string_view module) { return module == "__builtin__" ? "builtins" : module; }

}  // namespace

const PickleClass& find_pickle_class(std::string_view module, std::string_view name) {
  module = modern(module);
  if (module == "__torch__" || module.starts_with("__torch__.")) return kArchiveClass;
  if (module == "torch") {
    if (const PickleClass* type = find_named(kTypeConstants, name)) return *type;
  }
  // Tensors of a GPU, in old files.
  if (module == "torch.cuda" && (name.ends_with("Storage") || name.ends_with("Tensor"))) module = "torch";
  if (module == "torch") {
    if (const PickleClass* type = find_named(kStorageTypes, name)) return *type;
  }
  const auto* found = std::ranges::find_if(kClasses, [&](const PickleClass& each) {
    return each.name.size() == module.size() + 1 + name.size() && each.name.starts_with(module) &&
           each.name[module.size()] == '.' && each.name.ends_with(name);
  });
  return found == std::end(kClasses) ? kUnknown : *found;
}

bool is_program(std::string_view module, std::string_view name) {
  module = modern(module);
  if (module == "builtins" || module == "io" || module == "_io") {
    return std::ranges::find(kProgramFunctions, name) != std::end(kProgramFunctions);
  }
  const std::string_view top = module.substr(0, module.find('.'));
  return std::ranges::find(kProgramModules, top) != std::end(kProgramModules);
}

}  // namespace lockstep::internal
