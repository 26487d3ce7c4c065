// Trainings in lockstep mode at any number of ranks, which must leave the same bits.
#pragma once

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/optim/sgd.h>

#include <cstring>
#include <vector>

#include "lockstep/train/ddp/distributed_data_parallel.h"
#include "tests/support/local_groups.h"
#include "tests/support/wave.h"

namespace lockstep::testing {

inline constexpr int kShards = 8;
inline constexpr int kWorlds[] = {1, 2, 4, 8};
inline const DdpOptions kLockstep{.lockstep = {.shards = kShards, .seed = 7}};

template <class Module>
void set_weights(const Module& module) {
  const at::NoGradGuard no_grad;
  double shift = 0;
  for (auto& parameter : module->parameters()) parameter.copy_(wave(parameter.sizes(), shift += 1));
}

using Tensors = std::vector<at::Tensor>;

inline bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  if (one.defined() != other.defined()) return false;
  return !one.defined() || (one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() &&
                            (one.numel() == 0 || std::memcmp(one.contiguous().data_ptr(), other.contiguous().data_ptr(),
                                                             one.nbytes()) == 0));
}

inline void check_same(const Tensors& found, const Tensors& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("tensor ", i);
    CHECK(same_bits(found[i], expected[i]));
  }
}

// What a run leaves: parameters, gradients of the last step, buffers, losses.
template <class Ddp>
Tensors state_of(Ddp& ddp, const std::vector<double>& losses) {
  Tensors state{at::tensor(losses, at::kDouble)};
  for (const auto& parameter : ddp.parameters()) {
    state.push_back(parameter.detach().clone());
    state.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
  for (const auto& buffer : ddp.module()->buffers()) state.push_back(buffer.clone());
  return state;
}

// loss_of(ddp, shard) makes one forward; a step has `backwards` of them in every shard.
template <class Module, class LossOf>
Tensors train(const ProcessGroup& group, LossOf loss_of, int steps, int backwards = 1, const Module& model = Module()) {
  set_weights(model);
  DistributedDataParallel ddp(model, group, kLockstep);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    losses.push_back(ddp.for_each_shard([&](const Shard& shard) {
      double sum = 0;
      for (int i = 0; i < backwards; ++i) {
        const at::Tensor loss = loss_of(ddp, shard);
        loss.backward();
        sum += loss.item<double>();
      }
      return sum;
    }));
    optimizer.step();
  }
  return state_of(ddp, losses);
}

template <class Run>
void check_any_world(Run run) {
  Tensors expected;
  run_group_or_throw(1, Over::arena, [&](const ProcessGroup& group) { expected = run(group); });
  for (const Over transport : {Over::arena, Over::links}) {
    for (const int ranks : kWorlds) {
      INFO(ranks, " ranks over ", transport == Over::arena ? "memory" : "links");
      std::vector<Tensors> found(static_cast<std::size_t>(ranks));
      run_group_or_throw(ranks, transport, [&](const ProcessGroup& group) {
        found[static_cast<std::size_t>(group.rank())] = run(group);
      });
      for (const Tensors& of_rank : found) check_same(of_rank, expected);
    }
  }
}

inline double shift_of(const Shard& shard) { return static_cast<double>(shard.step) * 100 + shard.index; }

}  // namespace lockstep::testing
