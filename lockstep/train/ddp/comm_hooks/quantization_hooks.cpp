#include "lockstep/train/ddp/comm_hooks/quantization_hooks.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

using namespace internal;

namespace {

constexpr double kLevels = 255;

// Row by row; every row has a scale and a zero point.
struct Quantized {
  at::Tensor parameters;  // float32, [2, rows, 1]: scales, zero points
  at::Tensor levels;      // uint8, [rows, columns]
};

Quantized quantize(const at::Tensor& rows) {
  const auto [smallest, largest] = at::aminmax(rows, 1, true);
  const at::Tensor low = smallest.clamp_max(0), high = largest.clamp_min(0);
  const at::Tensor scale = high.sub(low).div_(kLevels).clamp_min_(std::numeric_limits<float>::epsilon());
  const at::Tensor zero = low.div(scale).round_().neg_().clamp_(0, kLevels);
  return {at::stack({scale, zero}), rows.div(scale).round_().add_(zero).clamp_(0, kLevels).to(at::kByte)};
}

at::Tensor dequantize(const Quantized& quantized) {
  return quantized.levels.to(at::kFloat).sub_(quantized.parameters[1]).mul_(quantized.parameters[0]);
}

at::Tensor mean_of(const std::vector<Quantized>& ranks) {
  at::Tensor sum = dequantize(ranks.front());
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) sum.add_(dequantize(ranks[rank]));
  return sum.div_(static_cast<double>(ranks.size()));
}

at::Tensor rows_of(const at::Tensor& gradients, std::int64_t columns) {
  const at::Tensor values = gradients.to(at::kFloat);
  const std::int64_t missing = (columns - values.numel() % columns) % columns;
  return at::constant_pad_nd(values, {0, missing}).view({-1, columns});
}

// channel_elements 0: all of the bucket.
BucketResult begin(const GradBucket& bucket, const ProcessGroup& group, std::int64_t channel_elements) {
  const at::Tensor gradients = bucket.buffer();
  const std::int64_t columns = channel_elements > 0 ? channel_elements : std::max<std::int64_t>(gradients.numel(), 1);
  const Quantized mine = quantize(rows_of(gradients, columns));
  std::vector<Quantized> ranks;
  std::vector<at::Tensor> outputs;
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks.push_back({at::empty_like(mine.parameters), at::empty_like(mine.levels)});
    outputs.push_back(ranks.back().parameters.view(at::kByte));
    outputs.push_back(ranks.back().levels);
  }
  const Work work = group.all_gather_into_async(outputs, {mine.parameters.view(at::kByte), mine.levels},
                                                {.name = bucket.call_name("8 bits"), .number = bucket.backward()});
  return [work, ranks = std::move(ranks), count = gradients.numel()] {
    work.wait();
    return mean_of(ranks).flatten().narrow(0, 0, count);
  };
}

}  // namespace

CommHook quantize_8bit_hook() {
  return [](GradBucket& bucket, const ProcessGroup& group) {
    require_real(bucket, "quantize_8bit_hook");
    return begin(bucket, group, 0);
  };
}

CommHook quantize_8bit_per_channel_hook(std::int64_t channel_elements) {
  if (channel_elements < 1) {
    throw Error(ErrorKind::invalid_argument, "quantize_8bit_per_channel_hook: channel_elements is " +
                                                 std::to_string(channel_elements) + "; give at least 1");
  }
  return [channel_elements](GradBucket& bucket, const ProcessGroup& group) {
    require_real(bucket, "quantize_8bit_per_channel_hook");
    return begin(bucket, group, channel_elements);
  };
}

}  // namespace lockstep
