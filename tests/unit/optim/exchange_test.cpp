#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/optim/parameter_exchange.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/wave.h"

namespace exchange_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Shapes of each rank's part; before the exchange, rank r has r + 1 everywhere.
void check_exchange(int ranks, Over transport, const std::vector<std::vector<std::int64_t>>& lengths) {
  run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
    std::vector<std::vector<at::Tensor>> parts;
    for (const auto& of_rank : lengths) {
      parts.emplace_back();
      for (const std::int64_t length : of_rank)
        parts.back().push_back(at::full({length}, group.rank() + 1, at::kFloat));
    }
    exchange_parameters(group, parts, "parts");
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      for (const at::Tensor& tensor : parts[rank]) CHECK(tensor.eq(static_cast<double>(rank) + 1).all().item<bool>());
    }
  });
}

}  // namespace

TEST_CASE("parts that are about as large go at once, others one by one") {
  CHECK(exchange_at_once({1000, 1000, 900}));
  CHECK(exchange_at_once({1 << 20, (1 << 20) - 70000}));
  CHECK_FALSE(exchange_at_once({1 << 20, 1 << 18}));
  CHECK_FALSE(exchange_at_once({1 << 20, 0, 0, 0}));
  CHECK(exchange_at_once({100, 0, 0, 0}));  // it is nothing anyhow
}

TEST_CASE("all ranks get what each has: even parts, uneven ones, empty ones, none") {
  for (const Over transport : {Over::arena, Over::links}) {
    check_exchange(1, transport, {{5}});
    check_exchange(2, transport, {{30000, 7}, {30000, 9, 0}});
    check_exchange(3, transport, {{200000, 1}, {3}, {}});
    check_exchange(4, transport, {{}, {5, 6}, {0}, {100000}});
    check_exchange(2, transport, {{}, {0}});
  }
}

TEST_CASE("types may be mixed, and memory need not be in order") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    const double mine = group.rank() + 1;
    const at::Tensor halves = at::full({3}, mine, at::kBFloat16), doubles = at::full({2, 2}, mine, at::kDouble);
    const at::Tensor last = at::full({2, 3, 4, 4}, mine, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor whole = at::full({4, 6}, mine, at::kFloat), column = whole.narrow(1, 2, 1);  // with gaps
    exchange_parameters(group, {{halves, column}, {doubles, last}}, "parts");
    CHECK(halves.eq(1).all().item<bool>());
    CHECK(column.eq(1).all().item<bool>());
    CHECK(whole.sum().item<double>() == doctest::Approx(4 + 20 * mine));
    CHECK(doubles.eq(2).all().item<bool>());
    CHECK(last.eq(2).all().item<bool>());
  });
}

}  // namespace exchange_test
