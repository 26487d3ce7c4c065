// The model of all sequences, its inputs and its losses: what the wrapper trains, and what the Oracle computes with.
// One thread each.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "tests/sequences/sequence.h"

namespace lockstep::sequences {

// What a forward throws that was asked to.
struct Thrown : std::runtime_error {
  Thrown() : std::runtime_error("a forward threw") {}
};

struct Call {
  unsigned parts = kAllParts;
  Throws throws = Throws::never;
};

struct Head : torch::nn::Module {
  explicit Head(std::uint64_t seed);
  at::Tensor weight;
};

struct Net : torch::nn::Module {
  // Values depend on the seed.
  Net(const Setting& setting, std::uint64_t seed);
  at::Tensor forward(const at::Tensor& x, const Call& call);
  at::Tensor forward(const std::vector<at::Tensor>& x, const Call& call) { return forward(x.front(), call); }
  // Training, or what the setting has instead.
  void set_mode(const Setting& setting, bool trains);

  void add_parameter(std::uint64_t seed);
  void add_module(std::uint64_t seed);
  void replace_head(std::uint64_t seed);
  // 0 to 2: the bias of the trunk, a head, the parameter at the end.
  at::Tensor& freezable(int choice);

  at::Tensor trunk, bias, end, late;
  std::shared_ptr<Head> heads[2], late_head;
  torch::nn::BatchNorm1d norm{nullptr};
};

// What an event's inputs depend on.
struct Place {
  const Sequence& sequence;
  const Event& event;
  int iteration = 0;  // of its join
  int rank = 0;
};

at::Tensor input_of(const Place& place);
// The mean over rows of a function of the outputs, by number.
at::Tensor loss_of(const at::Tensor& output, int number, double scale);
// By which an event's losses are multiplied.
double scale_of(const Place& place);
std::uint64_t seed_of(const Place& place);
// What a forward is given as its weight, if it is given any.
std::optional<double> weight_of(const Place& place);
// The parts that a rank's forward uses.
unsigned parts_of(const Place& place);
// Whether a forward is synchronised for some model.
bool is_synchronised(const Event& forward);

}  // namespace lockstep::sequences
