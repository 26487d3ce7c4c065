#include "lockstep/group/call.h"

#include <cstring>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Flow = TensorSegments::Flow;
using Use = TensorSegments::Use;

[[noreturn]] void refuse(OpKind kind, const std::string& why) {
  ErrorDetail detail;
  detail.operation = std::string(to_string(kind));
  throw Error(ErrorKind::invalid_argument, detail.operation + ": " + why, detail);
}

std::vector<std::uint64_t> counts_of(at::TensorList tensors, DType dtype) {
  std::vector<std::uint64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.nbytes() / element_size(dtype));
  return counts;
}

void check_counts(const std::vector<std::uint64_t>& told, int size) {
  const auto n = static_cast<std::size_t>(size);
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

// What every rank sends to every rank. All ranks get the same matrix, or the same error.
std::vector<std::uint64_t> agree_on_counts(Engine& engine, const Call& call) {
  const auto n = static_cast<std::size_t>(engine.size());
  std::vector<std::uint64_t> mine = call.sent, told(2 * n * n);
  mine.insert(mine.end(), call.received.begin(), call.received.end());
  const Segment from{reinterpret_cast<std::byte*>(mine.data()), mine.size() * 8};
  const Segment to{reinterpret_cast<std::byte*>(told.data()), told.size() * 8};
  engine.run({.kind = OpKind::all_gather,
              .dtype = DType::i64,
              .count = 2 * n,
              .name = call.collective.name,
              .input = {&from, 1},
              .output = {&to, 1}},
             call.deadline);
  check_counts(told, engine.size());
  std::vector<std::uint64_t> matrix(n * n);
  for (std::size_t rank = 0; rank < n; ++rank) std::memcpy(&matrix[rank * n], &told[rank * 2 * n], n * 8);
  return matrix;
}

}  // namespace

void Call::run(Engine& engine) {
  if (input) collective.input = input->segments();
  if (output) collective.output = output->segments();
  std::vector<std::uint64_t> counts;
  if (collective.kind == OpKind::all_to_all) {
    const auto n = static_cast<std::size_t>(engine.size());
    if (sent.size() != n || received.size() != n) {
      refuse(collective.kind, std::to_string(sent.size()) + " inputs and " + std::to_string(received.size()) +
                                  " outputs, where " + std::to_string(n) + " ranks need one of each for every rank");
    }
    counts = agree_on_counts(engine, *this);
    collective.counts = counts;
  }
  engine.run(collective, deadline);
  if (output) output->copy_back();
}

Call call_in_place(OpKind kind, at::TensorList tensors, Memory memory) {
  Call call;
  call.output.emplace(tensors, to_string(kind), kind == OpKind::broadcast ? Use::move : Use::reduce, Flow::update,
                      memory);
  call.collective.kind = kind;
  call.collective.dtype = call.output->dtype();
  call.collective.count = call.output->count();
  return call;
}

Call call_between(OpKind kind, at::TensorList outputs, at::TensorList inputs, Memory memory) {
  const Use use = kind == OpKind::reduce_scatter ? Use::reduce : Use::move;
  Call call;
  call.output.emplace(outputs, to_string(kind), use, Flow::write, memory);
  call.input.emplace(inputs, to_string(kind), use, Flow::read, memory);
  if (!outputs.empty() && !inputs.empty() && outputs.front().scalar_type() != inputs.front().scalar_type()) {
    refuse(kind, "input is " + std::string(to_string(call.input->dtype())) + " where output is " +
                     std::string(to_string(call.output->dtype())));
  }
  call.collective.kind = kind;
  call.collective.dtype = inputs.empty() ? call.output->dtype() : call.input->dtype();
  if (kind == OpKind::all_to_all) {
    call.sent = counts_of(inputs, call.collective.dtype);
    call.received = counts_of(outputs, call.collective.dtype);
    return call;
  }
  const bool by_output = kind == OpKind::reduce_scatter || kind == OpKind::scatter;
  call.collective.count = by_output ? call.output->count() : call.input->count();
  return call;
}

}  // namespace lockstep
