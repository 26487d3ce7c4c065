#include "lockstep/train/ddp/autograd/forward_graphs.h"

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

namespace lockstep::internal {
namespace {

using torch::autograd::Node;

constexpr std::uint64_t kOpen = std::numeric_limits<std::uint64_t>::max();
// The number of remembered forwards whose outputs cannot be seen: those that have been differentiated, and those that
// have not.
constexpr std::size_t kMostUsed = 4, kMostUnused = 64;
// Up to this number of forwards, each forward searches for dead ones; beyond it, each doubling does.
constexpr std::size_t kFew = 256;

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
  explicit Outputs(std::function<bool(Id)> call) : reached(std::move(call)) {}

  void add(Id forward) {
    const std::lock_guard lock(mutex);
    if (Left* known = find(forward)) {
      if (known->outputs++ == 0) --gone;
    } else {
      left.insert(place_of(forward), {forward, 1});
    }
  }
  void remove(Id forward) {
    const std::lock_guard lock(mutex);
    Left* known = find(forward);
    if (known == nullptr || --known->outputs != 0 || ++gone <= left.size() / 2) return;
    std::erase_if(left, [](const Left& one) { return one.outputs == 0; });
    gone = 0;
  }
  bool has(Id forward) {
    const std::lock_guard lock(mutex);
    const Left* known = find(forward);
    return known != nullptr && known->outputs != 0;
  }

  const std::function<bool(Id)> reached;
  std::mutex mutex;
  std::vector<Left> left;  // in the order of forwards; protected by mutex
  std::size_t gone = 0;    // of these, those without outputs; protected by mutex

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
    return outputs_->reached(forward_) ? gradients : torch::autograd::variable_list(gradients.size());
  }

 private:
  const std::shared_ptr<Outputs> outputs_;
  const Id forward_;
};

ForwardGraphs::ForwardGraphs(std::function<bool(Id)> reached)
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
  ++not_ended_;
  note_range(forwards_.back().made, next_);
  return next_++;
}

void ForwardGraphs::watch(Id forward, const at::Tensor& output) {
  Forward* known = find(forward);
  if (known == nullptr || !output.requires_grad()) return;
  const auto& node = output.grad_fn();
  if (node == nullptr) return;
  const auto hang_on = [&](const decltype(output.grad_fn())& on) {
    // A module may return a tensor that was computed before its call.
    const bool is_foreign = on->thread_id() == known->made.thread && on->sequence_nr() < known->made.first;
    if (is_foreign) return;
    on->add_pre_hook(std::make_unique<OutputHook>(outputs_, forward));
    if (!std::exchange(known->is_watched, true) && known->note.synchronise) waiting_.push_back(forward);
  };
  hang_on(node);
  // If the program changes a view in place, the view gets another node, but its base keeps its node.
  if (!output.is_view()) return;
  const auto& viewed = output._base().grad_fn();
  if (viewed != nullptr) hang_on(viewed);
}

void ForwardGraphs::end(Id forward, bool has_returned) {
  Forward* known = find(forward);
  if (known == nullptr) return;
  known->made.last = at::sequence_number::peek();
  if (!std::exchange(known->has_ended, true)) --not_ended_;
  note_end(known->made);
  if (!has_returned) forwards_.erase(forwards_.begin() + (known - forwards_.data()));
}

std::optional<ForwardNote> ForwardGraphs::note_of_current_backward(std::optional<Id> reached) {
  close_ranges();
  for (const Id id : marked_) {
    if (Forward* one = find(id)) one->is_found = false;
  }
  marked_.clear();
  if (Forward* one = reached ? find(*reached) : nullptr) mark_found(*one);
  std::size_t known = 0;  // forwards that ended and have been found
  for (const Id id : marked_) known += find(id)->has_ended ? 1 : 0;
  const std::size_t unknown = forwards_.size() - not_ended_ - known;
  const auto* nodes = unknown == 0 ? nullptr : torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr) find_in(*nodes, unknown);
  std::ranges::sort(marked_);
  std::optional<ForwardNote> note;
  found_.clear();
  number_ = 0;
  for (const Id id : marked_) {
    Forward& one = *find(id);
    one.is_differentiated = true;
    leave_out(one, false);
    note = note ? joined(*note, one.note) : one.note;
    found_.push_back({one.id, one.note.weight, one.note.joined});
    if (one.note.synchronise) number_ = std::max(number_, one.number);
    open_range(one);
  }
  const auto* all = is_mixed() ? torch::autograd::get_current_graph_task_nodes_in_graph() : nullptr;
  const Forward* first = reached ? find(*reached) : nullptr;
  passes_outputs_by_ = all != nullptr && passes_outputs_by(*all, first != nullptr && first->note.joined,
                                                           [this](Node& node) { return place_in_joined(node); });
  return note;
}

NodePlace ForwardGraphs::place_in_joined(Node& node) {
  const bool is_of_joined = std::ranges::any_of(found_, [&](const Found& found) {
    return found.joined && made(*find(found.id), node.thread_id(), node.sequence_nr());
  });
  if (!is_of_joined) return NodePlace::outside;
  const auto is_ours = [](const auto& hook) { return dynamic_cast<const OutputHook*>(hook.get()) != nullptr; };
  return std::ranges::any_of(node.pre_hooks(), is_ours) ? NodePlace::output : NodePlace::inside;
}

bool ForwardGraphs::is_mixed() const {
  return std::ranges::any_of(found_, &Found::joined) && !std::ranges::all_of(found_, &Found::joined);
}

void ForwardGraphs::mark_found(Forward& forward) {
  if (!std::exchange(forward.is_found, true)) marked_.push_back(forward.id);
}

void ForwardGraphs::find_in(const std::unordered_set<Node*>& nodes, std::size_t unknown) {
  for (const Node* node : nodes) {
    const std::uint64_t number = node->sequence_nr();
    const std::vector<Made>& ranges = ranges_of(node->thread_id());
    // After the last one that begins before it. A forward may contain others, as of a module that calls its wrapper.
    auto range = std::ranges::upper_bound(ranges, number, {}, &Made::first);
    while (range != ranges.begin() && (--range)->reach > number) {
      Forward* one = find(range->forward);
      if (one == nullptr || one->is_found || !made(*one, node->thread_id(), number)) continue;
      mark_found(*one);
      if (--unknown == 0) return;
    }
  }
}

std::vector<ForwardGraphs::Made>& ForwardGraphs::ranges_of(std::uint64_t thread) {
  const auto known = std::ranges::find(made_, thread, &MadeByThread::thread);
  return known != made_.end() ? known->ranges : made_.emplace_back(MadeByThread{thread, {}}).ranges;
}

void ForwardGraphs::note_range(const Range& range, Id forward) {
  std::vector<Made>& ranges = ranges_of(range.thread);
  ranges.push_back({range.first, ranges.empty() ? 0 : ranges.back().reach, forward});
}

// Ranges that begin where this one does, or later, reach at least as far.
void ForwardGraphs::note_end(const Range& range) {
  std::vector<Made>& ranges = ranges_of(range.thread);
  auto from = std::ranges::lower_bound(ranges, range.first, {}, &Made::first);
  for (; from != ranges.end(); ++from) from->reach = std::max(from->reach, range.last);
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
  for (Forward* one = &forward + 1; one != forwards_.data() + forwards_.size(); ++one) change(one->number);
}

void ForwardGraphs::open_range(Forward& forward) {
  if (!at::GradMode::is_enabled()) return;
  const std::uint64_t thread = this_thread();
  const bool is_open = std::ranges::any_of(
      forward.made_later, [&](const Range& range) { return range.thread == thread && range.last == kOpen; });
  if (is_open) return;
  forward.made_later.push_back({thread, at::sequence_number::peek(), kOpen});
  note_range(forward.made_later.back(), forward.id);
  open_.push_back(forward.id);
}

bool ForwardGraphs::waits(Id forward) {
  const Forward* known = find(forward);
  return known != nullptr && !known->is_differentiated && outputs_->has(forward);
}

bool ForwardGraphs::awaits_backward() {
  // A forward that no longer waits never waits again.
  while (!waiting_.empty() && !waits(waiting_.back())) waiting_.pop_back();
  return !waiting_.empty();
}

bool ForwardGraphs::may_have_been_passed_by() {
  if (awaits_backward()) return true;
  if (forwards_.empty()) return false;
  const Forward& last = forwards_.back();
  const bool has_graph = last.has_ended && last.made.first < last.made.last;
  return last.note.synchronise && !last.is_differentiated && !last.is_watched && has_graph;
}

ForwardGraphs::Forward* ForwardGraphs::find(Id forward) {
  const auto found = std::ranges::lower_bound(forwards_, forward, {}, &Forward::id);
  return found == forwards_.end() || found->id != forward ? nullptr : &*found;
}

bool ForwardGraphs::made(const Forward& forward, std::uint64_t thread, std::uint64_t number) const {
  const auto holds = [&](const Range& range) {
    return forward.has_ended && range.thread == thread && range.first <= number && number < range.last;
  };
  return holds(forward.made) || std::ranges::any_of(forward.made_later, holds);
}

// Nodes that are made from now on belong to other graphs.
void ForwardGraphs::close_ranges() {
  if (open_.empty()) return;
  const std::uint64_t thread = this_thread();
  Range all{thread, kOpen, at::sequence_number::peek()};  // from the first that is closed
  std::erase_if(open_, [&](Id id) {
    Forward* one = find(id);
    bool is_open = false;
    if (one == nullptr) return true;
    for (Range& range : one->made_later) {
      if (range.last != kOpen) continue;
      if (range.thread == thread) {
        range.last = all.last;
        all.first = std::min(all.first, range.first);
      } else {
        is_open = true;
      }
    }
    return !is_open;
  });
  if (all.first != kOpen) note_end(all);
}

void ForwardGraphs::forget_dead() {
  if (forwards_.size() > kFew && forwards_.size() < 2 * left_after_sweep_) return;
  const std::size_t before = forwards_.size();
  const auto is_out_of_sight = [&](const Forward& one) {
    return one.has_ended && !(one.is_watched && outputs_->has(one.id));
  };
  std::size_t used = 0, unused = 0;  // without visible outputs, more than are kept
  for (const Forward& one : forwards_) {
    if (!is_out_of_sight(one)) continue;
    if (!one.is_differentiated) ++unused;
    if (one.is_differentiated && !one.is_watched) ++used;
  }
  used -= std::min(used, kMostUsed);
  unused -= std::min(unused, kMostUnused);
  std::erase_if(forwards_, [&](const Forward& one) {
    if (!is_out_of_sight(one)) return false;
    if (one.is_watched && one.is_differentiated) return true;
    std::size_t& left = one.is_differentiated ? used : unused;
    return left != 0 && left-- != 0;
  });
  left_after_sweep_ = forwards_.size();
  if (forwards_.size() == before) return;
  for (MadeByThread& one : made_) {
    std::erase_if(one.ranges, [&](const Made& range) { return find(range.forward) == nullptr; });
  }
  std::erase_if(made_, [&](const MadeByThread& one) { return one.ranges.empty() && one.thread != this_thread(); });
  std::erase_if(waiting_, [&](Id id) { return !waits(id); });
}

}  // namespace lockstep::internal
