#include "lockstep/train/nn/global_moments.h"

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/lockstep_mode/shard_exchange.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kStatistics = "SyncBatchNorm statistics";

at::Tensor rows_of_ranks(const at::Tensor& row, const ProcessGroup& group, const SyncBatchNormTag::Place& place) {
  const at::Tensor rows = at::empty({group.size(), row.numel()}, row.options());
  try {
    const std::string label = label_of(kStatistics, place);
    group.all_gather_into(rows, row, {.name = label, .number = place.wrapper});
  } catch (const Error& error) {
    throw Error(error.kind(),
                "SyncBatchNorm of " + std::to_string(row.numel() / 2) + " channels on rank " +
                    std::to_string(group.rank()) +
                    " could not exchange its statistics, 1 + 2 x channels numbers: " + error.what(),
                error.detail());
  }
  return rows;
}

}  // namespace

at::Tensor local_row(const at::Tensor& input) {
  const std::int64_t channels = input.size(1);
  const auto wide = input.options().dtype(at::kDouble);
  if (input.numel() == 0) return at::zeros({1 + 2 * channels}, wide);
  const auto count = static_cast<double>(input.numel() / channels);
  // With running statistics in float32, those of a narrower batch are float32 too.
  at::Tensor running;
  if (at::isReducedFloatingType(input.scalar_type()))
    running = at::zeros({channels}, input.options().dtype(at::kFloat));
  const auto [mean, variance] = at::batch_norm_update_stats(input, running, running, /*momentum=*/0);
  return at::cat({at::full({1}, count, wide), mean.to(at::kDouble), variance.to(at::kDouble).mul_(count)});
}

GlobalMoments combine_rows(const at::Tensor& rows) {
  const std::int64_t channels = (rows.size(1) - 1) / 2;
  const at::Tensor counts = rows.narrow(1, 0, 1);
  const at::Tensor means = rows.narrow(1, 1, channels);
  GlobalMoments all;
  all.count = counts.sum();
  all.mean = means.mul(counts.div(all.count)).sum(0);
  all.squares = means.sub(all.mean).square_().mul_(counts).add_(rows.narrow(1, 1 + channels, channels)).sum(0);
  return all;
}

GlobalMoments global_moments(const at::Tensor& input, const ProcessGroup& group, const SyncBatchNormTag* layer) {
  ShardExchange* const shards = ShardExchange::current();
  const at::Tensor row = local_row(input);
  const at::Tensor rows =
      shards != nullptr ? shards->gather(row, layer, kStatistics)
                        : rows_of_ranks(row, group, layer != nullptr ? layer->place() : SyncBatchNormTag::Place());
  const GlobalMoments all = combine_rows(rows);
  const bool has_two = input.size(1) != 0 && input.numel() / input.size(1) >= 2;
  if (!has_two && all.count.item<double>() < 2) {
    throw Error(ErrorKind::invalid_argument,
                "SyncBatchNorm: the batches of all " + std::to_string(rows.size(0)) +
                    (shards != nullptr ? " shards" : " ranks") + " together have " +
                    std::to_string(all.count.item<std::int64_t>()) +
                    " values a channel; training needs at least two. Give some of them a larger batch, or call eval()");
  }
  return all;
}

}  // namespace lockstep::internal
