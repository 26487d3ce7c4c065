#include "lockstep/train/optim/clip_gradients.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"
#include "tests/support/wave.h"

namespace clip_gradients_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor all_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) flat.push_back(parameter.grad().reshape({-1}).to(at::kDouble));
  }
  return at::cat(flat);
}

std::vector<at::Tensor> with_gradients() {
  auto parameters = make_parameters({{20, 3}, {7}, {4, 4}, {1}});
  set_gradients(parameters, 5);
  parameters[1].mutable_grad() = at::Tensor();  // this one is passed over
  return parameters;
}

}  // namespace

TEST_CASE("gradients are scaled to the norm that is wanted, and the one before is returned") {
  for (const double norm_type : {0.5, 1.0, 2.0, 3.0, kInfinity}) {
    const auto parameters = with_gradients();
    const at::Tensor before = all_gradients(parameters);
    const double norm = at::linalg_vector_norm(before, norm_type).item<double>();
    CHECK(clip_grad_norm(parameters, norm / 4, {.norm_type = norm_type}) == doctest::Approx(norm));
    const at::Tensor after = all_gradients(parameters);
    CHECK(at::linalg_vector_norm(after, norm_type).item<double>() == doctest::Approx(norm / 4).epsilon(1e-4));
    CHECK(after.mul(4).allclose(before, 1e-4, 1e-6));
    CHECK_FALSE(parameters[1].grad().defined());
  }
}

TEST_CASE("gradients below the limit keep every bit, and none at all have norm 0") {
  const auto parameters = with_gradients();
  const at::Tensor before = all_gradients(parameters);
  CHECK(clip_grad_norm(parameters, 1e6) > 0);
  CHECK(at::equal(all_gradients(parameters), before));
  CHECK(clip_grad_norm({}, 1) == 0);
  CHECK(clip_grad_norm(make_parameters({{3}}), 1) == 0);
  auto with_empty = make_parameters({{2, 0}, {3}});
  set_gradients(with_empty, 1);
  CHECK(clip_grad_norm(with_empty, 1, {.norm_type = kInfinity}) > 0);
}

TEST_CASE("types may be mixed") {
  auto parameters = make_parameters({{4}, {4}});
  parameters[0].mutable_grad() = at::ones({4}, at::kFloat);
  parameters[1] = parameters[1].detach().to(at::kDouble).set_requires_grad(true);
  parameters[1].mutable_grad() = at::ones({4}, at::kDouble);
  CHECK(clip_grad_norm(parameters, 1) == doctest::Approx(std::sqrt(8.0)));
  CHECK(parameters[1].grad()[0].item<double>() == doctest::Approx(1 / std::sqrt(8.0)));
  CHECK((parameters[0].grad().scalar_type() == at::kFloat));
}

TEST_CASE("a norm that is not finite is refused by name, or else scales as it does in PyTorch") {
  const auto parameters = with_gradients();
  parameters[2].mutable_grad()[1][2] = kInfinity;
  const at::Tensor before = all_gradients(parameters);
  CHECK_ERROR(error_of([&] { clip_grad_norm(parameters, 1, {.error_if_nonfinite = true}); }),
              ErrorKind::invalid_argument, "the norm of order 2 of the gradients is inf, so they are not clipped",
              "\n  parameter 2 [4, 4]: inf");
  CHECK(at::equal(all_gradients(parameters), before));
  CHECK(clip_grad_norm(parameters, 1) == kInfinity);
  CHECK(parameters[0].grad().eq(0).all().item<bool>());    // finite / inf
  CHECK(parameters[2].grad()[1][2].isnan().item<bool>());  // inf * 0
  CHECK(std::isnan(clip_grad_norm(parameters, 1)));
  CHECK_ERROR(error_of([&] { clip_grad_norm(parameters, 1, {.norm_type = 0}); }), ErrorKind::invalid_argument,
              "norm_type is 0; it must be above 0");
}

TEST_CASE("ranks that have different parameters clip by the norm of all of them") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const double norm_type : {1.0, 2.0, kInfinity}) {
      const auto whole = with_gradients();
      const double norm = clip_grad_norm(whole, 0.3, {.norm_type = norm_type});
      run_group_or_throw(ranks, ranks == 3 ? Over::links : Over::arena, [&](const ProcessGroup& group) {
        const auto all = with_gradients();
        std::vector<at::Tensor> mine;
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (static_cast<int>(i) % group.size() == group.rank()) mine.push_back(all[i]);
        }
        CHECK(clip_grad_norm(mine, 0.3, group, {.norm_type = norm_type}) == doctest::Approx(norm));
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (static_cast<int>(i) % group.size() != group.rank() || !all[i].grad().defined()) continue;
          CHECK(all[i].grad().allclose(whole[i].grad(), 1e-5, 1e-7));
        }
      });
    }
  }
}

TEST_CASE("a norm that is not finite on one rank is refused on all, which say where") {
  const auto errors = run_group(3, Over::arena, [](const ProcessGroup& group) {
    auto parameters = make_parameters({{5}, {2, 2}});
    set_gradients(parameters, group.rank());
    if (group.rank() == 1) parameters[1].mutable_grad()[0][0] = std::nan("");
    const at::Tensor before = all_gradients(parameters);
    const Error error = error_of([&] { clip_grad_norm(parameters, 0.01, group, {.error_if_nonfinite = true}); });
    CHECK(contains(error.what(), "parameter 1 [2, 2]: nan") == (group.rank() == 1));
    CHECK(at::equal(all_gradients(parameters).nan_to_num(9), before.nan_to_num(9)));
    group.barrier();
    throw error;
  });
  for (const auto& error : errors) {
    CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::invalid_argument,
                "the norm of order 2 of the gradients is nan", "\n  rank 1: nan");
  }
}

TEST_CASE("elements are limited to both sides of zero") {
  auto parameters = make_parameters({{6}, {2}});
  parameters[0].mutable_grad() = at::arange(6, at::kFloat) - 3;
  clip_grad_value(parameters, 1.5);
  CHECK(at::equal(parameters[0].grad(), at::tensor({-1.5F, -1.5F, -1.0F, 0.0F, 1.0F, 1.5F})));
  CHECK_FALSE(parameters[1].grad().defined());
}

TEST_CASE("sparse gradients are clipped as dense ones, rows that are there twice as their sum, and stay sparse") {
  const auto parameters_of = [](bool sparse) {
    auto parameters = make_parameters({{5, 2}, {3}});
    set_gradients(parameters, 1);
    const at::Tensor rows = at::tensor({1, 3, 1}, at::kLong).unsqueeze(0);
    const at::Tensor values = at::tensor({3.0F, -4.0F, 1.0F, 1.0F, 3.0F, -4.0F}).view({3, 2});
    const at::Tensor gradient = at::sparse_coo_tensor(rows, values, {5, 2});
    parameters[0].mutable_grad() = sparse ? gradient : gradient.to_dense();
    return parameters;
  };
  const auto is_as_dense = [&](const auto& clip) {
    const auto sparse = parameters_of(true), dense = parameters_of(false);
    CHECK(clip(sparse) == doctest::Approx(clip(dense)));
    CHECK(sparse[0].grad().is_sparse());
    CHECK(at::allclose(sparse[0].grad().to_dense(), dense[0].grad()));
    CHECK(at::allclose(sparse[1].grad(), dense[1].grad()));
  };
  for (const double norm_type : {1.0, 2.0, kInfinity}) {
    is_as_dense([&](const auto& parameters) { return clip_grad_norm(parameters, 1, {.norm_type = norm_type}); });
  }
  is_as_dense([](const auto& parameters) {
    clip_grad_value(parameters, 5);
    return 0.0;
  });
  auto without_rows = parameters_of(true);
  without_rows[0].mutable_grad() = at::sparse_coo_tensor({5, 2}, at::TensorOptions(at::kFloat));
  CHECK(clip_grad_norm(without_rows, 1, {.norm_type = kInfinity}) > 0);
}

}  // namespace clip_gradients_test
