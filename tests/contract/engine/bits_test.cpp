// Reductions give the same bits on all ranks, every time, on every way through the engines: those of adding up in rank
// order, or as a tree.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/contract/engine/operands.h"
#include "tests/support/rank_threads.h"
#include "tests/support/sanitized.h"

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr int kMostRanks = 9;
// In slots and headers; in place but still in headers; in place and in slices; in several staged chunks and windows.
constexpr std::size_t kBytes[] = {200, 12'000, 70'000, 1'200'000};
// Bits depend on optimisation, so the release build goes through all; the sanitizers read the ways.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kLargeRanks[] = {3};
constexpr DType kTypes[] = {DType::f16};
#else
constexpr int kLargeRanks[] = {2, 5};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64};
#endif

struct Way {
  const char* name;
  Over over;
  Place place;
  int ranks_per_node = 1;
};
constexpr Way kWays[] = {{"arena, ordinary memory", Over::arena, Place::ordinary},
                         {"arena, in place", Over::arena, Place::arena},
                         {"links", Over::links, Place::ordinary},
                         {"nodes of two", Over::nodes, Place::ordinary, 2},
                         {"nodes of three", Over::nodes, Place::ordinary, 3},
                         {"a tree", Over::trees, Place::ordinary, 1},
                         {"a tree of nodes of three", Over::trees, Place::ordinary, 3}};

template <class T>
Buffer bytes_of(const std::vector<T>& values) {
  Buffer bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Of many magnitudes and both signs, so that nearly every addition rounds; often the next rank takes away what one
// gave, so that also a sum that is rounded once more at the end shows what was lost before.
std::vector<double> numbers(int rank, std::size_t count) {
  std::mt19937_64 random(static_cast<unsigned>(rank));
  std::vector<double> values(count);
  for (double& value : values) {
    const std::uint64_t bits = random();
    value = std::ldexp(static_cast<double>(bits >> 11) * 0x1p-53 + 0.5, static_cast<int>(bits % 25) - 12);
    if (bits % 64 >= 32) value = -value;
  }
  if (rank % 2 == 0) return values;
  const std::vector<double> taken = numbers(rank - 1, count);
  for (std::size_t i = 0; i < count; i += 2) values[i] = -taken[i];
  return values;
}

// The rows of all ranks of one type, and their sums as the contract has them.
class Rows {
 public:
  explicit Rows(DType dtype) : dtype_(dtype), count_(std::ranges::max(kBytes) / element_size(dtype)) {
    for (int rank = 0; rank < kMostRanks; ++rank) {
      const std::vector<double> values = numbers(rank, count_);
      const std::vector<float> floats(values.begin(), values.end());
      if (dtype == DType::f64) rows_.push_back(bytes_of(values));
      if (dtype == DType::f32) rows_.push_back(bytes_of(floats));
      if (element_size(dtype) == 2) {
        rows_.emplace_back(count_ * 2);
        narrow(floats.data(), rows_.back().data(), count_, dtype);
      }
    }
  }

  DType dtype() const { return dtype_; }
  const Buffer& row(int rank) const { return rows_[static_cast<std::size_t>(rank)]; }

  // Pair by pair, each pair's sum rounded to the type.
  Buffer tree(int ranks, int first = 0) const {
    if (ranks == 1) return row(first);
    Rows pair(*this);
    pair.rows_ = {tree(ranks / 2, first), tree(ranks / 2, first + ranks / 2)};
    return pair.sum({0, 1});
  }

  // By plain loops, in this order of ranks.
  Buffer sum(const std::vector<int>& order) const {
    if (dtype_ == DType::f64) return bytes_of(sum_of<double>(order));
    const std::vector<float> sums = sum_of<float>(order);
    if (dtype_ == DType::f32) return bytes_of(sums);
    Buffer rounded(count_ * 2);
    narrow(sums.data(), rounded.data(), count_, dtype_);
    return rounded;
  }

 private:
  template <class T>
  std::vector<T> sum_of(const std::vector<int>& order) const {
    std::vector<T> sums(count_), row(count_);
    for (std::size_t at = 0; at < order.size(); ++at) {
      const Buffer& bytes = this->row(order[at]);
      if constexpr (std::is_same_v<T, float>) {
        if (element_size(dtype_) == 2) widen(bytes.data(), row.data(), count_, dtype_);
      }
      if (element_size(dtype_) == sizeof(T)) std::memcpy(row.data(), bytes.data(), bytes.size());
      for (std::size_t i = 0; i < count_; ++i) sums[i] = at == 0 ? row[i] : sums[i] + row[i];
    }
    return sums;
  }

  DType dtype_;
  std::size_t count_;
  std::vector<Buffer> rows_;
};

std::vector<int> in_order(int ranks) {
  std::vector<int> order;
  for (int rank = 0; rank < ranks; ++rank) order.push_back(rank);
  return order;
}

// One rank reduces its row and compares with the sums: of ranks 0 to r in sums[r], or only of all.
class Reducer {
 public:
  Reducer(Engine& engine, Place place, const Rows& rows, const std::vector<Buffer>& sums, Order order,
          std::size_t most_bytes)
      : engine_(engine),
        rows_(rows),
        sums_(sums),
        order_(order),
        input_(engine, place, DType::f64, most_bytes / 8, 0),
        output_(engine, place, DType::f64, most_bytes / 8, 0) {}

  void check(OpKind kind, std::size_t bytes) const {
    const auto n = static_cast<std::size_t>(engine_.size()), me = static_cast<std::size_t>(engine_.rank());
    const std::size_t element = element_size(rows_.dtype());
    const bool scatters = kind == OpKind::reduce_scatter;
    const bool is_in_place = traits_of(kind).is_in_place();
    const std::size_t count = bytes / element / (scatters ? n : 1);
    const Segment from{input_.segment().data, (scatters ? n : 1) * count * element};
    const Segment to{output_.segment().data, count * element};
    std::copy_n(rows_.row(engine_.rank()).data(), from.bytes, is_in_place ? to.data : from.data);
    const int root = engine_.size() - 1;
    Collective collective{.kind = kind, .order = order_, .dtype = rows_.dtype(), .root = root, .count = count};
    collective.output = {&to, 1};
    if (!is_in_place) collective.input = {&from, 1};
    engine_.run(collective, soon());
    if (kind == OpKind::reduce && engine_.rank() != root) return;
    const Buffer nothing(to.bytes);
    const Buffer& sum = kind == OpKind::scan                        ? sums_[me]
                        : kind == OpKind::exclusive_scan && me == 0 ? nothing
                        : kind == OpKind::exclusive_scan            ? sums_[me - 1]
                                                                    : sums_.back();
    if (std::memcmp(to.data, sum.data() + (scatters ? me * to.bytes : 0), to.bytes) == 0) return;
    throw std::runtime_error(std::string(to_string(kind)) + " of " + std::to_string(count) + " " +
                             std::string(to_string(rows_.dtype())) + " on rank " + std::to_string(me) + " of " +
                             std::to_string(n) + ": not the bits of adding up in its order");
  }

 private:
  Engine& engine_;
  const Rows& rows_;
  const std::vector<Buffer>& sums_;
  const Order order_;
  const Operand input_;
  const Operand output_;
};

void check_way(const Way& way, const Rows& rows, const std::vector<Buffer>& sums, Order order, int ranks) {
  INFO(way.name);
  constexpr OpKind kKinds[] = {OpKind::all_reduce, OpKind::reduce, OpKind::reduce_scatter, OpKind::scan,
                               OpKind::exclusive_scan};
  const auto kinds = std::span(kKinds).first(order == Order::ranks ? 5 : 3);
  const bool is_large = std::ranges::find(kLargeRanks, ranks) != std::end(kLargeRanks);
  const auto sizes = std::span(kBytes).first(is_large ? std::size(kBytes) : std::size(kBytes) - 1);
  Engines engines = make_engines(ranks, way.over, {.ranks_per_node = way.ranks_per_node});
  run_ranks_or_throw(ranks, [&](int rank) {
    const Reducer reducer(*engines[static_cast<std::size_t>(rank)], way.place, rows, sums, order, sizes.back());
    for (const std::size_t bytes : sizes) {
      for (const OpKind kind : kinds) {
        for (int time = 0; time < 2; ++time) reducer.check(kind, bytes);
      }
    }
  });
}

}  // namespace

// feature: C-02
TEST_CASE("reductions that round have the bits of the rank order, on every way, size and rank") {
  for (const DType dtype : kTypes) {
    const Rows rows(dtype);
    std::vector<Buffer> sums;
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      sums.push_back(rows.sum(in_order(ranks)));
      if (ranks == 3) CHECK(rows.sum({2, 1, 0}) != sums.back());  // else any order would do
      if (kIsSanitized && ranks != 3) continue;
      for (const Way& way : kWays) check_way(way, rows, sums, Order::ranks, ranks);
    }
  }
}

TEST_CASE("reductions as a tree have the bits of adding up in pairs, on every way, size and rank") {
  for (const DType dtype : kTypes) {
    const Rows rows(dtype);
    for (const int ranks : kIsSanitized ? std::vector{4} : std::vector{1, 2, 4, 8}) {
      const std::vector<Buffer> sums{rows.tree(ranks)};
      if (ranks == 4) CHECK(rows.sum(in_order(ranks)) != sums[0]);
      for (const Way& way : kWays) check_way(way, rows, sums, Order::tree, ranks);
    }
  }
}

TEST_CASE("an average as a tree halves in every pair, so that it has the bits of more ranks with one operand each") {
  const float huge = std::ldexp(1.0F, 126);  // four of them have a sum that is no float
  for (const Way& way : kWays) {
    INFO(way.name);
    Engines engines = make_engines(4, way.over, {.ranks_per_node = way.ranks_per_node});
    run_ranks_or_throw(4, [&](int rank) {
      float value = huge;
      const Segment segment{reinterpret_cast<std::byte*>(&value), sizeof value};
      const Collective collective{.kind = OpKind::all_reduce,
                                  .reduce = ReduceOp::avg,
                                  .order = Order::tree,
                                  .dtype = DType::f32,
                                  .count = 1,
                                  .output = {&segment, 1}};
      engines[static_cast<std::size_t>(rank)]->run(collective, soon());
      CHECK(value == huge);
    });
  }
}

TEST_CASE("a tree needs a power of two of ranks, and ranks with different orders are told") {
  Engines engines = make_engines(3);
  const Collective collective{.kind = OpKind::all_reduce, .order = Order::tree, .dtype = DType::f32};
  Collective scan = collective;
  scan.kind = OpKind::scan;
  CHECK_THROWS_WITH_AS(
      make_engines(1)[0]->run(scan, soon()),
      "scan: Order::tree needs a group whose number of ranks is a power of two; this group has 1 ranks", Error);
  CHECK_THROWS_WITH_AS(
      engines[0]->run(collective, soon()),
      "all_reduce: Order::tree needs a group whose number of ranks is a power of two; this group has 3 ranks", Error);
  for (const Over over : {Over::arena, Over::links}) {
    Engines two = make_engines(2, over);
    const auto errors = run_ranks(2, [&](int rank) {
      Collective own = collective;
      if (rank == 1) own.order = Order::ranks;
      two[static_cast<std::size_t>(rank)]->run(own, soon());
    });
    for (const auto& error : errors) {
      REQUIRE(error);
      try {
        std::rethrow_exception(error);
      } catch (const Error& desync) {
        CHECK(desync.kind() == ErrorKind::desync);
        CHECK(std::string(desync.what()).find("all_reduce(sum, as a tree) #1 of 0 float32") != std::string::npos);
      }
    }
  }
}
