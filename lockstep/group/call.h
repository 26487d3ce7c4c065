// A Call is one collective together with the tensors that it works on: what a ProcessGroup runs or queues.
// tensors -> Call -> engine. Making one checks the tensors: Error{invalid_argument}, before anything is sent.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/collective/engine.h"
#include "lockstep/group/tensor_segments.h"

namespace lockstep {

struct Call {
  Collective collective;
  std::optional<TensorSegments> input;
  std::optional<TensorSegments> output;
  // Of all_to_all: elements to and from every rank. run() tells them to all ranks and compares them.
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> received;
  Deadline deadline = Deadline::never();

  void run(Engine& engine);
};

// all_reduce, reduce, broadcast.
Call call_in_place(OpKind kind, at::TensorList tensors, Memory memory);
// The others. Lists are joined; with a root, the list that only the root needs is empty elsewhere.
Call call_between(OpKind kind, at::TensorList outputs, at::TensorList inputs, Memory memory);

}  // namespace lockstep
