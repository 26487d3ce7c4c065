// The contents of this rank's gradients: which of its backwards since the last average, and with which weight.
// forward -> Contributions -> factor of gradients, weight in the rank's report, values that buckets send.
//
// A contribution is what one backward has added. It counts from that backward on until the ranks have averaged, or
// until the program sets the gradient to zero or drops it, which is checked when the next backward begins. Work of a
// rank that has joined (join_state.h) is no contribution: its gradients are put aside during such a backward, and are
// put back afterwards.
//
// The weight of a forward counts once, however many backwards go through it. Earlier averages must not be weighted
// again, so they are put aside, too, from the first backward after an average until the next average.
//
// Whether a device's gradient was set to zero is asked only where it matters, since the host waits for the answer: in
// the middle of an accumulation, if somebody has written to it, or with weights.
// Belongs to the thread that runs forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/autograd/forward_graphs.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/trained_parameter.h"

namespace lockstep::internal {

class Contributions {
 public:
  // parameters: outlive it. wrapper: see GradBucket.
  Contributions(const TrainedParameters& parameters, ProcessGroup group, Weighting weighting, std::uint64_t wrapper);
  ~Contributions();
  Contributions(const Contributions&) = delete;
  Contributions& operator=(const Contributions&) = delete;

  // With Weighting::samples, before each forward with gradients on: rank 0's weight in the first call that synchronises
  // counts as 1 from then on. That call is collective.
  void agree_on_unit(double weight, bool synchronises);

  // A backward begins that goes through these forwards, to which `note` belongs. Error{invalid_argument}, which ends
  // the group, if it would add to gradients of unknown weight.
  void begin_backward(const ForwardNote& note, std::span<const ForwardGraphs::Found> forwards);
  // The factor of that backward's gradients before they are added. REQUIRES: Weighting::samples.
  double factor() const { return note_.weight == 0 && divides_ ? kSmallFactor : note_.weight / unit_.value(); }
  // Whether the averages of that backward depend on weights.
  bool is_weighted() const { return weighting_ == Weighting::samples || note_.divide_by_active; }

  // That backward has given a parameter a gradient; one that goes through no forward of the wrapper has.
  void note_gradient(std::size_t parameter) { used_[parameter] = used_[parameter] || !note_.joined; }
  void note_local_gradient(std::size_t parameter, bool is_defined);

  // By parameter: whether this rank has contributed to its gradient.
  const std::vector<bool>& used() const { return used_; }
  // By parameter: the tensor that this rank sends instead of the gradient. Null: the gradient itself.
  const std::vector<at::Tensor>* sent_instead() const { return note_.joined ? &own_ : nullptr; }
  // How much this rank's gradients count: for most parameters, and for one.
  double weight() const { return weight_since(0); }
  double weight(std::size_t parameter) const { return weight_since(since_[parameter]); }
  // Whether that is the same for all parameters.
  bool is_uniform() const { return is_uniform_; }

  // The backward is over, and nothing is averaged.
  void end_local();
  // It is over, and gradients hold the averages of the parameters that some rank has used; null: of all.
  void end_averaged(const std::vector<bool>* used);
  void roll_back();  // it was abandoned
  void forget();     // all gradients have been dropped

 private:
  friend double factor_of_current_backward(std::uint64_t wrapper, bool divides);
  // Where a layer has to divide by a factor that is 0. A power of two, so that dividing and multiplying keeps the bits.
  static constexpr double kSmallFactor = 0x1p-80;

  // A forward that contributes. last: the backward through it that counts; before: the one before that, -1: none.
  struct Counted {
    ForwardGraphs::Id forward;
    double weight;
    std::int64_t last, before;
  };

  static Contributions* weighting_here(std::uint64_t wrapper);
  double weight_since(std::int64_t backward) const;
  void rescale(double factor);
  void look_for_zeros();
  bool was_zeroed(std::size_t parameter) const;
  void note_zeroed(std::size_t parameter);
  void put_averages_aside();
  void put_averages_back();
  void note_mixture();
  void put_own_aside();
  void put_own_back(const std::vector<bool>* averaged);
  void put_back_where_nothing_came();
  void check_is_weighted(std::size_t parameter) const;
  bool is_mixed(std::size_t parameter) const;

  const TrainedParameters& parameters_;
  const ProcessGroup group_;
  const Weighting weighting_;
  const std::uint64_t wrapper_;
  std::optional<double> unit_;
  bool has_agreed_ = false;              // on it
  ForwardNote note_;                     // of the backward that runs, or ran last
  std::atomic<int> backward_ = -1;       // that backward
  std::atomic<std::thread::id> thread_;  // that runs it; no thread: none does
  std::atomic<bool> divides_ = false;

  // Since the last average.
  std::int64_t backwards_ = 0;            // that contribute
  std::vector<Counted> counted_;          // forwards
  std::vector<std::int64_t> since_;       // by parameter: the first backward of which its gradient has something
  bool is_uniform_ = true;                // all of since_ are 0
  std::vector<bool> used_, used_before_;  // by parameter; before the backward that runs
  // By parameter, after the last backward: which tensor it was and how often written to; whether zero by itself.
  std::vector<std::pair<const void*, std::uint32_t>> seen_;
  std::vector<bool> was_zero_, is_mixed_;    // is_mixed_: an average that this rank has added to without weights
  std::vector<at::Tensor> nonzeros_before_;  // on a device: of what this rank has added to, until somebody asks
  bool has_local_gradients_ = false;
  std::vector<at::Tensor> averages_;  // by parameter: put aside
  std::vector<at::Tensor> own_;       // by parameter: put aside during a joined backward
  const std::vector<bool> none_;      // of the parameters
};

// The factor of the wrapper's gradients (0: of any wrapper's) in the backward that this thread runs, or one around it;
// 1 if none. A layer that adds up the gradients of several ranks needs it, since parameters before the layer get the
// sum times the rank's own factor. divides: if it is 0, this backward goes on with a small one, to divide by.
double factor_of_current_backward(std::uint64_t wrapper, bool divides = false);

}  // namespace lockstep::internal
