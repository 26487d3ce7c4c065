// Ranks with different numbers of batches.
#include "lockstep/train/ddp/uneven_inputs/join.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/unit/ddp/models.h"

namespace join_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;

namespace {

// Counts, and throws where it is told to.
struct Broken {
  enum class At { begin, value, increment, end };
  struct Iterator {
    int operator*() const { return fail(At::value), i; }
    Iterator& operator++() { return fail(At::increment), ++i, *this; }
    bool operator!=(const Iterator& end) const { return fail(At::end), i != end.i; }
    void fail(At here) const {
      if (at == here && i == 1) throw std::runtime_error("the data set is broken");
    }
    int i;
    std::optional<At> at;
  };
  Iterator begin() const {
    if (at == At::begin) throw std::runtime_error("the data set is broken");
    return {0, at};
  }
  Iterator end() const { return {3, {}}; }
  std::optional<At> at;
};

// Rank r has 1, 2, 4 batches.
std::vector<at::Tensor> batches_of(int rank) {
  std::vector<at::Tensor> batches;
  for (int i = 0; i < (1 << rank); ++i) batches.push_back(wave({3, 4}, rank * 10 + i));
  return batches;
}

}  // namespace

// feature: K-04
TEST_CASE("ranks that run out of batches contribute nothing, and all models stay equal") {
  for (const Over transport : kTransports) {
    for (const bool by_all : {true, false}) {
      run_group_or_throw(3, transport, [&](const ProcessGroup& group) {
        Forked model, alone;
        set_weights(model, 1);
        set_weights(alone, 1);
        DistributedDataParallel ddp(model, group);
        torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        torch::optim::SGD same(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        int collectives = 0;
        const JoinReport report = join(group, batches_of(group.rank()),
                                       [&](const at::Tensor& x) {
                                         optimizer.zero_grad();
                                         ddp(x, true).square().sum().backward();
                                         optimizer.step();
                                         at::Tensor active = at::tensor({lockstep::is_joined() ? 0 : 1}, at::kInt);
                                         group.all_reduce(active);
                                         CHECK(active.item<int>() == (collectives == 0 ? 3 : collectives == 1 ? 2 : 1));
                                         ++collectives;
                                       },
                                       {.divide_by_initial_world_size = by_all});
        CHECK(report.steps == batches_of(group.rank()).size());
        CHECK(report.steps + report.joined_steps == 4);
        // The same, computed by everybody alone.
        for (std::size_t step = 0; step < 4; ++step) {
          same.zero_grad();
          int active = 0;
          for (int rank = 0; rank < 3; ++rank) active += step < batches_of(rank).size() ? 1 : 0;
          for (int rank = 0; rank < 3; ++rank) {
            if (step >= batches_of(rank).size()) continue;
            (alone->forward(batches_of(rank)[step], true).square().sum() / (by_all ? 3 : active)).backward();
          }
          same.step();
        }
        CHECK(at::allclose(model->left->weight, alone->left->weight, 1e-5, 1e-6));
        for (const auto& parameter : ddp.parameters()) CHECK(same_on_all_ranks(group, parameter));
      });
    }
  }
}

TEST_CASE("join counts the samples of a joined rank as none") {
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    Forked model, alone;
    set_weights(model, 1);
    set_weights(alone, 1);
    DistributedDataParallel ddp(model, group, {.weighting = Weighting::samples});
    int step = 0;
    join(group, batches_of(group.rank()), [&](const at::Tensor& x) {
      ddp.zero_grad();
      ddp(x, true).square().mean().backward();
      if (++step < 2) return;
      alone->zero_grad();
      alone->forward(batches_of(1)[1], true).square().mean().backward();
      CHECK(at::allclose(model->left->weight.grad(), alone->left->weight.grad()));
    });
    CHECK(step == 2);
  });
}

TEST_CASE("join ends all ranks at the first end if told so, and for a rank that never had a batch") {
  const auto text_of_first = [](const std::vector<std::exception_ptr>& errors) {
    std::string text;
    for (const auto& error : errors) {
      REQUIRE(error);
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        text = e.what();
      }
    }
    return text;
  };
  const auto ended = run_group(3, Over::arena, [&](const ProcessGroup& group) {
    join(group, batches_of(group.rank()), [](const at::Tensor&) {}, {.throw_on_early_termination = true});
  });
  CHECK(text_of_first(ended).find("rank 0 has no more batches") != std::string::npos);
  const auto empty = [](const ProcessGroup& group) {
    return group.rank() == 1 ? std::vector<at::Tensor>() : batches_of(0);
  };
  const auto never = run_group(2, Over::arena, [&](const ProcessGroup& group) {
    join(group, empty(group), [&](const at::Tensor&) { group.barrier(); });
  });
  CHECK(text_of_first(never).find("rank 1 has no batch at all") != std::string::npos);
  run_group_or_throw(2, Over::arena, [&](const ProcessGroup& group) {
    const auto report = join(
        group, empty(group), [&](const at::Tensor&) { group.barrier(); }, {}, std::optional(wave({3, 4}, 0)));
    CHECK(report.steps + report.joined_steps == 1);
  });
  using At = Broken::At;
  for (const At at : {At::begin, At::value, At::increment, At::end}) {
    // Not by run_group, which would tell the others itself.
    const auto groups = local_groups(2, Over::arena, {.timeout = std::chrono::seconds(30)});
    const auto broken = run_ranks(2, [&](int rank) {
      const ProcessGroup& group = groups[static_cast<std::size_t>(rank)];
      join(group, Broken{rank == 1 ? std::optional(at) : std::nullopt}, [&](int) { group.barrier(); });
    });
    CHECK(text_of_first({broken[0]}).find("the data set is broken") != std::string::npos);
  }
  const auto thrown = run_group(2, Over::links, [&](const ProcessGroup& group) {
    join(group, batches_of(1), [&](const at::Tensor&) {
      if (group.rank() == 1) throw std::runtime_error("this batch is broken");
      group.barrier();
    });
  });
  CHECK(text_of_first({thrown[0]}).find("this batch is broken") != std::string::npos);
}

}  // namespace join_test
