#include "lockstep/optim/parameter_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep {
namespace {

// What padding may cost: one byte for so many that are needed, and what takes no longer than a collective by itself.
constexpr std::int64_t kBytesForEachPadding = 4;
constexpr std::int64_t kFreePaddingBytes = 64 * 1024;

// The memory of dense parameters of any type; of others a copy of it.
class RawPart {
 public:
  explicit RawPart(const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      at::Tensor dense = tensor.detach();
      if (!dense.is_non_overlapping_and_dense() || dense.is_conj() || dense.is_neg()) {
        dense = dense.resolve_conj().resolve_neg().contiguous();
        copies_.emplace_back(tensor.detach(), dense);
      }
      views_.push_back(dense.as_strided({dense.numel()}, {1}).view(at::kByte));
      count_ += views_.back().numel();
    }
  }

  const std::vector<at::Tensor>& views() const { return views_; }
  std::int64_t count() const { return count_; }
  void copy_back() const {
    for (const auto& [tensor, copy] : copies_) tensor.copy_(copy);
  }

 private:
  std::vector<at::Tensor> views_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  std::int64_t count_ = 0;
};

void exchange_in_turns(const ProcessGroup& group, const std::vector<RawPart>& parts) {
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].count() == 0) continue;
    group.broadcast(parts[rank].views(), static_cast<int>(rank), {.name = "parameters of one rank"});
  }
}

void gather_parts(const ProcessGroup& group, const std::vector<RawPart>& parts) {
  const auto mine = static_cast<std::size_t>(group.rank());
  std::int64_t longest = 0, padded = 0;
  for (const RawPart& part : parts) longest = std::max(longest, part.count());
  for (const RawPart& part : parts) padded += longest - part.count();
  const auto options = parts[mine].views().empty() ? at::TensorOptions(at::kByte) : parts[mine].views()[0].options();
  // Each rank's padding has a place of its own, since results may not lie over each other.
  const at::Tensor paddings = at::empty({padded}, options.dtype(at::kByte)).zero_();
  std::int64_t begin = 0;
  std::vector<at::Tensor> inputs, outputs;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const auto& views = parts[rank].views();
    const at::Tensor padding = paddings.narrow(0, begin, longest - parts[rank].count());
    begin += padding.numel();
    outputs.insert(outputs.end(), views.begin(), views.end());
    if (padding.numel() != 0) outputs.push_back(padding);
    if (rank == mine) inputs = views;
    if (rank == mine && padding.numel() != 0) inputs.push_back(padding);
  }
  group.all_gather_into(outputs, inputs, {.name = "parameters of all ranks"});
}

}  // namespace

bool exchange_at_once(const std::vector<std::int64_t>& part_bytes) {
  const std::int64_t total = std::accumulate(part_bytes.begin(), part_bytes.end(), std::int64_t{0});
  const std::int64_t longest = *std::max_element(part_bytes.begin(), part_bytes.end());
  const std::int64_t padding = longest * static_cast<std::int64_t>(part_bytes.size()) - total;
  return padding <= total / kBytesForEachPadding + kFreePaddingBytes;
}

void exchange_parameters(const ProcessGroup& group, const std::vector<std::vector<at::Tensor>>& parts) {
  if (group.size() == 1) return;
  std::vector<RawPart> bytes;
  std::vector<std::int64_t> counts;
  for (const auto& part : parts) {
    bytes.emplace_back(part);
    counts.push_back(bytes.back().count());
  }
  if (*std::max_element(counts.begin(), counts.end()) == 0) return;
  if (exchange_at_once(counts)) {
    gather_parts(group, bytes);
  } else {
    exchange_in_turns(group, bytes);
  }
  for (const RawPart& part : bytes) part.copy_back();
}

}  // namespace lockstep
