#include "lockstep/train/data/gather_predictions.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr const char* kOperation = "gather_predictions";

// The same text on all ranks if their rows and samplers match.
std::string description_of(const ProcessGroup& group, const at::Tensor& rows, const DistributedSampler& sampler) {
  std::ostringstream text;
  if (!rows.defined() || rows.dim() == 0) {
    text << "no rows";
  } else if (rows.layout() != at::kStrided) {
    text << rows.layout() << " rows, but dense ones are needed (to_dense())";
  } else if (static_cast<std::size_t>(rows.size(0)) != sampler.size()) {
    text << rows.size(0) << " rows, but its sampler has " << sampler.size() << " indices";
  } else {
    text << rows.scalar_type() << " rows of " << rows.sizes().slice(1);
  }
  text << "\na sampler for " << sampler.num_replicas() << " ranks, in a group of " << group.size();
  if (sampler.rank() != group.rank()) text << ", made for rank " << sampler.rank() << ", not for rank " << group.rank();
  text << "\na sampler in epoch " << sampler.epoch() << " of " << sampler.describe();
  return text.str();
}

[[noreturn]] void refuse(const ProcessGroup& group, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, std::string(kOperation) + ": " + why,
              {.rank = group.rank(), .operation = kOperation});
}

void check(const ProcessGroup& group, const DistributedSampler& sampler, const at::Tensor& rows) {
  const std::string mine = description_of(group, rows, sampler);
  if (const auto difference = group.first_difference(mine)) {
    refuse(group, "rank " + std::to_string(difference->rank) + " has " + difference->on_rank + "; rank 0 has " +
                      difference->on_rank_0);
  }
  const bool fits = rows.defined() && rows.dim() > 0 && rows.layout() == at::kStrided &&
                    static_cast<std::size_t>(rows.size(0)) == sampler.size();
  if (!fits) refuse(group, "every rank has " + mine.substr(0, mine.find('\n')));
  if (sampler.options().drop_last) refuse(group, "the samplers leave out samples (drop_last)");
  if (sampler.num_replicas() == group.size()) return;
  refuse(group, "every rank has a sampler for " + std::to_string(sampler.num_replicas()) +
                    " ranks, but the group has " + std::to_string(group.size()) + "; make the samplers for the group");
}

}  // namespace

at::Tensor gather_predictions(const ProcessGroup& group, DistributedSampler& sampler, const at::Tensor& rows,
                              const CallOptions& options) {
  check(group, sampler, rows);
  const auto samples = static_cast<std::int64_t>(sampler.dataset_size());
  const std::int64_t most = (samples + group.size() - 1) / group.size();  // of a rank's own rows
  const auto own = static_cast<std::int64_t>(sampler.unique_size());
  std::vector<std::int64_t> padded_indices(static_cast<std::size_t>(most), -1);
  std::copy_n(sampler.indices().begin(), own, padded_indices.begin());
  std::vector<std::int64_t> padded_shape = rows.sizes().vec();
  padded_shape[0] = most;
  const at::Tensor padded = rows.detach().new_zeros(padded_shape);
  padded.narrow(0, 0, own).copy_(rows.detach().narrow(0, 0, own));
  const CallOptions together = group.with_deadline(options);
  const auto indices = group.gather(at::from_blob(padded_indices.data(), {most}, at::kLong), 0, together);
  const auto parts = group.gather(padded, 0, together);
  if (group.rank() != 0) return {};
  std::vector<std::int64_t> shape = padded_shape;
  shape[0] = samples;
  at::Tensor all = rows.detach().new_empty(shape);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const std::int64_t count = indices[rank].ge(0).sum().item<std::int64_t>();
    all.index_copy_(0, indices[rank].narrow(0, 0, count).to(all.device()), parts[rank].narrow(0, 0, count));
  }
  return all;
}

}  // namespace lockstep
