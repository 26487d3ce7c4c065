// The message in which ranks exchange the type and the sizes of tensors. It has a fixed length, so that ranks need not
// agree on one first. shape -> numbers -> collective -> numbers -> shape. Pure, and without torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::internal {

inline constexpr std::size_t kMostDimensions = 64;  // of a tensor in torch
// Type, how many sizes, the sizes, whether an index is wrong, its dimension, the index.
inline constexpr std::size_t kShapeNumbers = kMostDimensions + 5;
// No tensor that a message describes takes more memory.
inline constexpr std::size_t kMostShapeBytes = std::size_t{1} << 40;

// An index outside of its dimension.
struct WrongIndex {
  std::int64_t dimension = 0;
  std::int64_t index = 0;
};

struct ShapeMessage {
  std::int64_t type = 0;  // torch's number
  std::vector<std::int64_t> sizes;
  // What is wrong with the tensor, so that all ranks refuse it.
  std::optional<WrongIndex> wrong = {};
};

// REQUIRES: at most kMostDimensions sizes, and kShapeNumbers zeros.
void encode(const ShapeMessage& shape, std::span<std::int64_t> numbers);
// The message of `rank` about `what`. Error{corrupt_data} that names the rank, unless a tensor of one of `types` types,
// of elements of at most 16 bytes, can have such a shape. Of a sparse tensor only the first `dense` sizes take memory:
// the others may be of any size.
ShapeMessage decode_shape(std::span<const std::int64_t> numbers, int rank, std::int64_t types, std::string_view what,
                          std::size_t dense = kMostDimensions);

// A tensor as bytes begins with its type, the number of its dimensions and the dimensions, and goes on with its
// elements and nothing else. `element_of` returns how many bytes an element of a type takes, 0 for an unknown type.
// Takes the head from the front of `bytes`, which must be as long as it says.
struct TensorHead {
  std::int64_t type = 0;
  std::vector<std::int64_t> sizes;
};
using ElementOf = std::size_t (*)(std::int64_t type);
TensorHead take_tensor_head(std::string_view& bytes, ElementOf element_of);

// The length of an object, which its rank sends before it, or the root for all ranks.
inline constexpr std::size_t kMostObjectBytes = std::size_t{1} << 30;
inline constexpr std::int64_t kTooLong = -2;  // instead of a length over the limit
// The length; Error{invalid_argument} for kTooLong, Error{corrupt_data} for any other number that is not a length.
std::size_t checked_object_length(std::int64_t told, int rank, std::size_t most);

}  // namespace lockstep::internal
