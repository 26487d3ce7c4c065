#include "lockstep/comm/group/derived.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/group/believed.h"
#include "lockstep/comm/group/shape_message.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/comm/group/torch_errors.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr auto kTypes = static_cast<std::int64_t>(at::ScalarType::Undefined);  // as many there are

[[noreturn]] void refuse(const std::string& operation, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, operation + ": " + why, {.operation = operation});
}

// The first index outside of its dimension. indices: by sparse dimension, then by element.
std::optional<WrongIndex> wrong_index(const at::Tensor& indices, at::IntArrayRef sizes) {
  const at::Tensor in_order = indices.contiguous();
  const auto* index = in_order.const_data_ptr<std::int64_t>();
  for (std::int64_t dimension = 0; dimension < in_order.size(0); ++dimension) {
    for (std::int64_t i = 0; i < in_order.size(1); ++i, ++index) {
      if (*index < 0 || *index >= sizes[static_cast<std::size_t>(dimension)]) return WrongIndex{dimension, *index};
    }
  }
  return std::nullopt;
}

std::string text_of(const WrongIndex& wrong, at::IntArrayRef sizes) {
  return "index " + std::to_string(wrong.index) + " in dimension " + std::to_string(wrong.dimension) +
         ", which has size " + std::to_string(sizes[static_cast<std::size_t>(wrong.dimension)]);
}

using Shape = ShapeMessage;

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape.sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return std::string(at::toString(static_cast<at::ScalarType>(shape.type))) + " (" + text + ")";
}

// dense: how many of the sizes stand for memory; see decode_shape().
std::vector<Shape> exchange_shapes(const ProcessGroup& group, const std::string& operation, const Shape& mine,
                                   const CallOptions& options, std::size_t dense = kMostDimensions) {
  if (mine.sizes.size() > kMostDimensions) {
    refuse(operation, "the tensor has " + std::to_string(mine.sizes.size()) + " dimensions; at most " +
                          std::to_string(kMostDimensions) + " are supported");
  }
  const at::Tensor told = at::empty({static_cast<std::int64_t>(kShapeNumbers)}, at::kLong).zero_();
  encode(mine, {told.mutable_data_ptr<std::int64_t>(), kShapeNumbers});
  std::vector<Shape> shapes;
  const auto all = group.all_gather(told, options);
  const std::string what = "shape in " + operation;
  believed(group, [&] {
    for (const at::Tensor& each : all) {
      const std::span numbers(each.const_data_ptr<std::int64_t>(), kShapeNumbers);
      shapes.push_back(decode_shape(numbers, static_cast<int>(shapes.size()), kTypes, what, dense));
    }
  });
  return shapes;
}

// All but the first size. All ranks see the same shapes, so all refuse or none.
void require_alike(const std::string& operation, const std::vector<Shape>& shapes, const char* sizes_are) {
  const auto same = [&](const Shape& shape) {
    return shape.type == shapes[0].type && shape.sizes.size() == shapes[0].sizes.size() &&
           std::equal(shape.sizes.begin() + 1, shape.sizes.end(), shapes[0].sizes.begin() + 1);
  };
  if (std::all_of(shapes.begin(), shapes.end(), same)) return;
  std::string all;
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    all += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " gave " + text_of(shapes[rank]);
  }
  refuse(operation,
         std::string("dtype and ") + sizes_are + " must be the same on all ranks, except the first dimension: " + all);
}

void require_all_dense(at::TensorList tensors, std::string_view operation, const std::string& name) {
  for (std::size_t i = 0; i < tensors.size(); ++i) require_dense(tensors[i], operation, name + std::to_string(i));
}

std::vector<at::Tensor> split_rows(const at::Tensor& tensor, at::IntArrayRef splits, std::string_view operation) {
  return as_errors(operation, ErrorKind::invalid_argument, [&] { return tensor.detach().split_with_sizes(splits); });
}

// All ranks see the same, so all refuse or none.
void require_no_wrong_index(const std::string& operation, const std::vector<Shape>& shapes, at::IntArrayRef sizes) {
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    if (!shapes[rank].wrong) continue;
    const Origin origin("wrong index", static_cast<int>(rank));
    const std::size_t dimension = checked_index(shapes[rank].wrong->dimension, sizes.size(), "dimension", origin);
    refuse(operation, "rank " + std::to_string(rank) + " gave " +
                          text_of({static_cast<std::int64_t>(dimension), shapes[rank].wrong->index}, sizes));
  }
}

std::vector<at::Tensor> parts_of(const at::Tensor& tensor, std::vector<std::int64_t> splits, int ranks,
                                 const char* which) {
  require_dense(tensor, "all_to_all_single", std::string("the ") + which + " tensor");
  const std::int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    if (tensor.dim() == 0 || rows % ranks != 0) {
      refuse("all_to_all_single", std::string("the ") + which + " has " + std::to_string(rows) +
                                      " rows, which cannot be split equally over " + std::to_string(ranks) + " ranks");
    }
    splits.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  std::int64_t left = rows;  // below 0 once one is negative or too many
  for (const std::int64_t rows_of_rank : splits)
    left = rows_of_rank < 0 || rows_of_rank > left ? -1 : left - rows_of_rank;
  if (static_cast<int>(splits.size()) != ranks || left != 0) {
    refuse("all_to_all_single", std::string("the splits of the ") + which + " must be " + std::to_string(ranks) +
                                    " row counts that add up to its " + std::to_string(rows) + " rows");
  }
  return split_rows(tensor, splits, "all_to_all_single");
}

// That this machine has memory for all of them.
void check_memory(const std::vector<Shape>& shapes, std::size_t element, const std::string& operation) {
  std::size_t left = machine_memory_bytes();
  const std::string what = "shape in " + operation + " (with those of lower ranks)";
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    left -= checked_bytes(shapes[rank].sizes, element, left, "size", {what, static_cast<int>(rank)});
  }
}

// Empty tensors for what the others' rows will be.
std::vector<at::Tensor> gather_rows(const ProcessGroup& group, const std::string& operation, const at::Tensor& rows,
                                    const std::vector<Shape>& shapes, const CallOptions& options) {
  std::vector<at::Tensor> outputs;
  if (rows.is_cpu()) believed(group, [&] { check_memory(shapes, rows.element_size(), operation); });
  as_errors(operation, ErrorKind::invalid_argument, [&] {
    for (const Shape& shape : shapes) outputs.push_back(at::empty(shape.sizes, rows.options().requires_grad(false)));
  });
  const std::vector<at::Tensor> inputs(static_cast<std::size_t>(group.size()), rows);  // the same to every rank
  group.all_to_all(outputs, inputs, options);
  return outputs;
}

std::vector<std::int64_t> sizes_with(std::int64_t first, at::IntArrayRef rest) {
  std::vector<std::int64_t> sizes{first};
  sizes.insert(sizes.end(), rest.begin(), rest.end());
  return sizes;
}

}  // namespace

std::vector<at::Tensor> ProcessGroup::all_gather_v(const at::Tensor& input, const CallOptions& options) const {
  require_dense(input, "all_gather_v", "the input tensor");
  const CallOptions together = with_deadline(options);
  const at::Tensor rows = as_errors("all_gather_v", ErrorKind::invalid_argument,
                                    [&] { return input.dim() == 0 ? input.detach().reshape({1}) : input.detach(); });
  const auto shapes = exchange_shapes(*this, "all_gather_v",
                                      {static_cast<std::int64_t>(rows.scalar_type()), rows.sizes().vec()}, together);
  require_alike("all_gather_v", shapes, "dimensions");
  return gather_rows(*this, "all_gather_v", rows, shapes, together);
}

std::map<at::ScalarType, std::vector<at::Tensor>> internal::by_dtype(at::TensorList tensors) {
  std::map<at::ScalarType, std::vector<at::Tensor>> lists;
  for (const at::Tensor& tensor : tensors) lists[tensor.scalar_type()].push_back(tensor);
  return lists;
}

std::vector<std::vector<at::Tensor>> ProcessGroup::all_gather_coalesced(at::TensorList inputs,
                                                                        const CallOptions& options) const {
  require_all_dense(inputs, "all_gather", "input tensor ");
  std::vector<at::Tensor> joined;  // by rank, then by input
  std::vector<std::vector<at::Tensor>> outputs(static_cast<std::size_t>(size()));
  as_errors("all_gather", ErrorKind::invalid_argument, [&] {
    for (std::vector<at::Tensor>& of_rank : outputs) {
      for (const at::Tensor& input : inputs) {
        of_rank.push_back(at::empty(input.sizes(), input.options().requires_grad(false)));
        joined.push_back(of_rank.back());
      }
    }
  });
  all_gather_into(joined, inputs, options);
  return outputs;
}

void ProcessGroup::reduce_scatter_coalesced(at::TensorList outputs, at::TensorList inputs, ReduceOp op,
                                            const CallOptions& options) const {
  if (outputs.size() != inputs.size()) {
    refuse("reduce_scatter",
           std::to_string(inputs.size()) + " inputs for " + std::to_string(outputs.size()) + " outputs");
  }
  require_all_dense(inputs, "reduce_scatter", "input tensor ");
  require_all_dense(outputs, "reduce_scatter", "output tensor ");
  std::vector<std::vector<at::Tensor>> parts;  // by input, then by rank
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    if (input.dim() == 0 || input.size(0) % size() != 0 || input.numel() != outputs[i].numel() * size()) {
      refuse("reduce_scatter", "input " + std::to_string(i) + " has " + std::to_string(input.numel()) +
                                   " elements and output " + std::to_string(i) + " has " +
                                   std::to_string(outputs[i].numel()) + "; the input must be " +
                                   std::to_string(size()) + " outputs, joined along the first dimension");
    }
    const std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), input.size(0) / size());
    parts.push_back(split_rows(input, splits, "reduce_scatter"));
  }
  std::vector<at::Tensor> joined;  // by rank, then by input
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(size()); ++rank) {
    for (const std::vector<at::Tensor>& of_input : parts) joined.push_back(of_input[rank]);
  }
  reduce_scatter(outputs, joined, op, options);
}

void ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                     const std::vector<std::int64_t>& output_splits,
                                     const std::vector<std::int64_t>& input_splits, const CallOptions& options) const {
  all_to_all(parts_of(output, output_splits, size(), "output"), parts_of(input, input_splits, size(), "input"),
             options);
}

namespace {

template <class Factor>
void multiply_each(at::TensorList tensors, const Factor& factor) {
  constexpr std::string_view kOperation = "premul_sum";
  require_all_dense(tensors, kOperation, "tensor ");
  std::vector<MemorySpan> spans;
  if (const auto pair = find_overlap(tensors, spans)) {
    refuse(std::string(kOperation), "tensors " + std::to_string(pair->first) + " and " + std::to_string(pair->second) +
                                        " overlap in memory, so elements would be multiplied twice");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!overlaps_itself(tensors[i])) continue;
    refuse(std::string(kOperation), "tensor " + std::to_string(i) + " has elements that share memory; clone() it");
  }
  as_errors(kOperation, ErrorKind::invalid_argument, [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (const at::Tensor& tensor : tensors) {
      tensor.mul_(factor);
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  });
}

void require_factor(const at::Tensor& factor) {
  if (!factor.defined() || factor.numel() != 1) refuse("premul_sum", "the factor must be a tensor of one element");
}

}  // namespace

void internal::premultiply(at::TensorList tensors, const at::Tensor& factor) {
  require_factor(factor);
  multiply_each(tensors, factor);
}

void internal::premultiply(at::TensorList tensors, double factor) { multiply_each(tensors, factor); }

void ProcessGroup::all_reduce_premul_sum(at::TensorList tensors, const at::Tensor& factor,
                                         const CallOptions& options) const {
  premultiply(tensors, factor);
  all_reduce(tensors, ReduceOp::sum, options);
}

void ProcessGroup::all_reduce_premul_sum(at::TensorList tensors, double factor, const CallOptions& options) const {
  premultiply(tensors, factor);
  all_reduce(tensors, ReduceOp::sum, options);
}

at::Tensor ProcessGroup::all_reduce_sparse(const at::Tensor& sparse, const CallOptions& options) const {
  const std::string operation = "all_reduce_sparse";
  if (!sparse.defined() || sparse.layout() != at::kSparse) refuse(operation, "the tensor is not sparse (COO)");
  const std::optional<WrongIndex> wrong = wrong_index(sparse._indices().cpu(), sparse.sizes());
  const at::Tensor mine =
      wrong ? sparse.detach()
            : as_errors(operation, ErrorKind::invalid_argument, [&] { return sparse.detach().coalesce(); });
  const at::Tensor indices = mine._indices().transpose(0, 1), values = mine._values();
  // Type and sizes, behind what they agree on: how many dimensions are sparse, and of this rank how many elements.
  Shape shape{static_cast<std::int64_t>(values.scalar_type()), sizes_with(mine.sparse_dim(), mine.sizes()), wrong};
  shape.sizes.insert(shape.sizes.begin(), values.size(0));
  const CallOptions together = with_deadline(options);
  const std::vector<Shape> told = exchange_shapes(*this, operation, shape, together, 2);
  require_alike(operation, told, "(elements, sparse dimensions, sizes)");
  require_no_wrong_index(operation, told, mine.sizes());
  std::vector<Shape> of_indices, of_values;
  for (const Shape& theirs : told) {
    const std::int64_t elements = theirs.sizes[0];
    of_indices.push_back({0, {elements, mine.sparse_dim()}});
    of_values.push_back({0, sizes_with(elements, values.sizes().slice(1))});
  }
  const auto all_indices = gather_rows(*this, operation, indices, of_indices, together);
  const auto all_values = gather_rows(*this, operation, values, of_values, together);
  at::Tensor sum;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const at::Tensor theirs_by_dimension = all_indices[rank].transpose(0, 1);
    believed(*this, [&] {
      const auto damaged = wrong_index(theirs_by_dimension.cpu(), mine.sizes());
      if (damaged) throw_corrupt({"part of " + operation, static_cast<int>(rank)}, text_of(*damaged, mine.sizes()));
    });
    sum = as_errors(operation, ErrorKind::internal, [&] {
      const at::Tensor theirs = at::_sparse_coo_tensor_unsafe(theirs_by_dimension, all_values[rank], mine.sizes(),
                                                              mine.options().requires_grad(false), true);
      return sum.defined() ? sum.add(theirs).coalesce() : theirs;
    });
  }
  return sum;
}

std::vector<Work> GroupHandle::batch_isend_irecv(const std::vector<MessageCall>& calls,
                                                 const CallOptions& options) const {
  for (std::size_t i = 0; i < calls.size(); ++i) {  // before any of them is sent
    const bool receives = calls[i].kind == MessageCall::Kind::receive;
    const std::string name = "tensor " + std::to_string(i);
    require_dense(calls[i].tensor, "batch_isend_irecv", name);
    if (receives && overlaps_itself(calls[i].tensor)) {
      refuse("batch_isend_irecv", name + " has elements that share memory, so it cannot be received into; clone() it");
    }
    if (calls[i].peer >= size() || calls[i].peer < (receives ? kAnySource : 0)) {
      refuse("batch_isend_irecv", "call " + std::to_string(i) + ": " + std::to_string(calls[i].peer) +
                                      " is not a rank of this group of " + std::to_string(size()) + " ranks");
    }
  }
  std::vector<Work> works;
  for (const MessageCall& call : calls) {
    works.push_back(call.kind == MessageCall::Kind::send ? send_async(call.tensor, call.peer, call.tag, options)
                                                         : recv_async(call.tensor, call.peer, call.tag, options));
  }
  return works;
}

}  // namespace lockstep
