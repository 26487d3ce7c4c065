#include "lockstep/ddp/lockstep_mode/shard_agreement.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

// What a rank tells: these three, the hashes, and for each tensor whether it has one.
constexpr std::size_t kStep = 0, kLoss = 1, kConflict = 2, kHashes = 3;

std::vector<std::int64_t> row_of(const ShardResult& mine, std::uint64_t step) {
  std::vector<std::int64_t> row{static_cast<std::int64_t>(step), std::bit_cast<std::int64_t>(mine.loss), mine.conflict};
  for (const std::uint64_t hash : mine.hashes) row.push_back(static_cast<std::int64_t>(hash));
  for (const at::Tensor& tensor : mine.tensors) row.push_back(tensor.defined() ? 1 : 0);
  return row;
}

}  // namespace

std::optional<std::size_t> agree(ShardResult& mine, std::uint64_t step, const NeutralElement& neutral_element,
                                 const ProcessGroup& group) {
  std::vector<std::int64_t> told = row_of(mine, step);
  const auto all = group.all_gather(at::from_blob(told.data(), {std::ssize(told)}, at::kLong),
                                    {.name = "lockstep mode, what shards left"});
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

}  // namespace lockstep
