// What ranks tell each other of tensors whose sizes they do not know: a type and sizes; fixed in length, so that they
// can tell without agreeing first. shape -> numbers -> collective -> numbers -> shape. Pure, and without torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr std::size_t kMostDimensions = 64;  // of a tensor in torch
// Type, how many sizes, the sizes, whether an index is wrong, its dimension, the index.
inline constexpr std::size_t kShapeNumbers = kMostDimensions + 5;
// No tensor that a rank tells of takes more memory.
inline constexpr std::size_t kMostShapeBytes = std::size_t{1} << 40;

// An index outside of its dimension.
struct WrongIndex {
  std::int64_t dimension = 0;
  std::int64_t index = 0;
};

struct ShapeMessage {
  std::int64_t type = 0;  // torch's number
  std::vector<std::int64_t> sizes;
  // What is wrong with the tensor, so that all ranks refuse it alike.
  std::optional<WrongIndex> wrong = {};
};

// REQUIRES: at most kMostDimensions sizes, and kShapeNumbers zeros.
void tell(const ShapeMessage& shape, std::span<std::int64_t> numbers);
// What `rank` told about `what`. Error{corrupt_data} that names the rank, unless a tensor of one of `types` types, of
// elements of at most 16 bytes, can have such a shape. Of a sparse tensor only the first `dense` sizes stand for
// memory: the rest may be larger than any.
ShapeMessage hear(std::span<const std::int64_t> numbers, int rank, std::int64_t types, std::string_view what,
               std::size_t dense = kMostDimensions);

// A tensor as bytes begins with its type, the number of its dimensions and the dimensions, and goes on with its
// elements and nothing else. `element_of` tells how many bytes an element of a type takes, 0 for no type. Takes the
// head from the front of `bytes`, which must be as long as it says.
struct TensorHead {
  std::int64_t type = 0;
  std::vector<std::int64_t> sizes;
};
using ElementOf = std::size_t (*)(std::int64_t type);
TensorHead take_tensor_head(std::string_view& bytes, ElementOf element_of);

// How long objects are that ranks exchange, as `rank` tells it, or the root for all ranks.
inline constexpr std::size_t kMostObjectBytes = std::size_t{1} << 30;
inline constexpr std::int64_t kTooLong = -2;  // instead of a length over the limit
// The length, or Error{invalid_argument} for kTooLong, or Error{corrupt_data} for what no rank tells.
std::size_t checked_object_length(std::int64_t told, int rank, std::size_t most);

}  // namespace lockstep
