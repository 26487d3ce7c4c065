#include "lockstep/group/composed.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostDimensions = 64;  // of a tensor in torch

[[noreturn]] void refuse(const std::string& operation, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, operation + ": " + why, {.operation = operation});
}

// What one rank gave: its type and its sizes; fixed in length, so that ranks can tell each other without agreeing
// first.
struct Shape {
  std::int64_t type = 0;
  std::vector<std::int64_t> sizes;

  friend bool operator==(const Shape&, const Shape&) = default;
};

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape.sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return std::string(at::toString(static_cast<at::ScalarType>(shape.type))) + " (" + text + ")";
}

std::vector<Shape> tell_shapes(const ProcessGroup& group, const std::string& operation, const Shape& mine,
                               const CallOptions& options) {
  if (mine.sizes.size() > kMostDimensions) {
    refuse(operation, std::to_string(mine.sizes.size()) + " dimensions, at most " + std::to_string(kMostDimensions) +
                          " can be told");
  }
  const at::Tensor told = at::empty({static_cast<std::int64_t>(kMostDimensions + 2)}, at::kLong).zero_();
  auto* numbers = told.mutable_data_ptr<std::int64_t>();
  numbers[0] = mine.type;
  numbers[1] = static_cast<std::int64_t>(mine.sizes.size());
  std::copy(mine.sizes.begin(), mine.sizes.end(), numbers + 2);
  std::vector<Shape> shapes;
  for (const at::Tensor& each : group.all_gather(told, options)) {
    const auto* theirs = each.const_data_ptr<std::int64_t>();
    shapes.push_back({theirs[0], {theirs + 2, theirs + 2 + theirs[1]}});
  }
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
         std::string("the type and ") + sizes_are + " must be the same on all ranks, except the first: " + all);
}

std::vector<at::Tensor> parts_of(const at::Tensor& tensor, std::vector<std::int64_t> splits, int ranks,
                                 const char* which) {
  const std::int64_t rows = tensor.dim() == 0 ? 0 : tensor.size(0);
  if (splits.empty()) {
    if (tensor.dim() == 0 || rows % ranks != 0) {
      refuse("all_to_all_single", std::string("the ") + which + " has " + std::to_string(rows) +
                                      " rows, which cannot be split equally over " + std::to_string(ranks) + " ranks");
    }
    splits.assign(static_cast<std::size_t>(ranks), rows / ranks);
  }
  const bool is_negative = std::any_of(splits.begin(), splits.end(), [](std::int64_t split) { return split < 0; });
  if (static_cast<int>(splits.size()) != ranks || is_negative ||
      std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) != rows) {
    refuse("all_to_all_single", std::string("the splits of the ") + which + " must be " + std::to_string(ranks) +
                                    " numbers of rows that add up to its " + std::to_string(rows));
  }
  return tensor.split_with_sizes(splits);
}

// Empty tensors for what the others' rows will be.
std::vector<at::Tensor> gather_rows(const ProcessGroup& group, const at::Tensor& rows, const std::vector<Shape>& shapes,
                                    const CallOptions& options) {
  std::vector<at::Tensor> outputs;
  for (const Shape& shape : shapes) outputs.push_back(at::empty(shape.sizes, rows.options().requires_grad(false)));
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

std::vector<at::Tensor> all_gather_ragged(const ProcessGroup& group, const at::Tensor& input,
                                          const CallOptions& options) {
  if (!input.defined() || input.layout() != at::kStrided)
    refuse("all_gather_ragged", "the input is not a dense tensor");
  const at::Tensor rows = (input.dim() == 0 ? input.reshape({1}) : input).detach().contiguous();
  const auto shapes = tell_shapes(group, "all_gather_ragged",
                                  {static_cast<std::int64_t>(rows.scalar_type()), rows.sizes().vec()}, options);
  require_alike("all_gather_ragged", shapes, "the dimensions");
  return gather_rows(group, rows, shapes, options);
}

std::vector<std::vector<at::Tensor>> all_gather_coalesced(const ProcessGroup& group, at::TensorList inputs,
                                                          const CallOptions& options) {
  std::vector<at::Tensor> joined;  // by rank, then by input
  std::vector<std::vector<at::Tensor>> outputs(static_cast<std::size_t>(group.size()));
  for (std::vector<at::Tensor>& of_rank : outputs) {
    for (const at::Tensor& input : inputs) {
      of_rank.push_back(at::empty(input.sizes(), input.options().requires_grad(false)));
      joined.push_back(of_rank.back());
    }
  }
  group.all_gather_into(joined, inputs, options);
  return outputs;
}

void reduce_scatter_coalesced(const ProcessGroup& group, at::TensorList outputs, at::TensorList inputs, ReduceOp op,
                              const CallOptions& options) {
  if (outputs.size() != inputs.size()) {
    refuse("reduce_scatter",
           std::to_string(inputs.size()) + " inputs for " + std::to_string(outputs.size()) + " outputs");
  }
  std::vector<std::vector<at::Tensor>> parts;  // by input, then by rank
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    if (input.dim() == 0 || input.size(0) % group.size() != 0 || input.numel() != outputs[i].numel() * group.size()) {
      refuse("reduce_scatter", "input " + std::to_string(i) + " has " + std::to_string(input.numel()) +
                                   " elements and output " + std::to_string(i) + " " +
                                   std::to_string(outputs[i].numel()) + ", where the first must be " +
                                   std::to_string(group.size()) + " of the second, along its first dimension");
    }
    const std::vector<std::int64_t> splits(static_cast<std::size_t>(group.size()), input.size(0) / group.size());
    parts.push_back(input.split_with_sizes(splits));
  }
  std::vector<at::Tensor> joined;  // by rank, then by input
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(group.size()); ++rank) {
    for (const std::vector<at::Tensor>& of_input : parts) joined.push_back(of_input[rank]);
  }
  group.reduce_scatter(outputs, joined, op, options);
}

void all_to_all_single(const ProcessGroup& group, const at::Tensor& output, const at::Tensor& input,
                       std::vector<std::int64_t> output_splits, std::vector<std::int64_t> input_splits,
                       const CallOptions& options) {
  group.all_to_all(parts_of(output, std::move(output_splits), group.size(), "output"),
                   parts_of(input, std::move(input_splits), group.size(), "input"), options);
}

void premultiply(at::TensorList tensors, const at::Tensor& factor) {
  if (!factor.defined() || factor.numel() != 1) refuse("premul_sum", "the factor is not a tensor of one element");
  for (const at::Tensor& tensor : tensors) tensor.detach().mul_(factor.detach());
}

void premultiply(at::TensorList tensors, double factor) {
  for (const at::Tensor& tensor : tensors) tensor.detach().mul_(factor);
}

void all_reduce_premul_sum(const ProcessGroup& group, at::TensorList tensors, const at::Tensor& factor,
                           const CallOptions& options) {
  premultiply(tensors, factor);
  group.all_reduce(tensors, ReduceOp::sum, options);
}

void all_reduce_premul_sum(const ProcessGroup& group, at::TensorList tensors, double factor,
                           const CallOptions& options) {
  premultiply(tensors, factor);
  group.all_reduce(tensors, ReduceOp::sum, options);
}

at::Tensor all_reduce_sparse(const ProcessGroup& group, const at::Tensor& sparse, const CallOptions& options) {
  if (!sparse.defined() || sparse.layout() != at::kSparse)
    refuse("all_reduce_sparse", "the tensor is not sparse (COO)");
  const at::Tensor mine = sparse.detach().coalesce();
  const at::Tensor indices = mine.indices().transpose(0, 1).contiguous(), values = mine.values().contiguous();
  // Type and sizes, behind what they agree on: how many dimensions are sparse, and of this rank how many elements.
  Shape shape{static_cast<std::int64_t>(values.scalar_type()), sizes_with(mine.sparse_dim(), mine.sizes())};
  shape.sizes.insert(shape.sizes.begin(), values.size(0));
  const std::vector<Shape> told = tell_shapes(group, "all_reduce_sparse", shape, options);
  require_alike("all_reduce_sparse", told, "(elements, sparse dimensions, all dimensions)");
  std::vector<Shape> of_indices, of_values;
  for (const Shape& theirs : told) {
    const std::int64_t elements = theirs.sizes[0];
    of_indices.push_back({0, {elements, mine.sparse_dim()}});
    of_values.push_back({0, sizes_with(elements, values.sizes().slice(1))});
  }
  const auto all_indices = gather_rows(group, indices, of_indices, options);
  const auto all_values = gather_rows(group, values, of_values, options);
  at::Tensor sum;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const at::Tensor theirs = at::_sparse_coo_tensor_unsafe(all_indices[rank].transpose(0, 1), all_values[rank],
                                                            mine.sizes(), mine.options().requires_grad(false), true);
    sum = sum.defined() ? sum.add(theirs).coalesce() : theirs;
  }
  return sum;
}

std::vector<Work> batch_isend_irecv(const ProcessGroup& group, const std::vector<MessageCall>& calls,
                                    const CallOptions& options) {
  std::vector<Work> works;
  for (const MessageCall& call : calls) {
    works.push_back(call.kind == MessageCall::Kind::send ? group.send_async(call.tensor, call.peer, call.tag, options)
                                                         : group.recv_async(call.tensor, call.peer, call.tag, options));
  }
  return works;
}

}  // namespace lockstep
