#include "lockstep/ddp/autograd/forward_graphs.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "lockstep/ddp/autograd/gradient_hooks.h"

namespace lockstep::internal {
namespace {

using torch::autograd::Node;

constexpr std::uint64_t kOpen = std::numeric_limits<std::uint64_t>::max();
// How many forwards are remembered whose outputs cannot be seen: those that have been differentiated, and those that
// have not.
constexpr std::size_t kMostUsed = 4, kMostUnused = 64;

std::uint64_t this_thread() { return at::RecordFunction::currentThreadId(); }

// Of several forwards in one backward: synchronised if one is, joined if all are; weights add up.
ForwardNote joined(const ForwardNote& one, const ForwardNote& other) {
  return {.synchronise = one.synchronise || other.synchronise,
          .is_training = one.is_training || other.is_training,
          .joined = one.joined && other.joined,
          .weight = (one.joined ? 0 : one.weight) + (other.joined ? 0 : other.weight),
          .divide_by_active = one.divide_by_active || other.divide_by_active};
}

}  // namespace

// How many watched outputs of each forward are left.
struct ForwardGraphs::Outputs {
  struct Left {
    Id forward;
    int outputs;
  };
  explicit Outputs(std::function<void(Id)> call) : reached(std::move(call)) {}

  void add(Id forward) {
    const std::lock_guard lock(mutex);
    if (Left* known = find(forward)) {
      ++known->outputs;
    } else {
      left.insert(place_of(forward), {forward, 1});
    }
  }
  void remove(Id forward) {
    const std::lock_guard lock(mutex);
    Left* known = find(forward);
    if (known != nullptr && --known->outputs == 0) left.erase(left.begin() + (known - left.data()));
  }
  bool has(Id forward) {
    const std::lock_guard lock(mutex);
    return find(forward) != nullptr;
  }

  const std::function<void(Id)> reached;
  std::mutex mutex;
  std::vector<Left> left;  // in the order of forwards; protected by mutex

 private:
  std::vector<Left>::iterator place_of(Id forward) {
    return std::ranges::lower_bound(left, forward, {}, &Left::forward);
  }
  Left* find(Id forward) {
    const auto found = place_of(forward);
    return found == left.end() || found->forward != forward ? nullptr : &*found;
  }
};

// Lives as long as the node that it hangs on.
class ForwardGraphs::OutputHook final : public torch::autograd::FunctionPreHook {
 public:
  OutputHook(std::shared_ptr<Outputs> outputs, Id forward) : outputs_(std::move(outputs)), forward_(forward) {
    outputs_->add(forward_);
  }
  ~OutputHook() override { outputs_->remove(forward_); }

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    outputs_->reached(forward_);
    return gradients;
  }

 private:
  const std::shared_ptr<Outputs> outputs_;
  const Id forward_;
};

ForwardGraphs::ForwardGraphs(std::function<void(Id)> reached)
    : outputs_(std::make_shared<Outputs>(std::move(reached))) {}

ForwardGraphs::Id ForwardGraphs::begin(const ForwardNote& note) {
  close_ranges();
  forget_dead();
  const std::uint64_t first = at::sequence_number::peek();
  forwards_.push_back({.id = next_,
                       .note = note,
                       .made = {this_thread(), first, kOpen},
                       .number = note.synchronise ? numbers_ + 1 : numbers_,
                       .is_left_out = !note.is_training});
  if (note.synchronise && note.is_training) ++numbers_;
  return next_++;
}

void ForwardGraphs::watch(Id forward, const at::Tensor& output) {
  Forward* known = find(forward);
  if (known == nullptr || !output.requires_grad()) return;
  const auto& node = output.grad_fn();
  if (node == nullptr) {
    known->gives_leaf = known->gives_leaf || GradientHook::watches(output);
    return;
  }
  const auto hang_on = [&](const decltype(output.grad_fn())& on) {
    // A module may return what was computed before it was called.
    const bool is_foreign = on->thread_id() == known->made.thread && on->sequence_nr() < known->made.first;
    if (is_foreign) return;
    on->add_pre_hook(std::make_unique<OutputHook>(outputs_, forward));
    known->is_watched = true;
  };
  hang_on(node);
  // If the program changes a view in place, the view gets another node, but what it views keeps its own.
  if (!output.is_view()) return;
  const auto& viewed = output._base().grad_fn();
  if (viewed != nullptr) hang_on(viewed);
}

void ForwardGraphs::end(Id forward, bool has_returned) {
  Forward* known = find(forward);
  if (known == nullptr) return;
  known->made.last = at::sequence_number::peek();
  known->has_ended = true;
  if (!has_returned) std::erase_if(forwards_, [&](const Forward& one) { return one.id == forward; });
}

std::optional<ForwardNote> ForwardGraphs::note_of_current_backward(std::optional<Id> reached) {
  close_ranges();
  std::size_t unknown = 0;  // forwards that ended and have not been found in the graph
  for (Forward& one : forwards_) {
    one.is_found = one.id == reached || (one.gives_leaf && !one.is_differentiated);
    if (one.has_ended && !one.is_found) ++unknown;
  }
  const auto* nodes = unknown == 0 ? nullptr : torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr) find_in(*nodes, unknown);
  std::optional<ForwardNote> note;
  found_.clear();
  number_ = 0;
  for (Forward& one : forwards_) {
    if (!one.is_found) continue;
    one.is_differentiated = true;
    leave_out(one, false);
    note = note ? joined(*note, one.note) : one.note;
    found_.push_back({one.id, one.note.weight, one.note.joined});
    if (one.note.synchronise) number_ = std::max(number_, one.number);
    open_range(one);
  }
  return note;
}

void ForwardGraphs::find_in(const std::unordered_set<Node*>& nodes, std::size_t unknown) {
  // A program may keep the graphs of many forwards; the nodes of the last one are newer than all of them.
  std::uint64_t last = 0;
  for (const Forward& one : forwards_) {
    if (one.is_found || !one.has_ended) continue;
    last = std::max(last, one.made.last);
    for (const Range& range : one.made_later) last = std::max(last, range.last);
  }
  for (const Node* node : nodes) {
    if (node->sequence_nr() >= last) continue;  // as the places where gradients are accumulated
    for (Forward& one : forwards_) {
      if (one.is_found || !made(one, node->thread_id(), node->sequence_nr())) continue;
      one.is_found = true;
      if (--unknown == 0) return;
    }
  }
}

void ForwardGraphs::was_differentiated(Id forward) {
  Forward* known = find(forward);
  if (known == nullptr) return;
  if (!known->is_differentiated) leave_out(*known, true);
  known->is_differentiated = true;
  open_range(*known);
}

void ForwardGraphs::leave_out(Forward& forward, bool is_left_out) {
  if (!forward.note.synchronise || std::exchange(forward.is_left_out, is_left_out) == is_left_out) return;
  const auto change = [&](std::uint64_t& number) { is_left_out ? --number : ++number; };
  change(numbers_);
  for (Forward& one : forwards_) {
    if (one.id > forward.id) change(one.number);
  }
}

void ForwardGraphs::open_range(Forward& forward) {
  if (!at::GradMode::is_enabled()) return;
  const std::uint64_t thread = this_thread();
  const bool is_open = std::ranges::any_of(
      forward.made_later, [&](const Range& range) { return range.thread == thread && range.last == kOpen; });
  if (!is_open) forward.made_later.push_back({thread, at::sequence_number::peek(), kOpen});
}

bool ForwardGraphs::awaits_backward() const {
  return std::ranges::any_of(forwards_, [&](const Forward& one) {
    return one.note.synchronise && !one.is_differentiated && one.is_watched && outputs_->has(one.id);
  });
}

bool ForwardGraphs::may_have_been_passed_by() const {
  if (awaits_backward()) return true;
  if (forwards_.empty()) return false;
  const Forward& last = forwards_.back();
  const bool has_graph = last.has_ended && last.made.first < last.made.last;
  return last.note.synchronise && !last.is_differentiated && !last.is_watched && has_graph;
}

bool ForwardGraphs::is_within_forward() const {
  return std::ranges::any_of(forwards_, [](const Forward& one) { return !one.has_ended; });
}

ForwardGraphs::Forward* ForwardGraphs::find(Id forward) {
  const auto found = std::ranges::find(forwards_, forward, &Forward::id);
  return found == forwards_.end() ? nullptr : &*found;
}

bool ForwardGraphs::made(const Forward& forward, std::uint64_t thread, std::uint64_t number) const {
  const auto holds = [&](const Range& range) {
    return forward.has_ended && range.thread == thread && range.first <= number && number < range.last;
  };
  return holds(forward.made) || std::ranges::any_of(forward.made_later, holds);
}

// Nodes that are made from now on belong to other graphs.
void ForwardGraphs::close_ranges() {
  const std::uint64_t thread = this_thread(), next = at::sequence_number::peek();
  for (Forward& one : forwards_) {
    for (Range& range : one.made_later) {
      if (range.thread == thread && range.last == kOpen) range.last = next;
    }
  }
}

void ForwardGraphs::forget_dead() {
  const auto is_out_of_sight = [&](const Forward& one) {
    return one.has_ended && !(one.is_watched && outputs_->has(one.id));
  };
  std::erase_if(forwards_,
                [&](const Forward& one) { return one.is_watched && one.is_differentiated && is_out_of_sight(one); });
  const auto keep_last = [&](std::size_t most, bool is_differentiated) {
    const auto is_one = [&](const Forward& one) {
      return one.is_differentiated == is_differentiated && is_out_of_sight(one);
    };
    auto count = static_cast<std::size_t>(std::ranges::count_if(forwards_, is_one));
    for (; count > most; --count) forwards_.erase(std::ranges::find_if(forwards_, is_one));
  };
  keep_last(kMostUsed, true);
  keep_last(kMostUnused, false);
}

}  // namespace lockstep::internal
