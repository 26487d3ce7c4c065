#include <doctest/doctest.h>

#include <stdexcept>

#include <array>
#include <cstring>

#include "lockstep/base/checked.h"
#include "lockstep/comm/group/shape_message.h"
#include "lockstep/train/ddp/backward_report.h"
#include "lockstep/train/ddp/timing/step_report.h"
#include "tests/fuzz/fuzz.h"

namespace shapes_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

template <class Number>
Bytes bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

// What of the bytes makes whole numbers, as aligned as a tensor's.
template <class Number>
std::vector<Number> numbers_of(ByteView bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  return numbers;
}

Bytes told(const ShapeMessage& shape) {
  std::vector<std::int64_t> numbers(kShapeNumbers);
  encode(shape, numbers);
  return bytes_of(numbers);
}

std::size_t element_of(std::int64_t type) { return type >= 0 && type < 12 ? std::size_t{1} << type % 5 : 0; }

Bytes tensor(const std::vector<std::int64_t>& sizes, std::size_t elements) {
  std::vector<std::int64_t> head{2, static_cast<std::int64_t>(sizes.size())};
  head.insert(head.end(), sizes.begin(), sizes.end());
  return bytes_of(head) + Bytes(elements * 4, 'x');
}

}  // namespace

TEST_CASE("shapes that ranks tell") {
  const auto keeps_length = [](Bytes& bytes, fuzz::Random&) { bytes.resize(kShapeNumbers * sizeof(std::int64_t)); };
  fuzz::run({.name = "shapes that ranks tell",
             .seeds = {told({6, {10, 3, 4}}), told({7, {}}), told({0, {0, 5}}), told({6, {8, 1, 100, 4}, {{1, 100}}})},
             .repair = keeps_length,
             .parse = [](ByteView bytes) {
               const ShapeMessage shape = decode_shape(numbers_of<std::int64_t>(bytes), 1, 45, "shape in all_gather_v");
               checked_bytes(shape.sizes, 16, kMostShapeBytes, "shape", "the test");
               if (shape.wrong) checked_index(shape.wrong->dimension, shape.sizes.size(), "dimension", "the test");
             }});
}

TEST_CASE("lengths of objects") {
  fuzz::run({.name = "lengths of objects",
             .seeds = {bytes_of<std::int64_t>({0, 17, 1 << 20, kMostObjectBytes})},
             .kinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument},
             .parse = [](ByteView bytes) {
               for (const std::int64_t length : numbers_of<std::int64_t>(bytes)) {
                 if (checked_object_length(length, 1, kMostObjectBytes) > kMostObjectBytes)
                   throw std::logic_error("long");
               }
             }});
}

TEST_CASE("tensors as objects") {
  fuzz::run({.name = "tensors as objects",
             .seeds = {tensor({3, 4}, 12), tensor({}, 1), tensor({0, 5}, 0)},
             .parse = [](ByteView bytes) {
               const TensorHead head = take_tensor_head(bytes, element_of);
               std::size_t elements = 1;
               for (const std::int64_t size : head.sizes) elements *= static_cast<std::size_t>(size);
               if (bytes.size() != elements * element_of(head.type)) throw std::logic_error("another length");
             }});
}

TEST_CASE("orders of gradients") {
  fuzz::run({.name = "orders of gradients",
             .seeds = {bytes_of<std::int64_t>({3, 2, 1, 0}), bytes_of<std::int64_t>({0})},
             .parse = [](ByteView bytes) {
               const auto numbers = numbers_of<std::int64_t>(bytes);
               const auto order = checked_permutation(numbers, "parameter", {"order of gradients", 0});
               std::vector<int> seen(order.size());
               for (const std::size_t index : order) ++seen.at(index);
             }});
}

TEST_CASE("times of steps") {
  StepWindow window;
  window.times = {.steps = 3, .data = 1, .forward = 2, .backward = 3, .waiting = 0.5};
  window.waits = {0.25F, 0.125F, 0.125F};
  std::vector<std::uint8_t> bytes(2 * window_bytes(3));
  encode_window(window, std::span(bytes).first(window_bytes(3)));
  encode_window(window, std::span(bytes).subspan(window_bytes(3)));
  fuzz::run({.name = "times of steps", .seeds = {bytes_of(bytes)}, .parse = [&](ByteView told) {
               const StepReport report = report_on(decode_windows(numbers_of<std::uint8_t>(told), 2));
               change_of_straggler(report, {}, {});
               checked_between<std::int64_t>(steps_until_next(report), 1, INT64_MAX, "interval", "the test");
             }});
}

TEST_CASE("reports on backwards") {
  constexpr std::size_t kParameters = 11;
  std::vector<std::uint8_t> bytes(2 * report_bytes(kParameters));
  const std::span<std::uint8_t> both(bytes);
  encode_report({.weight = 3, .non_finite = 4, .used = std::vector<bool>(kParameters, true)},
                both.first(report_bytes(kParameters)));
  encode_report({.weight = 0.5, .non_finite = {}, .used = std::vector<bool>(kParameters)},
                both.subspan(report_bytes(kParameters)));
  JointReport joint;
  fuzz::run({.name = "reports on backwards", .seeds = {bytes_of(bytes)}, .parse = [&](ByteView told) {
               join_reports(numbers_of<std::uint8_t>(told), kParameters, kParameters, joint);
               for (const auto& [rank, parameter] : joint.non_finite) {
                 checked_index(parameter, kParameters, "parameter", "the test");
               }
             }});
}

}  // namespace shapes_test
