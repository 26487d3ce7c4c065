// `lockstep checkpoint diff`.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>

#include "lockstep/base/format.h"
#include "tools/checkpoint_command.h"
#include "tools/checkpoint_places.h"
#include "tools/progress.h"
#include "tools/standard_output.h"
#include "tools/tensor_difference.h"
#include "tools/tensor_source.h"

namespace lockstep::tools {
namespace {

constexpr std::size_t kCompareBytes = std::size_t{4} << 20;

TensorDifference difference_of(ByteStream& a, ByteStream& b, const std::string& dtype, double tolerance,
                               const std::function<void(std::uint64_t)>& compared) {
  const std::size_t size = std::min<std::uint64_t>(kCompareBytes, a.left());
  std::vector<std::byte> bytes_a(size), bytes_b(size);
  TensorDifference difference;
  while (a.left() != 0) {
    const std::size_t count = std::min<std::uint64_t>(size, a.left());
    a.read(std::span(bytes_a).first(count));
    b.read(std::span(bytes_b).first(count));
    compare_elements(dtype, std::span(bytes_a).first(count), std::span(bytes_b).first(count), tolerance, difference);
    compared(count);
  }
  return difference;
}

// JSON has no infinity.
nlohmann::json number_or_text(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json("infinite");
}

struct Comparison {
  nlohmann::json different = nlohmann::json::array();
  std::string text;
  std::size_t tensors = 0;  // of both together

  void note(const std::string& name, const nlohmann::json& why, const std::string& line) {
    different.push_back({{"name", name}});
    different.back().update(why);
    text += fmt::format("{}: {}\n", plain_text(name), line);
  }
};

// Differences that are found without reading data.
void compare_lists(const TensorSource& a, const TensorSource& b, Comparison& comparison) {
  for (const auto& [name, tensor] : a.tensors()) {
    ++comparison.tensors;
    const auto other = b.tensors().find(name);
    if (other == b.tensors().end()) {
      comparison.note(name, {{"only_in", "a"}}, "only in the first, " + shape_text(tensor));
    } else if (tensor.dtype != other->second.dtype || tensor.shape != other->second.shape) {
      comparison.note(name, {{"a", shape_text(tensor)}, {"b", shape_text(other->second)}},
                      fmt::format("{} in the first, {} in the second", shape_text(tensor), shape_text(other->second)));
    }
  }
  for (const auto& [name, tensor] : b.tensors()) {
    if (a.tensors().contains(name)) continue;
    ++comparison.tensors;
    comparison.note(name, {{"only_in", "b"}}, "only in the second, " + shape_text(tensor));
  }
}

void compare_values(TensorSource& a, TensorSource& b, double tolerance, Comparison& comparison) {
  Progress progress("comparing", a.tensor_bytes());
  std::uint64_t compared = 0;
  for (const auto& [name, tensor] : a.tensors()) {
    const auto other = b.tensors().find(name);
    const bool is_comparable =
        other != b.tensors().end() && tensor.dtype == other->second.dtype && tensor.shape == other->second.shape;
    if (!is_comparable) continue;
    const auto stream_a = a.stream(name);
    const auto stream_b = b.stream(name);
    const TensorDifference difference = difference_of(*stream_a, *stream_b, tensor.dtype, tolerance,
                                                      [&](std::uint64_t count) { progress.at(compared += count); });
    if (difference.different == 0) continue;
    comparison.note(
        name,
        {{"elements", difference.elements},
         {"different", difference.different},
         {"largest", number_or_text(difference.largest)},
         {"largest_relative", number_or_text(difference.largest_relative)}},
        fmt::format("{} of {} elements differ, by at most {:.6g} ({:.3g} of the larger one)", difference.different,
                    difference.elements, difference.largest, difference.largest_relative));
  }
}

}  // namespace

int diff_checkpoints(const CheckpointOptions& options) {
  const auto a = open_tensors(options.path);
  const auto b = open_tensors(options.other);
  Comparison comparison;
  compare_lists(*a, *b, comparison);
  compare_values(*a, *b, options.tolerance, comparison);
  const std::size_t count = comparison.different.size();
  if (options.json) {
    print_json({{"tensors", comparison.tensors}, {"different", std::move(comparison.different)}});
  } else {
    print(comparison.text);
    print(count == 0 ? fmt::format("all {} tensors are equal\n", comparison.tensors)
                     : fmt::format("{} of {} tensors differ\n", count, comparison.tensors));
  }
  return count == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace lockstep::tools
