#include <ATen/ATen.h>

#include "backend.h"
#include "lockstep/base/error.h"
#include "operations.h"

namespace lockstep::python {
namespace {

using c10d::OpType;

const at::Tensor& single(const std::vector<at::Tensor>& tensors, const char* operation) {
  if (tensors.size() == 1) return tensors.front();
  C10_THROW_ERROR(ValueError, std::string(operation) + " takes one tensor, not " + std::to_string(tensors.size()));
}

const std::vector<at::Tensor>& single(const std::vector<std::vector<at::Tensor>>& lists, const char* operation) {
  if (lists.size() == 1) return lists.front();
  C10_THROW_ERROR(ValueError,
                  std::string(operation) + " takes one list of tensors, not " + std::to_string(lists.size()));
}

void require_as_many(std::size_t count, std::size_t wanted, const char* operation) {
  if (count == wanted) return;
  C10_THROW_ERROR(ValueError, std::string(operation) + ": " + std::to_string(count) + " entries, expected " +
                                  std::to_string(wanted));
}

// Consecutive parts of a tensor along its first dimension; equal ones if no sizes are given.
std::vector<at::Tensor> cut(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes, int ranks,
                            const char* operation) {
  if (!sizes.empty()) {
    require_as_many(sizes.size(), static_cast<std::size_t>(ranks), operation);
    return tensor.split_with_sizes(sizes);
  }
  if (tensor.size(0) % ranks != 0) {
    C10_THROW_ERROR(ValueError, std::string(operation) + ": " + std::to_string(tensor.size(0)) +
                                    " rows cannot be split equally over " + std::to_string(ranks) + " ranks");
  }
  return tensor.split_with_sizes(std::vector<std::int64_t>(static_cast<std::size_t>(ranks), tensor.size(0) / ranks));
}

}  // namespace

Backend::WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  require_as_many(tensors.empty() ? 0 : 1, 1, "all_reduce");
  return launch(OpType::ALLREDUCE, "lockstep:all_reduce", tensors, tensors,
                [&] { return all_reduce(*group_, tensors, options.reduceOp, call_options(options)); });
}

Backend::WorkPtr Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  require_as_many(tensors.empty() ? 0 : 1, 1, "all_reduce_coalesced");
  return launch(OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce", tensors, tensors,
                [&] { return all_reduce(*group_, tensors, options.reduceOp, call_options(options)); });
}

Backend::WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = single(tensors, "broadcast");
  return launch(OpType::BROADCAST, "lockstep:broadcast", tensors, tensors, [&] {
    return python::broadcast(*group_, tensor, static_cast<int>(options.rootRank), call_options(options));
  });
}

Backend::WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = single(tensors, "reduce");
  return launch(OpType::REDUCE, "lockstep:reduce", tensors, tensors, [&] {
    return python::reduce(*group_, tensor, static_cast<int>(options.rootRank), options.reduceOp, call_options(options));
  });
}

Backend::WorkPtr Backend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const at::Tensor& input = single(inputs, "all_gather");
  const Tensors& output = single(outputs, "all_gather");
  return launch(OpType::ALLGATHER, "lockstep:all_gather", inputs, output,
                [&] { return all_gather(*group_, output, input, call_options(options)); });
}

Backend::WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  return launch(OpType::_ALLGATHER_BASE, "lockstep:_all_gather_base", {input}, {output},
                [&] { return all_gather_into(*group_, output, input, call_options(options)); });
}

Backend::WorkPtr Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  require_as_many(outputs.size(), static_cast<std::size_t>(getSize()), "all_gather_coalesced");
  Tensors all;
  for (const Tensors& of_rank : outputs) {
    require_as_many(of_rank.size(), inputs.size(), "all_gather_coalesced");
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  return launch(OpType::ALLGATHER_COALESCED, "lockstep:all_gather", inputs, all, [&] {
    std::vector<Started> parts;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensors of_input;
      for (const Tensors& of_rank : outputs) of_input.push_back(of_rank[i]);
      parts.push_back(all_gather(*group_, of_input, inputs[i], call_options(options)));
    }
    return combine(std::move(parts));
  });
}

Backend::WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  require_as_many(outputs.size(), inputs.size(), "all_gather_into_tensor");
  return launch(OpType::ALLGATHER_COALESCED, "lockstep:_all_gather_base", inputs, outputs, [&] {
    std::vector<Started> parts;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      parts.push_back(all_gather_into(*group_, outputs[i], inputs[i], call_options(options)));
    }
    return combine(std::move(parts));
  });
}

Backend::WorkPtr Backend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = single(inputs, "gather");
  const bool root = getRank() == options.rootRank;
  require_as_many(outputs.size(), root ? 1 : 0, "gather");
  const Tensors output = root ? outputs.front() : Tensors();
  return launch(OpType::GATHER, "lockstep:gather", inputs, output, [&] {
    return python::gather(*group_, output, input, static_cast<int>(options.rootRank), call_options(options));
  });
}

Backend::WorkPtr Backend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = single(outputs, "scatter");
  const bool root = getRank() == options.rootRank;
  require_as_many(inputs.size(), root ? 1 : 0, "scatter");
  const Tensors input = root ? inputs.front() : Tensors();
  return launch(OpType::SCATTER, "lockstep:scatter", input, outputs, [&] {
    return python::scatter(*group_, output, input, static_cast<int>(options.rootRank), call_options(options));
  });
}

Backend::WorkPtr Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = single(outputs, "reduce_scatter");
  const Tensors& input = single(inputs, "reduce_scatter");
  require_as_many(input.size(), static_cast<std::size_t>(getSize()), "reduce_scatter");
  for (const at::Tensor& part : input) {
    if (part.numel() == output.numel()) continue;
    C10_THROW_ERROR(ValueError, "reduce_scatter: every input must have as many elements as the output");
  }
  return launch(OpType::REDUCE_SCATTER, "lockstep:reduce_scatter", input, outputs, [&] {
    return python::reduce_scatter(*group_, output, input, options.reduceOp, call_options(options));
  });
}

Backend::WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  return launch(OpType::_REDUCE_SCATTER_BASE, "lockstep:_reduce_scatter_base", {input}, {output}, [&] {
    return python::reduce_scatter(*group_, output, {input}, options.reduceOp, call_options(options));
  });
}

Backend::WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::ReduceScatterOptions& options) {
  require_as_many(outputs.size(), inputs.size(), "reduce_scatter_tensor");
  return launch(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "lockstep:_reduce_scatter_base", inputs, outputs, [&] {
    std::vector<Started> parts;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      parts.push_back(
          python::reduce_scatter(*group_, outputs[i], {inputs[i]}, options.reduceOp, call_options(options)));
    }
    return combine(std::move(parts));
  });
}

Backend::WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                                        std::vector<std::int64_t>& input_sizes, const c10d::AllToAllOptions& options) {
  return launch(OpType::ALLTOALL_BASE, "lockstep:all_to_all", {input}, {output}, [&] {
    return all_to_all(*group_, cut(output, output_sizes, getSize(), "all_to_all"),
                      cut(input, input_sizes, getSize(), "all_to_all"), call_options(options));
  });
}

Backend::WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return launch(OpType::ALLTOALL, "lockstep:all_to_all", inputs, outputs,
                [&] { return all_to_all(*group_, outputs, inputs, call_options(options)); });
}

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single(tensors, "send");
  return launch(OpType::SEND, "lockstep:send", tensors, {},
                [&] { return python::send(*group_, tensor, peer, tag, within(kNoTimeout)); });
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = single(tensors, "recv");
  return launch(OpType::RECV, "lockstep:recv", tensors, tensors,
                [&] { return receive(*group_, tensor, peer, tag, within(kNoTimeout)); });
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  const at::Tensor& tensor = single(tensors, "recv");
  return launch(OpType::RECVANYSOURCE, "lockstep:recvAnySource", tensors, tensors,
                [&] { return receive(*group_, tensor, kAnySource, tag, within(kNoTimeout)); });
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  return launch(OpType::BARRIER, "lockstep:barrier", {}, {},
                [&] { return Started{.work = group_->barrier_async(call_options(options))}; });
}

}  // namespace lockstep::python
