// The forwards of a wrapper whose graphs may still be differentiated, and which of them a backward goes through.
// forward -> ForwardGraphs -> reducer. A backward goes through a forward if its graph has a node that this forward
// made: nodes carry their thread and a number that grows. That distinguishes the wrapper's graphs from those of the
// bare module beside it. Belongs to the thread that runs forward and backward; graphs may be destroyed by any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "lockstep/train/ddp/autograd/forward_note.h"
#include "lockstep/train/ddp/autograd/forward_outputs.h"

namespace lockstep::internal {

class ForwardGraphs {
 public:
  using Id = std::uint64_t;

  // reached: called when a backward reaches an output of a forward, before the computation continues from it; returns
  // whether that output's gradient counts.
  explicit ForwardGraphs(std::function<bool(Id)> reached);

  // A forward begins on this thread. It is remembered while one of its outputs, or a result of one, exists. Of those
  // whose outputs cannot be seen or are gone, the last ones are remembered.
  Id begin(const ForwardNote& note);
  // One of the tensors that the loss will be computed from. REQUIRES: this forward has not ended.
  void watch(Id forward, const at::Tensor& output);
  // The forward has returned, or has thrown, and is forgotten then.
  void end(Id forward, bool has_returned);

  // The note of the backward that the calling thread runs; nothing if it goes through none of these forwards. reached:
  // a forward that it is known to go through. REQUIRES: called during backward.
  std::optional<ForwardNote> note_of_current_backward(std::optional<Id> reached);
  struct Found {
    Id id;
    double weight;
    bool joined;
  };
  // The forwards that backward goes through, as note_of_current_backward() has found them. Mixed: some have joined, and
  // others have not; then, whether it reaches those that have joined other than through their outputs.
  std::span<const Found> found() const { return found_; }
  bool is_mixed() const;
  bool passes_outputs() const { return passes_outputs_by_; }
  // The number of the last of them. Of synchronised forwards those count that all ranks have to make: in training, or
  // with a backward. Those do not that only autograd::grad has gone through.
  std::uint64_t number() const { return number_; }
  // autograd::grad goes through this forward.
  void was_differentiated(Id forward);
  // A backward through some of these forwards, or autograd::grad, ends on this thread. Nodes that it has made for
  // second derivatives belong to those forwards too; later nodes do not.
  void close_ranges();

  // Whether a synchronised forward that can be differentiated has not been yet.
  bool awaits_backward();
  // Whether gradients that arrived through none of these forwards may be of such a forward, or of the last one, if it
  // has a graph but no output that could be watched.
  bool may_have_been_passed_by();
  bool is_within_forward() const { return not_ended_ != 0; }

 private:
  struct Outputs;
  class OutputHook;
  // Numbers of nodes, made by one thread.
  struct Range {
    std::uint64_t thread = 0;
    std::uint64_t first = 0;
    std::uint64_t last = 0;  // one after the last
  };
  struct Forward {
    Id id = 0;
    ForwardNote note;
    Range made;
    std::uint64_t number = 0;
    std::vector<Range> made_later = {};  // by differentiating it
    bool has_ended = false;
    bool is_watched = false;
    bool is_differentiated = false;
    bool is_left_out = false;  // of the numbers
    bool is_found = false;     // in the graph of the backward that was asked about last
  };

  // The ranges of a thread are in the order of their beginnings. reach: the largest end of the closed ones up to here.
  struct Made {
    std::uint64_t first, reach;
    Id forward;
  };
  struct MadeByThread {
    std::uint64_t thread;
    std::vector<Made> ranges;
  };

  Forward* find(Id forward);
  bool made(const Forward& forward, std::uint64_t thread, std::uint64_t number) const;
  void mark_found(Forward& forward);
  void find_in(const std::unordered_set<torch::autograd::Node*>& nodes, std::size_t unknown);
  NodePlace place_in_joined(torch::autograd::Node& node);
  std::vector<Made>& ranges_of(std::uint64_t thread);
  void note_range(const Range& range, Id forward);
  void note_end(const Range& range);
  void open_range(Forward& forward);
  void leave_out(Forward& forward, bool is_left_out);
  bool waits(Id forward);
  void forget_dead();

  const std::shared_ptr<Outputs> outputs_;
  std::vector<Forward> forwards_;  // in the order of their beginnings
  std::vector<MadeByThread> made_;
  // Of the forwards: how many have not ended, and how many there were when the dead were forgotten last.
  std::size_t not_ended_ = 0, left_after_sweep_ = 0;
  // Among others those that await a backward; that have an open range; all that have been found.
  std::vector<Id> waiting_, open_, marked_;
  Id next_ = 1;
  std::uint64_t numbers_ = 0, number_ = 0;  // of forwards; of the last one found
  std::vector<Found> found_;
  bool passes_outputs_by_ = false;
};

}  // namespace lockstep::internal
