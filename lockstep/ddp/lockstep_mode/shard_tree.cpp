#include "lockstep/ddp/lockstep_mode/shard_tree.h"

#include <ATen/Parallel.h>

#include <map>
#include <utility>

#include "lockstep/collective/reduce.h"
#include "lockstep/group/ownership.h"
#include "lockstep/group/tensor_segments.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGrain = 32 * 1024;  // elements for one thread

double mean_of_two(double left, double right) { return (left + right) / 2; }

// left = (left + right) / 2, by the very function that reduces ranks.
void take_mean(const at::Tensor& left, const at::Tensor& right) {
  const DType dtype = dtype_of(left, "lockstep mode");
  const std::size_t element = element_size(dtype);
  auto* const target = static_cast<std::byte*>(left.data_ptr());
  const auto* const other = static_cast<const std::byte*>(right.const_data_ptr());
  at::parallel_for(0, left.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t offset = static_cast<std::size_t>(begin) * element;
    std::byte* const output = target + offset;
    const std::byte* const inputs[] = {output, other + offset};
    reduce_rows({&output, 1}, inputs, static_cast<std::size_t>(end - begin), dtype, ReduceOp::avg, 2);
  });
}

ShardResult mean_of(ShardResult left, const ShardResult& right, const NeutralElement& neutral_element) {
  left.loss = mean_of_two(left.loss, right.loss);
  for (std::size_t i = 0; i < left.tensors.size(); ++i) {
    if (!left.tensors[i].defined() && !right.tensors[i].defined()) continue;
    if (!left.tensors[i].defined()) left.tensors[i] = neutral_element(i);
    take_mean(left.tensors[i], right.tensors[i].defined() ? right.tensors[i] : neutral_element(i));
  }
  if (left.conflict < 0) left.conflict = right.conflict;
  for (std::size_t i = 0; i < left.hashes.size() && left.conflict < 0; ++i) {
    if (left.hashes[i] != right.hashes[i]) left.conflict = static_cast<int>(i);
  }
  return left;
}

// The elements in memory order.
at::Tensor flat(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

// In shared memory a collective works in place if all of its operands lie there and other ranks may write to them.
// Operands that lie elsewhere, or whose memory has another holder, are copied there.
class InSharedMemory {
 public:
  InSharedMemory(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
    std::int64_t count = 0;
    std::vector<bool> is_copied;
    for (const at::Tensor& tensor : tensors) {
      is_copied.push_back(!group.is_shared(tensor) || !owns_its_memory(tensor));
      if (is_copied.back()) count += tensor.numel();
    }
    for (const at::Tensor& tensor : tensors) operands_.push_back(flat(tensor));
    if (count == 0) return;
    const at::Tensor copies = group.empty({count}, tensors.front().scalar_type());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      at::Tensor& operand = operands_[i];
      if (!is_copied[i]) continue;
      const at::Tensor original = std::exchange(operand, copies.narrow(0, begin, operand.numel()));
      operand.copy_(original);
      originals_.emplace_back(original, operand);
      begin += original.numel();
    }
  }

  const std::vector<at::Tensor>& operands() const { return operands_; }
  void copy_back() const {
    for (const auto& [original, copy] : originals_) original.copy_(copy);
  }

 private:
  std::vector<at::Tensor> operands_;  // in the order given
  std::vector<std::pair<at::Tensor, at::Tensor>> originals_;
};

}  // namespace

void ShardTree::add(ShardResult shard) {
  std::size_t height = 0;
  for (; height < heights_.size() && heights_[height]; ++height) {
    shard = mean_of(std::move(*heights_[height]), shard, neutral_element_);
    heights_[height].reset();
  }
  if (height == heights_.size()) heights_.emplace_back();
  heights_[height] = std::move(shard);
}

ShardResult ShardTree::take() {
  ShardResult root = std::move(*heights_.back());
  heights_.clear();
  return root;
}

double mean_of_tree(std::vector<double> values) {
  for (; values.size() > 1; values.resize(values.size() / 2)) {
    for (std::size_t i = 0; i < values.size() / 2; ++i) values[i] = mean_of_two(values[2 * i], values[2 * i + 1]);
  }
  return values.front();
}

void average_over_ranks(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
  if (group.size() == 1) return;
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const at::Tensor& tensor : tensors) by_dtype[tensor.scalar_type()].push_back(tensor);
  for (const auto& [dtype, of_dtype] : by_dtype) {
    const CallOptions call{.name = "lockstep mode", .order = Order::tree};
    if (!group.shares_memory()) {
      std::vector<at::Tensor> flat_tensors;
      for (const at::Tensor& tensor : of_dtype) flat_tensors.push_back(flat(tensor));
      group.all_reduce(flat_tensors, ReduceOp::avg, call);
      continue;
    }
    const InSharedMemory shared(of_dtype, group);
    group.all_reduce(shared.operands(), ReduceOp::avg, call);
    shared.copy_back();
  }
}

}  // namespace lockstep
