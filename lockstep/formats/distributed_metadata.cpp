#include "lockstep/formats/distributed_metadata.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/formats/pickle_reader.h"
#include "lockstep/formats/safetensors/safetensors_parser.h"
#include "lockstep/formats/safetensors/torch_types.h"
#include "lockstep/formats/sibling_file.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostComparisons = std::size_t{1} << 28;  // of chunks of one tensor

using Sizes = std::vector<std::int64_t>;
using PlaceKey = std::tuple<std::string, Sizes>;  // name, offsets

[[noreturn]] void fail_metadata(const std::string& origin, const std::string& why) {
  throw Error(ErrorKind::corrupt_data, fmt::format("{}: {}", origin, why));
}

std::string_view short_name(std::string_view class_name) {
  const std::size_t dot = class_name.rfind('.');
  return dot == std::string_view::npos ? class_name : class_name.substr(dot + 1);
}

// The attributes of an object of the class.
PickleValue attributes(const PickleValue& value, std::string_view class_name) {
  if (!value.is(PickleKind::object) || short_name(value.class_name()) != class_name || !value.state()) {
    value.refuse(fmt::format("{} where a {} is expected", to_string(value.kind()), class_name));
  }
  return *value.state();
}

std::uint64_t count_at(const PickleValue& dict, std::string_view key) {
  const std::int64_t number = dict.at(key).integer();
  if (number < 0) dict.refuse(fmt::format("'{}' is {}", key, number));
  return static_cast<std::uint64_t>(number);
}

DistributedPlace place_of(const PickleValue& value, const std::string& origin) {
  const PickleValue info = attributes(value, "_StorageInfo");
  DistributedPlace place{.file = std::string(info.at("relative_path").text()),
                         .begin = count_at(info, "offset"),
                         .bytes = count_at(info, "length")};
  check_sibling_name(place.file, origin);
  const std::optional<PickleValue> transforms = info.find("transform_descriptors");
  if (transforms && !transforms->is(PickleKind::none) && transforms->size() > 0) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} is compressed or otherwise transformed; save the checkpoint without extensions",
                            origin, shown(place.file)));
  }
  return place;
}

// Of each entry and chunk. An entry that is no tensor has no offsets.
std::map<PlaceKey, DistributedPlace> all_places(const PickleValue& dict, const std::string& origin) {
  std::map<PlaceKey, DistributedPlace> places;
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const PickleValue index = attributes(dict.key(i), "MetadataIndex");
    const std::optional<PickleValue> offset = index.find("offset");
    PlaceKey key{index.at("fqn").text(), offset && !offset->is(PickleKind::none) ? offset->sizes() : Sizes()};
    if (!places.emplace(std::move(key), place_of(dict.value(i), origin)).second) {
      fail_metadata(origin, fmt::format("{} has two locations", shown(index.at("fqn").text())));
    }
  }
  return places;
}

// Each place is that of one chunk, so it is taken.
DistributedPlace take_place(std::map<PlaceKey, DistributedPlace>& places, const std::string& name, const Sizes& offsets,
                            const std::string& origin) {
  auto found = places.extract({name, offsets});
  if (found.empty()) {
    fail_metadata(origin, fmt::format("{} at {} has no location in a file, or two chunks have the same one",
                                      shown(name), offsets));
  }
  return std::move(found.mapped());
}

// TensorProperties: their state is (type, layout, ...).
std::string type_of(const PickleValue& properties, const std::string& name) {
  const PickleValue type = attributes(properties, "TensorProperties").item(0);
  const PickleValue layout = attributes(properties, "TensorProperties").item(1);
  const bool is_object = layout.is(PickleKind::object);
  const std::string_view layout_name = is_object ? layout.arguments().item(0).text() : layout.class_name();
  if (layout_name != "torch.strided")
    layout.refuse(fmt::format("{} has the unsupported layout {}", shown(name), shown(layout_name)));
  for (const TorchType& each : kTorchTypes) {
    if (short_name(type.class_name()) == each.torch) return std::string(each.name);
  }
  type.refuse(fmt::format("{} has the unsupported type {}", shown(name), shown(type.class_name())));
}

DistributedTensor tensor_from(const std::string& name, const PickleValue& entry,
                              std::map<PlaceKey, DistributedPlace>& places, const std::string& origin) {
  DistributedTensor tensor{.name = name,
                           .dtype = type_of(entry.at("properties"), name),
                           .shape = entry.at("size").sizes(),
                           .bytes = 0,
                           .chunks = {}};
  const std::string what = fmt::format("shape of {}", shown(name));
  tensor.bytes = checked_bytes(tensor.shape, torch_element_size(tensor.dtype), std::numeric_limits<std::int64_t>::max(),
                               what, origin);
  const PickleValue chunks = entry.at("chunks");
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const PickleValue chunk = attributes(chunks.item(i), "ChunkStorageMetadata");
    Sizes offsets = chunk.at("offsets").sizes();
    DistributedPlace place = take_place(places, name, offsets, origin);
    tensor.chunks.push_back(
        {.offsets = std::move(offsets), .sizes = chunk.at("sizes").sizes(), .place = std::move(place)});
  }
  check_tiling(tensor, origin);
  return tensor;
}

bool overlaps(const DistributedChunk& a, const DistributedChunk& b) {
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) return false;
  }
  return true;
}

std::uint64_t volume(const Sizes& sizes) {
  std::uint64_t product = 1;
  for (const std::int64_t size : sizes) product *= static_cast<std::uint64_t>(size);
  return product;
}

}  // namespace

void check_tiling(const DistributedTensor& tensor, const std::string& origin) {
  const auto fail = [&](const std::string& why) {
    fail_metadata(origin, fmt::format("the chunks of {} {}: {}", shown(tensor.name), tensor.shape, why));
  };
  std::vector<const DistributedChunk*> sorted;
  std::uint64_t covered = 0;
  const std::uint64_t elements = volume(tensor.shape);
  for (const DistributedChunk& chunk : tensor.chunks) {
    const std::string text = fmt::format("one of {} at {}", chunk.sizes, chunk.offsets);
    if (chunk.offsets.size() != tensor.shape.size() || chunk.sizes.size() != tensor.shape.size()) {
      fail(text + " has another number of dimensions");
    }
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (chunk.offsets[d] > tensor.shape[d] || chunk.sizes[d] > tensor.shape[d] - chunk.offsets[d]) {
        fail(text + " reaches beyond the tensor");
      }
    }
    const std::uint64_t inside = volume(chunk.sizes);
    if (inside == 0) continue;
    if (inside > elements - covered) fail("they overlap");
    covered += inside;
    sorted.push_back(&chunk);
  }
  if (covered != elements) fail(fmt::format("they cover {} of {} elements", covered, elements));
  if (tensor.shape.empty()) return;
  std::ranges::sort(sorted, {}, [](const DistributedChunk* chunk) { return chunk->offsets; });
  std::size_t comparisons = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t end = sorted[i]->offsets[0] + sorted[i]->sizes[0];
    for (std::size_t k = i + 1; k < sorted.size() && sorted[k]->offsets[0] < end; ++k) {
      if (++comparisons > kMostComparisons) fail("there are too many to compare");
      if (overlaps(*sorted[i], *sorted[k]))
        fail(fmt::format("those at {} and {} overlap", sorted[i]->offsets, sorted[k]->offsets));
    }
  }
}

DistributedMetadata parse_distributed_metadata(Bytes pickle, const std::string& origin) {
  const auto tree = read_pickle(std::move(pickle), origin);
  const PickleValue root = attributes(tree->root(), "Metadata");
  std::map<PlaceKey, DistributedPlace> places = all_places(root.at("storage_data"), origin);
  const PickleValue entries = root.at("state_dict_metadata");
  DistributedMetadata metadata;
  std::set<std::string> names;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string name(entries.key(i).text());
    const PickleValue entry = entries.value(i);
    if (!names.insert(name).second) fail_metadata(origin, fmt::format("{} appears twice", shown(name)));
    if (short_name(entry.class_name()) == "BytesStorageMetadata") {
      metadata.values.emplace(name, take_place(places, name, {}, origin));
    } else {
      metadata.tensors.push_back(tensor_from(name, attributes(entry, "TensorStorageMetadata"), places, origin));
    }
  }
  return metadata;
}

}  // namespace lockstep::internal
