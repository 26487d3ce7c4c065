#include "lockstep/comm/group/call.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {
namespace {

using Flow = TensorSegments::Flow;
using Use = TensorSegments::Use;

// Elements that a rank can send to all or expect from all: their bytes can be counted.
constexpr std::size_t kMostCounted = std::numeric_limits<std::int64_t>::max() / 16;

[[noreturn]] void refuse(OpKind kind, const std::string& why) {
  const std::string operation(to_string(kind));
  throw Error(ErrorKind::invalid_argument, operation + ": " + why, {.operation = operation});
}

void append_counts(at::TensorList tensors, DType dtype, std::vector<std::uint64_t>& counts) {
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.nbytes() / element_size(dtype));
}

void check_counts(const std::vector<std::uint64_t>& told, int size) {
  const auto n = static_cast<std::size_t>(size);
  for (std::size_t i = 0; i < told.size(); ++i) {
    checked_size(told[i], kMostCounted / n, "number of elements",
                 {"counts for all_to_all", static_cast<int>(i / (2 * n))});
  }
  for (std::size_t from = 0; from < n; ++from) {
    for (std::size_t to = 0; to < n; ++to) {
      const std::uint64_t sent = told[from * 2 * n + to], expected = told[to * 2 * n + n + from];
      if (sent == expected) continue;
      refuse(OpKind::all_to_all, "rank " + std::to_string(from) + " sends " + std::to_string(sent) +
                                     " elements to rank " + std::to_string(to) + ", which expects " +
                                     std::to_string(expected));
    }
  }
}

Flow flow_of_outputs(const OpTraits& op, bool is_root) {
  if (!op.is_in_place()) return Flow::write;
  if (!op.reduces) return is_root ? Flow::read : Flow::replace;
  return is_root || !op.has_root() ? Flow::update : Flow::spoil;
}

}  // namespace

void Call::set(OpKind kind, at::TensorList outputs, at::TensorList inputs, const Caller& caller) {
  clear();
  collective_.kind = kind;
  collective_.root = caller.root;
  const OpTraits& op = traits_of(kind);
  if (!op.moves_data()) return;
  const Use use = op.reduces ? Use::reduce : Use::move;
  output_.assign(outputs, to_string(kind), use, flow_of_outputs(op, caller.rank == caller.root), caller.memory);
  if (op.is_in_place()) {
    collective_.dtype = output_.dtype();
    collective_.count = output_.count();
    return;
  }
  input_.assign(inputs, to_string(kind), use, Flow::read, caller.memory);
  if (!outputs.empty() && !inputs.empty() && outputs.front().scalar_type() != inputs.front().scalar_type()) {
    refuse(kind, "input is " + std::string(to_string(input_.dtype())) + ", but output is " +
                     std::string(to_string(output_.dtype())));
  }
  keep_apart(caller.rank);
  collective_.dtype = inputs.empty() ? output_.dtype() : input_.dtype();
  if (op.input == Extent::counted) {
    mine_.clear();
    append_counts(inputs, collective_.dtype, mine_);
    append_counts(outputs, collective_.dtype, mine_);
    return;
  }
  collective_.count = op.takes_parts() ? output_.count() : input_.count();
}

void Call::set(const Collective& collective, std::shared_ptr<const void> keeps) {
  clear();
  collective_ = collective;
  input_.assign(collective.input);
  output_.assign(collective.output);
  keeps_ = std::move(keeps);
}

// all_gather's input may be this rank's part of the output, and reduce_scatter's output its part of the input.
void Call::keep_apart(int rank) {
  using Part = TensorSegments::Part;
  const OpTraits& op = traits_of(collective_.kind);
  const bool gathers = op.output == Extent::all, scatters = op.input == Extent::all;
  const TensorSegments& part = gathers ? input_ : output_;
  const std::size_t offset = part.count() * element_size(part.dtype()) * static_cast<std::size_t>(rank);
  input_.keep_apart_from(output_, gathers ? Part::inputs : scatters ? Part::outputs : Part::none, offset);
}

void Call::check_lists(int size) const {
  if (traits_of(collective_.kind).input != Extent::counted) return;
  const auto n = static_cast<std::size_t>(size);
  const std::size_t inputs = input_.segments().size(), outputs = output_.segments().size();
  if (inputs == n && outputs == n) return;
  refuse(collective_.kind, std::to_string(inputs) + " inputs and " + std::to_string(outputs) + " outputs; expected " +
                               std::to_string(n) + " of each, one for every rank");
}

void Call::check(int rank, int size) {
  check_lists(size);
  if (traits_of(collective_.kind).input == Extent::counted) return;  // its counts are compared
  collective_.input = input_.segments();
  collective_.output = output_.segments();
  check_arguments(collective_, rank, size);
}

CarrierCall Call::for_communicator(std::byte* input, std::byte* output) const {
  const std::span counts(mine_);
  return {.kind = collective_.kind,
          .reduce = collective_.reduce,
          .dtype = collective_.dtype,
          .root = collective_.root,
          .count = collective_.count,
          .input = input,
          .output = output,
          .sent = counts.first(counts.size() / 2),
          .received = counts.subspan(counts.size() / 2)};
}

// What every rank sends to every rank. All ranks get the same matrix, or the same error.
void Call::agree_on_counts(Engine& engine) {
  const auto n = static_cast<std::size_t>(engine.size());
  if (comparison_ == nullptr) check_lists(engine.size());
  told_.resize(2 * n * n);
  const Segment from{reinterpret_cast<std::byte*>(mine_.data()), mine_.size() * sizeof(std::uint64_t)};
  const Segment to{reinterpret_cast<std::byte*>(told_.data()), told_.size() * sizeof(std::uint64_t)};
  engine.run({.kind = OpKind::all_gather,
              .dtype = DType::i64,
              .count = 2 * n,
              .name = collective_.name,
              .number = collective_.number,
              .line = collective_.line,
              .input = {&from, 1},
              .output = {&to, 1},
              .ticket = comparison_ == nullptr ? FlightTicket() : collective_.ticket,
              .as = comparison_ == nullptr ? nullptr : &collective_},
             deadline_);
  check_counts(told_, engine.size());
  counts_.resize(n * n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    std::memcpy(&counts_[rank * n], &told_[rank * 2 * n], n * sizeof(std::uint64_t));
  }
}

void Call::compare_for(std::shared_ptr<Comparison> comparison, const Call& of) {
  clear();
  comparison_ = std::move(comparison);
  collective_ = of.collective_;
  collective_.input = collective_.output = {};
  mine_ = of.mine_;
  deadline_ = of.deadline_;
}

void Call::compare(Engine& engine) {
  if (traits_of(collective_.kind).input == Extent::counted) {
    agree_on_counts(engine);
  } else {
    engine.run({.name = collective_.name, .ticket = collective_.ticket, .as = &collective_}, deadline_);
  }
  comparison_->agreed();
}

void Call::run(Engine& engine) {
  if (comparison_ != nullptr) return compare(engine);
  input_.await();
  output_.await();
  collective_.input = input_.segments();
  collective_.output = output_.segments();
  if (traits_of(collective_.kind).input == Extent::counted) {
    agree_on_counts(engine);
    collective_.counts = counts_;
  }
  engine.run(collective_, deadline_);
  done_ = output_.copy_back();
}

void Call::finish_on_streams() {
  done_ = output_.copy_back();
  input_.note_uses();
  output_.note_uses();
}

void Call::run_aside(Engine& engine) {
  const OnOwnStreams on_own_streams(output_.queued().devices());
  run(engine);
}

void Call::clear() {
  collective_ = {};
  input_.clear();
  output_.clear();
  keeps_.reset();
  comparison_.reset();
  done_.clear();
}

}  // namespace lockstep::internal
