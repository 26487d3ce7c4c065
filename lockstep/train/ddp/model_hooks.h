// The gradient hooks of all trained parameters. autograd -> ModelHooks -> reducer. A parameter that is cast for
// forward and backward has a place where gradients are accumulated in each of its types, and a hook at both.
// Belongs to the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/autograd/gradient_hooks.h"
#include "lockstep/train/ddp/mixed_precision/precision_cast.h"
#include "lockstep/train/ddp/trained_parameter.h"

namespace lockstep::internal {

class ModelHooks {
 public:
  // parameters: outlive it. cast: null if no parameter is cast. arrived: see GradientHook.
  ModelHooks(const TrainedParameters& parameters, std::shared_ptr<PrecisionCast> cast,
             std::function<void(std::size_t parameter, const at::Tensor& added)> arrived);
  ~ModelHooks();
  ModelHooks(const ModelHooks&) = delete;
  ModelHooks& operator=(const ModelHooks&) = delete;

  // From now on a backward fails whose `inputs` name a parameter that is cast: the graph holds its copy.
  void refuse_as_inputs(const std::function<Error(const std::string& parameter)>& error);

  // From now on backward multiplies its addends to a gradient by factor().
  void scale_gradients(const std::function<double()>& factor);

  // Of the backward that the calling thread runs.
  // Whether it accumulates gradients of parameters; autograd::grad does not.
  bool is_accumulated_now() const;
  bool is_accumulated_now(std::size_t parameter) const;
  // How many places of the parameter it will reach: one that the loss uses directly, and not through a forward in the
  // lower type, is in the graph in its own type, or in both.
  int places_in_current_graph(std::size_t parameter) const;

  // Hooks again parameters whose data was replaced. Returns one whose type or device has changed, so that it cannot be
  // hooked.
  std::optional<std::size_t> find_again() const;

 private:
  const TrainedParameters& parameters_;
  const std::shared_ptr<PrecisionCast> cast_;
  std::vector<GradientHook> hooks_;                      // by parameter
  std::vector<std::optional<GradientHook>> cast_hooks_;  // by parameter, of those that are cast; empty if none are
  std::vector<GradientScale> scales_;
};

}  // namespace lockstep::internal
