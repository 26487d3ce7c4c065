#include "lockstep/train/optim/parameter_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "lockstep/train/ddp/value_bytes.h"

namespace lockstep::internal {
namespace {

// The allowed padding: one byte per this number of bytes, plus as many as take no longer than a collective itself.
constexpr std::int64_t kBytesForEachPadding = 4;
constexpr std::int64_t kFreePaddingBytes = 64 * 1024;

void gather_parts(const ProcessGroup& group, const std::vector<ValueBytes>& parts,
                  const std::vector<std::int64_t>& counts, std::string_view name) {
  const auto mine = static_cast<std::size_t>(group.rank());
  const std::int64_t longest = *std::ranges::max_element(counts);
  std::int64_t padded = 0;
  for (const std::int64_t count : counts) padded += longest - count;
  const auto& of_mine = parts[mine].bytes();
  const auto options = of_mine.empty() ? at::TensorOptions() : of_mine[0].options();
  // Each rank's padding has a separate place, since results must not overlap.
  const at::Tensor paddings = at::empty({padded}, options.dtype(at::kByte)).zero_();
  std::int64_t begin = 0;
  std::vector<at::Tensor> inputs, outputs;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const auto& views = parts[rank].bytes();
    const at::Tensor padding = paddings.narrow(0, begin, longest - counts[rank]);
    begin += padding.numel();
    outputs.insert(outputs.end(), views.begin(), views.end());
    if (padding.numel() != 0) outputs.push_back(padding);
    if (rank == mine) inputs = views;
    if (rank == mine && padding.numel() != 0) inputs.push_back(padding);
  }
  group.all_gather_into(outputs, inputs, {.name = name});
  for (const ValueBytes& part : parts) part.write_back();
}

}  // namespace

bool exchange_at_once(const std::vector<std::int64_t>& part_bytes) {
  const std::int64_t total = std::accumulate(part_bytes.begin(), part_bytes.end(), std::int64_t{0});
  const std::int64_t longest = *std::max_element(part_bytes.begin(), part_bytes.end());
  const std::int64_t padding = longest * static_cast<std::int64_t>(part_bytes.size()) - total;
  return padding <= total / kBytesForEachPadding + kFreePaddingBytes;
}

void exchange_parameters(const ProcessGroup& group, const std::vector<std::vector<at::Tensor>>& parts,
                         std::string_view name) {
  if (group.size() == 1) return;
  std::vector<ValueBytes> bytes;
  std::vector<std::int64_t> counts;
  for (const auto& part : parts) {
    bytes.emplace_back(part);
    bytes.back().read();
    counts.push_back(0);
    for (const at::Tensor& each : bytes.back().bytes()) counts.back() += each.numel();
  }
  if (std::ranges::max(counts) == 0) return;
  if (exchange_at_once(counts)) return gather_parts(group, bytes, counts, name);
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    if (counts[rank] != 0) bytes[rank].broadcast(static_cast<int>(rank), group, {.name = name});
  }
}

}  // namespace lockstep::internal
