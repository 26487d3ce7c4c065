#include "lockstep/comm/group/overlap.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <random>
#include <set>

namespace overlap_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// The addresses of all bytes of all elements, one after the other.
std::vector<std::uintptr_t> addresses_of(const at::Tensor& tensor) {
  std::vector<std::uintptr_t> all;
  std::vector<std::int64_t> at(static_cast<std::size_t>(tensor.dim()));
  const auto first = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (std::int64_t dimension = tensor.dim(); dimension-- > 0; rest /= tensor.size(dimension)) {
      offset += rest % tensor.size(dimension) * tensor.stride(dimension);
    }
    for (std::size_t byte = 0; byte < tensor.dtype().itemsize(); ++byte) {
      all.push_back(first + static_cast<std::uintptr_t>(offset) * tensor.dtype().itemsize() + byte);
    }
  }
  return all;
}

at::Tensor random_view(const at::Tensor& memory, std::mt19937& random) {
  std::vector<std::int64_t> sizes(random() % 4), strides;
  std::int64_t last = 0;
  for (std::int64_t& size : sizes) {
    size = random() % 12 == 0 ? 0 : static_cast<std::int64_t>(random() % 4 + 1);
    strides.push_back(static_cast<std::int64_t>(random() % 9));
    last += std::max<std::int64_t>(size - 1, 0) * strides.back();
  }
  return memory.as_strided(sizes, strides, static_cast<std::int64_t>(random()) % (memory.numel() - last));
}

}  // namespace

TEST_CASE("tensors overlap, with themselves or each other, if and only if they share an address") {
  const at::Tensor memory = at::empty({150}, at::kFloat);
  std::mt19937 random(7);
  int yes = 0;
  for (int i = 0; i < 20'000; ++i) {
    CAPTURE(i);
    const at::Tensor left = random_view(memory, random), right = random_view(memory, random);
    const auto ours = addresses_of(left), theirs = addresses_of(right);
    const std::set<std::uintptr_t> own(ours.begin(), ours.end());
    REQUIRE(overlaps_itself(left) == (own.size() != ours.size()));
    const bool shares = std::any_of(theirs.begin(), theirs.end(), [&](auto each) { return own.contains(each); });
    REQUIRE(overlap(left, right) == shares);
    REQUIRE(overlap(right, left) == shares);
    std::vector<MemorySpan> spans;
    REQUIRE(find_overlap({left, right}, spans).has_value() == shares);
    yes += shares ? 1 : 0;
  }
  CHECK(yes > 1000);
}

TEST_CASE("views of other element sizes overlap by bytes") {
  const at::Tensor bytes = at::empty({64}, at::kByte);
  CHECK(overlap(bytes.narrow(0, 4, 8).view(at::kInt), bytes.narrow(0, 11, 1)));
  CHECK_FALSE(overlap(bytes.narrow(0, 4, 8).view(at::kInt), bytes.narrow(0, 12, 1)));
}

TEST_CASE("columns of a large matrix are told apart at once") {
  const at::Tensor matrix = at::empty({1'000'000, 8}, at::kByte);
  std::vector<MemorySpan> spans;
  CHECK_FALSE(find_overlap(matrix.unbind(1), spans));
  std::vector<at::Tensor> columns = matrix.unbind(1);
  columns.push_back(matrix.narrow(0, 500, 3));
  REQUIRE(find_overlap(columns, spans));
  CHECK(find_overlap(columns, spans)->second == 8);
}

TEST_CASE("a list is a part of another from an offset on, or not") {
  std::byte memory[64];
  const std::vector<Segment> whole{{memory, 16}, {memory + 32, 16}, {memory + 16, 16}};
  CHECK(is_part_of(std::vector<Segment>{{memory + 8, 8}, {memory + 32, 4}}, whole, 8));
  CHECK_FALSE(is_part_of(std::vector<Segment>{{memory + 8, 16}}, whole, 8));
  CHECK_FALSE(is_part_of(std::vector<Segment>{{memory + 8, 8}}, whole, 4));
  CHECK(is_part_of(std::vector<Segment>{{memory + 24, 8}}, whole, 40));
  CHECK_FALSE(is_part_of(std::vector<Segment>{{memory + 32, 8}}, whole, 48));
  std::vector<MemorySpan> spans;
  list_spans(whole, spans);
  CHECK(bytes_within({memory + 10, 10}, spans) == 10);
  CHECK(bytes_within({memory + 44, 10}, spans) == 4);
  CHECK(bytes_within({memory + 48, 10}, spans) == 0);
}

}  // namespace overlap_test
