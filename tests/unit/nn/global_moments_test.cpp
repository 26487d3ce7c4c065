#include "lockstep/train/nn/global_moments.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <vector>

namespace global_moments_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// Values of [N, channels] whose mean is large beside their deviation.
at::Tensor values(std::int64_t samples, std::int64_t channels, double shift) {
  return (at::sin(at::arange(samples * channels, at::kDouble) * 0.7 + shift) + 1e6).reshape({samples, channels});
}

}  // namespace

TEST_CASE("moments of parts combine to those of the whole, also where the mean is large, and with empty parts") {
  for (const std::vector<std::int64_t>& parts : {std::vector<std::int64_t>{7}, {3, 4}, {0, 5, 2}, {1, 1, 1, 4}}) {
    std::vector<at::Tensor> batches, rows;
    for (const auto samples : parts) {
      batches.push_back(values(samples, 3, static_cast<double>(batches.size())));
      rows.push_back(local_row(batches.back()));
    }
    const at::Tensor all = at::cat(batches);
    const GlobalMoments moments = combine_rows(at::stack(rows));
    CHECK(moments.count.item<double>() == 7);
    CHECK(at::allclose(moments.mean, all.mean(0), 1e-15, 1e-9));
    CHECK(at::allclose(moments.squares, (all - all.mean(0)).square().sum(0), 1e-9, 0));
  }
}

TEST_CASE("a row counts all values of a channel, and is float64 for every type of input") {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor row = local_row(at::arange(24).reshape({2, 3, 4}).to(type));
    CHECK((row.scalar_type() == at::kDouble));
    CHECK(row.numel() == 7);
    CHECK(row[0].item<double>() == 8);
    CHECK(row[1].item<double>() == doctest::Approx(7.5));  // 0 to 3 and 12 to 15
    CHECK(row[4].item<double>() == doctest::Approx(8 * 37.25));
  }
  CHECK(at::equal(local_row(at::zeros({0, 3, 4})), at::zeros({7}, at::kDouble)));
}

}  // namespace global_moments_test
