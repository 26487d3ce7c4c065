#include "lockstep/comm/group/shape_message.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kLargestElement = 16;

std::int64_t take(std::string_view& bytes, const Origin& origin) {
  std::int64_t number = 0;
  if (bytes.size() < sizeof number) throw_corrupt(origin, "it is truncated; do all ranks use the same type?");
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

}  // namespace

void encode(const ShapeMessage& shape, std::span<std::int64_t> numbers) {
  numbers[0] = shape.type;
  numbers[1] = static_cast<std::int64_t>(shape.sizes.size());
  std::ranges::copy(shape.sizes, numbers.begin() + 2);
  if (!shape.wrong) return;
  numbers[2 + kMostDimensions] = 1;
  numbers[3 + kMostDimensions] = shape.wrong->dimension;
  numbers[4 + kMostDimensions] = shape.wrong->index;
}

ShapeMessage decode_shape(std::span<const std::int64_t> numbers, int rank, std::int64_t types, std::string_view what,
                          std::size_t dense) {
  const Origin origin(what, rank);
  checked_between(numbers.size(), kShapeNumbers, kShapeNumbers, "length of a shape message", origin);
  ShapeMessage shape;
  shape.type = checked_between<std::int64_t>(numbers[0], 0, types - 1, "type", origin);
  const std::size_t dimensions = checked_size(numbers[1], kMostDimensions, "number of dimensions", origin);
  const auto sizes = numbers.subspan(2, dimensions);
  shape.sizes.assign(sizes.begin(), sizes.end());
  for (const std::int64_t size : sizes) checked_size(size, std::numeric_limits<std::int64_t>::max(), "shape", origin);
  checked_bytes(sizes.first(std::min(dense, dimensions)), kLargestElement, kMostShapeBytes, "shape", origin);
  const auto wrong = numbers.subspan(2 + kMostDimensions);
  if (checked_between(wrong[0], 0, 1, "flag of a wrong index", origin) == 0) return shape;
  shape.wrong = {static_cast<std::int64_t>(checked_index(wrong[1], dimensions, "dimension of a wrong index", origin)),
                 wrong[2]};
  return shape;
}

TensorHead take_tensor_head(std::string_view& bytes, ElementOf element_of) {
  const Origin origin("a received tensor object");
  TensorHead head;
  head.type = take(bytes, origin);
  const std::size_t element = element_of(head.type);
  if (element == 0) throw_corrupt(origin, "its element type is unknown; do all ranks use the same type?");
  const std::size_t dimensions = checked_size(take(bytes, origin), kMostDimensions, "number of dimensions", origin);
  for (std::size_t i = 0; i < dimensions; ++i) head.sizes.push_back(take(bytes, origin));
  const std::size_t expected =
      checked_bytes(head.sizes, element, std::numeric_limits<std::int64_t>::max(), "shape", origin);
  checked_between(bytes.size(), expected, expected, "number of bytes of its elements", origin);
  return head;
}

std::size_t checked_object_length(std::int64_t told, int rank, std::size_t most) {
  if (told == kTooLong) {
    throw Error(ErrorKind::invalid_argument,
                "the object of rank " + std::to_string(rank) + " is longer than " + std::to_string(most) +
                    " bytes, the limit; exchange large data as tensors",
                {.peer = rank});
  }
  return checked_size(told, most, "length (do all ranks make the same calls?)", {"object", rank});
}

}  // namespace lockstep::internal
