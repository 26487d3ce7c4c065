#include "lockstep/train/ddp/lockstep_mode/shard_tree.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/group/derived.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/comm/group/tensor_segments.h"

namespace lockstep::internal {
namespace {

constexpr std::int64_t kGrain = 32 * 1024;  // elements for one thread

double mean_of_two(double left, double right) { return (left + right) / 2; }

// left = (left + right) / 2, by the very function that reduces ranks.
void take_mean(const at::Tensor& left, const at::Tensor& right) {
  if (!left.is_cpu()) {  // the same arithmetic: reduced types are computed in float32, and rounded once
    const bool is_reduced = at::isReducedFloatingType(left.scalar_type());
    const at::Tensor sum = is_reduced ? left.to(at::kFloat).add_(right) : left.add_(right);
    sum.div_(2);
    if (is_reduced) left.copy_(sum);
    return;
  }
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

// The operands of a collective. In shared memory it works in place if all of them lie there and other ranks may write
// to them: operands that lie elsewhere, or whose memory has another holder, are copied there.
class ReducibleInPlace {
 public:
  ReducibleInPlace(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
    std::int64_t count = 0;
    std::vector<bool> is_copied;
    for (const at::Tensor& tensor : tensors) {
      const bool may_be_shared = group.shares_memory() && tensor.is_cpu();
      is_copied.push_back(may_be_shared && (!group.is_shared(tensor) || !owns_its_memory(tensor)));
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

// A power of two of them.
double mean_of_tree(std::vector<double> values) {
  for (; values.size() > 1; values.resize(values.size() / 2)) {
    for (std::size_t i = 0; i < values.size() / 2; ++i) values[i] = mean_of_two(values[2 * i], values[2 * i + 1]);
  }
  return values.front();
}

// The message of a rank: these three, the hashes, and for each tensor whether it has one.
constexpr std::size_t kStep = 0, kLoss = 1, kConflict = 2, kHashes = 3;

std::vector<std::int64_t> row_of(const ShardResult& mine, std::uint64_t step) {
  std::vector<std::int64_t> row{static_cast<std::int64_t>(step), std::bit_cast<std::int64_t>(mine.loss), mine.conflict};
  for (const std::uint64_t hash : mine.hashes) row.push_back(static_cast<std::int64_t>(hash));
  for (const at::Tensor& tensor : mine.tensors) row.push_back(tensor.defined() ? 1 : 0);
  return row;
}

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

std::optional<std::size_t> agree(ShardResult& mine, std::uint64_t step, const NeutralElement& neutral_element,
                                 const ProcessGroup& group, std::uint64_t wrapper) {
  std::vector<std::int64_t> told = row_of(mine, step);
  const auto all = group.all_gather(at::from_blob(told.data(), {std::ssize(told)}, at::kLong),
                                    {.name = "lockstep mode, results of shards in wrapper", .number = wrapper});
  const std::size_t defined = kHashes + mine.hashes.size();
  std::vector<double> losses;
  std::vector<bool> is_defined(mine.tensors.size());
  const auto* first = all[0].const_data_ptr<std::int64_t>();
  std::int64_t conflict = -1;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto* row = all[rank].const_data_ptr<std::int64_t>();
    if (row[kStep] != first[kStep]) {
      throw Error(
          ErrorKind::desync,
          fmt::format("lockstep mode: rank 0 is at step {}, rank {} at step {}; load the same state on all ranks",
                      first[kStep], rank, row[kStep]));
    }
    losses.push_back(std::bit_cast<double>(row[kLoss]));
    conflict = std::max(conflict, row[kConflict]);
    for (std::size_t i = 0; i < mine.hashes.size(); ++i) {
      if (row[kHashes + i] != first[kHashes + i]) conflict = std::max(conflict, static_cast<std::int64_t>(i));
    }
    for (std::size_t i = 0; i < is_defined.size(); ++i) is_defined[i] = is_defined[i] || row[defined + i] != 0;
  }
  if (conflict >= 0) return static_cast<std::size_t>(conflict);
  mine.loss = mean_of_tree(std::move(losses));
  for (std::size_t i = 0; i < is_defined.size(); ++i) {
    if (is_defined[i] && !mine.tensors[i].defined()) mine.tensors[i] = neutral_element(i);
  }
  return {};
}

void average_over_ranks(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
  if (group.size() == 1) return;
  for (const auto& [dtype, of_dtype] : by_dtype(tensors)) {
    const ReducibleInPlace reducible(of_dtype, group);
    group.all_reduce(reducible.operands(), ReduceOp::avg, {.name = "lockstep mode", .order = Order::tree});
    reducible.copy_back();
  }
}

}  // namespace lockstep::internal
