// How much this rank's gradients count, where they are weighted by samples, or averaged over the ranks that still have
// batches. forward -> GradientWeights -> factor of what backward adds, weight in the rank's report.
// Averages of weighted gradients are multiplied at the end of backward. What was averaged before must not be, so it is
// set aside until then. Belongs to the thread that runs forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <optional>
#include <vector>

#include "lockstep/ddp/autograd/forward_graphs.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/trained_parameter.h"
#include "lockstep/group/process_group.h"

namespace lockstep::internal {

class GradientWeights {
 public:
  // parameters: outlive it.
  GradientWeights(const TrainedParameters& parameters, ProcessGroup group, Weighting weighting);
  ~GradientWeights();
  GradientWeights(const GradientWeights&) = delete;
  GradientWeights& operator=(const GradientWeights&) = delete;

  // With Weighting::samples, before each forward with gradients on: rank 0's first weight counts as 1. Collective the
  // first time, also under no_sync(), so it comes before what only synchronised forwards do.
  void agree_on_unit(double weight);

  // A backward through such a forward begins. Error{invalid_argument}, which ends the group, if it would add to
  // gradients of unknown weight.
  void begin_backward(const ForwardNote& note);
  // What that backward's gradients are multiplied by before they are added. REQUIRES: Weighting::samples.
  double factor() const { return note_.weight / unit_.value(); }
  // Whether the averages of that backward depend on weights.
  bool is_weighted() const { return weighting_ == Weighting::samples || note_.divide_by_active; }
  // Of all that has been added up.
  double sum() const { return sum_; }

  // Some gradient has come by a backward that goes through no forward of the wrapper.
  void note_local_gradients() { has_local_gradients_ = true; }

  // The backward is over: adds what was set aside.
  void add_set_aside();
  // What has been added up is averaged, and the next backward begins a new sum.
  void begin_new_sum();
  // The backward was abandoned.
  void roll_back();

 private:
  friend double factor_of_current_backward();

  void set_aside_gradients();

  const TrainedParameters& parameters_;
  const ProcessGroup group_;
  const Weighting weighting_;
  ForwardNote note_;                // of the backward that runs, or ran last
  std::atomic<int> backward_ = -1;  // that it is of
  std::optional<double> unit_;
  double sum_ = 0;
  double sum_before_ = 0;  // the backward that runs
  bool is_new_sum_ = true;
  bool has_local_gradients_ = false;
  std::vector<at::Tensor> set_aside_;  // by parameter
};

// What some wrapper multiplies gradients by in the backward that this thread runs; 1 if none does. A layer that adds up
// the gradients of several ranks needs it, since parameters in front of the layer get the sum times the rank's own
// factor.
double factor_of_current_backward();

}  // namespace lockstep::internal
