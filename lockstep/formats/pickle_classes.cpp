#include "lockstep/formats/pickle_classes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "lockstep/formats/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kSparse = "a sparse tensor; save tensor.to_dense() instead";
constexpr std::string_view kQuantised = "a quantised tensor; save tensor.dequantize() instead";
constexpr std::string_view kComplex = "a complex tensor; save torch.view_as_real(tensor) instead";
constexpr std::string_view kNoData = "a tensor of a device that is not stored as plain elements";

constexpr PickleClass kClasses[] = {
    {"collections.OrderedDict", PickleRole::ordered_dict},
    {"collections.defaultdict", PickleRole::default_dict},
    {"builtins.dict", PickleRole::factory},
    {"builtins.list", PickleRole::factory},
    {"builtins.int", PickleRole::factory},
    {"builtins.float", PickleRole::factory},
    {"__builtin__.dict", PickleRole::factory},
    {"__builtin__.list", PickleRole::factory},
    {"__builtin__.int", PickleRole::factory},
    {"__builtin__.float", PickleRole::factory},
    {"builtins.set", PickleRole::set},
    {"builtins.frozenset", PickleRole::set},
    {"__builtin__.set", PickleRole::set},
    {"__builtin__.frozenset", PickleRole::set},
    {"builtins.bytearray", PickleRole::bytearray},
    {"__builtin__.bytearray", PickleRole::bytearray},
    {"_codecs.encode", PickleRole::encode},
    {"torch.Size", PickleRole::size},
    {"torch.device", PickleRole::object},
    {"torch.serialization._get_layout", PickleRole::object},
    {"torch.Tensor", PickleRole::tensor_class},
    {"torch.nn.parameter.Parameter", PickleRole::tensor_class},
    {"torch._utils._rebuild_tensor", PickleRole::tensor_v1},
    {"torch._utils._rebuild_tensor_v2", PickleRole::tensor_v2},
    {"torch._utils._rebuild_tensor_v3", PickleRole::tensor_v3},
    {"torch._tensor._rebuild_from_type_v2", PickleRole::tensor_with_attributes},
    {"torch._utils._rebuild_parameter", PickleRole::parameter},
    {"torch._utils._rebuild_parameter_with_state", PickleRole::parameter},
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
    {"pathlib._local.PosixPath", PickleRole::object},
    {"pathlib._local.PurePosixPath", PickleRole::object},
    {"torch.strided", PickleRole::constant},
    {"torch.contiguous_format", PickleRole::constant},
    {"torch.preserve_format", PickleRole::constant},
    {"torch.channels_last", PickleRole::constant},
    {"torch._utils._rebuild_sparse_tensor", PickleRole::unsupported, kSparse},
    {"torch._utils._rebuild_sparse_csr_tensor", PickleRole::unsupported, kSparse},
    {"torch._utils._rebuild_nested_tensor", PickleRole::unsupported, "a nested tensor"},
    {"torch._utils._rebuild_qtensor", PickleRole::unsupported, kQuantised},
    {"torch.QInt8Storage", PickleRole::unsupported, kQuantised},
    {"torch.QUInt8Storage", PickleRole::unsupported, kQuantised},
    {"torch.QInt32Storage", PickleRole::unsupported, kQuantised},
    {"torch.QUInt4x2Storage", PickleRole::unsupported, kQuantised},
    {"torch.QUInt2x4Storage", PickleRole::unsupported, kQuantised},
    {"torch.ComplexFloatStorage", PickleRole::unsupported, kComplex},
    {"torch.ComplexDoubleStorage", PickleRole::unsupported, kComplex},
    {"torch.complex32", PickleRole::unsupported, kComplex},
    {"torch.complex64", PickleRole::unsupported, kComplex},
    {"torch.complex128", PickleRole::unsupported, kComplex},
    {"torch._utils._rebuild_meta_tensor_no_storage", PickleRole::unsupported, "a tensor of the meta device"},
    {"torch._utils._rebuild_device_tensor_from_numpy", PickleRole::unsupported, kNoData},
    {"torch._utils._rebuild_device_tensor_from_cpu_tensor", PickleRole::unsupported, kNoData},
    {"torch._utils._rebuild_wrapper_subclass", PickleRole::unsupported, kNoData},
};

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

}  // namespace

const PickleClass* find_pickle_class(std::string_view module, std::string_view name) {
  if (module == "__torch__" || module.starts_with("__torch__.")) return &kArchiveClass;
  if (module == "torch") {
    if (const PickleClass* type = find_named(kTypeConstants, name)) return type;
  }
  if (module == "torch" || module == "torch.cuda") {
    if (const PickleClass* type = find_named(kStorageTypes, name)) return type;
  }
  const auto* found = std::ranges::find_if(kClasses, [&](const PickleClass& each) {
    return each.name.size() == module.size() + 1 + name.size() && each.name.starts_with(module) &&
           each.name[module.size()] == '.' && each.name.ends_with(name);
  });
  return found == std::end(kClasses) ? nullptr : found;
}

}  // namespace lockstep::internal
