#include "lockstep/train/nn/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/train/ddp/contributions.h"
#include "lockstep/train/ddp/lockstep_mode/shard_exchange.h"
#include "lockstep/train/ddp/uneven_inputs/join_state.h"
#include "lockstep/train/nn/global_moments.h"

namespace lockstep {

using namespace internal;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kGradients = "SyncBatchNorm gradients";
// The smallest divisor of float16 gradients that does not overflow.
constexpr double kLeastFactorInHalf = 0x1p-8;

// The state of backward besides tensors.
struct Batch final : torch::CustomClassHolder {
  Batch(ProcessGroup among, const SyncBatchNormTag* of_layer, at::Tensor values, double epsilon)
      : group(std::move(among)), layer(of_layer), count(std::move(values)), eps(epsilon) {
    if (layer != nullptr) place = layer->place();
  }
  ProcessGroup group;
  SyncBatchNormTag::Place place;
  const SyncBatchNormTag* layer;  // in lockstep mode, where it outlives the step
  at::Tensor count;               // see GlobalMoments
  double eps;
  bool has_bias = false;
  bool joined = false;    // this rank's samples do not count: see join_state.h
  bool of_shard = false;  // the other batches are those of all shards
};

// Other ranks, which wait for this one, get the same text. For shards their exchange does that.
[[noreturn]] void refuse(const ProcessGroup& group, const std::string& why) {
  const Error error(ErrorKind::invalid_argument, "SyncBatchNorm on rank " + std::to_string(group.rank()) + ": " + why,
                    {.rank = group.rank(), .operation = "SyncBatchNorm"});
  if (ShardExchange::current() == nullptr) group.abort(error.what());
  throw error;
}

void check_input(const at::Tensor& input, const at::TensorList& of_each_channel, const ProcessGroup& group) {
  if (input.dim() < 2 || input.size(1) == 0) {
    refuse(group, "the input has shape " + c10::str(input.sizes()) + "; expected [N, C, ...] with C > 0");
  }
  if (!at::isFloatingType(input.scalar_type())) {
    refuse(group, std::string("the input is of type ") + c10::toString(input.scalar_type()) +
                      "; expected a floating-point type");
  }
  for (const at::Tensor& tensor : of_each_channel) {
    if (!tensor.defined() || tensor.numel() == input.size(1)) continue;
    refuse(group, "the input has shape " + c10::str(input.sizes()) + ", so " + std::to_string(input.size(1)) +
                      " channels, but the module has " + std::to_string(tensor.numel()));
  }
}

at::ScalarType type_of_statistics(const at::Tensor& input) {
  return at::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type();
}

at::Tensor in_type(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.detach().to(type) : tensor;
}

// In float64, from the same bits on all ranks.
void update(const at::Tensor& running, const at::Tensor& value, double momentum) {
  if (running.defined()) running.copy_(running.to(at::kDouble).mul_(1 - momentum).add_(value, momentum));
}

at::Tensor input_gradient(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                          const at::Tensor& mean, const at::Tensor& invstd, const at::Tensor& sums,
                          const at::Tensor& count) {
  if (input.numel() == 0) return at::empty_like(input);
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = input.size(1);
  const auto channels = [&](const at::Tensor& tensor) { return tensor.to(mean.scalar_type()).reshape(shape); };
  // dx = scale * (dy - sum(dy)/n - x^ * sum(dy * x^)/n), where x^ = (x - mean) * invstd
  const at::Tensor scale = weight.defined() ? invstd.to(at::kDouble) * weight.detach() : invstd.to(at::kDouble);
  const at::Tensor constant = channels(scale * sums[0] / count.neg());
  const at::Tensor slope = channels(scale * invstd * sums[1] / count.neg());
  at::Tensor result = at::addcmul(constant, gradient.to(mean.scalar_type()), channels(scale));
  result.addcmul_(input - channels(mean), slope);
  return result.to(input.scalar_type());
}

// Undefined where the module does not track them.
struct Running {
  at::Tensor mean, variance;
  double momentum = 0;
};

// Of this rank's part -> of all ranks or shards.
void add_up(const at::Tensor& sums, const Batch& batch, at::ScalarType type) {
  ShardExchange* const shards = ShardExchange::current();
  if ((shards != nullptr) != batch.of_shard) {
    throw Error(ErrorKind::invalid_argument,
                "SyncBatchNorm in lockstep mode: forward and backward must both run in the callback of "
                "for_each_shard(), on its thread; one of them did not");
  }
  if (shards == nullptr) {
    sums.mul_(factor_of_current_backward(batch.place.wrapper));
    const std::string label = label_of(kGradients, batch.place);
    batch.group.all_reduce(sums, ReduceOp::sum, {.name = label, .number = batch.place.wrapper});
    // The others' losses depend on this rank's inputs, also if its own loss does not count.
    const double divisor = factor_of_current_backward(batch.place.wrapper, /*divides=*/true);
    if (type == at::kHalf && divisor < kLeastFactorInHalf) {
      refuse(batch.group,
             "the weight of its batch is 0 or almost 0, so its float16 gradients cannot hold the contributions of "
             "other ranks' losses; use bfloat16 or float32, or give every rank a batch with a larger weight");
    }
    sums.div_(divisor);
  } else {
    sums.copy_(shards->gather(sums.flatten(), batch.layer, kGradients).sum(0).view_as(sums));
  }
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& factor,
                            const std::optional<at::Tensor>& summand, const Running& running, double eps,
                            const ProcessGroup& group, const SyncBatchNormTag* layer) {
    const at::Tensor weight = factor.value_or(at::Tensor()), bias = summand.value_or(at::Tensor());
    const bool joined = is_joined();
    const GlobalMoments moments = global_moments(joined ? input.narrow(0, 0, 0) : input, group, layer);
    update(running.mean, moments.mean, running.momentum);
    update(running.variance, moments.squares / (moments.count - 1), running.momentum);

    const at::ScalarType type = type_of_statistics(input);
    const at::Tensor variance = moments.squares / moments.count;
    const at::Tensor mean = moments.mean.to(type);
    context->save_for_backward({input, weight, mean, (variance + eps).rsqrt_().to(type)});
    auto batch = c10::make_intrusive<Batch>(group, layer, moments.count, eps);
    batch->has_bias = bias.defined();
    batch->joined = joined;
    batch->of_shard = ShardExchange::current() != nullptr;
    context->saved_data["batch"] = c10::IValue::make_capsule(std::move(batch));
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(at::native_batch_norm(input, in_type(weight, type), in_type(bias, type), mean, variance.to(type),
                                             /*training=*/false, /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorKind::invalid_argument,
                  "SyncBatchNorm: second derivatives are not supported (create_graph); use BatchNorm, or a loss "
                  "without gradients of gradients");
    }
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &mean = saved[2], &invstd = saved[3];
    const auto batch = c10::static_intrusive_pointer_cast<Batch>(context->saved_data.at("batch").toCapsule());
    // A loss without weight does not count, also if it is NaN.
    const bool counts = batch->of_shard || factor_of_current_backward(batch->place.wrapper) != 0;
    const at::Tensor gradient = counts ? gradients[0] : at::zeros_like(gradients[0]);
    at::Tensor of_weight = at::zeros_like(invstd);
    at::Tensor of_bias = at::zeros_like(invstd);
    if (input.numel() != 0) {
      // Any weight works if the gradient of the input is not requested.
      std::tie(std::ignore, of_weight, of_bias) = at::native_batch_norm_backward(
          gradient, input, /*weight=*/invstd, {}, {}, mean, invstd, /*train=*/true, batch->eps, {false, true, true});
    }
    at::Tensor of_input;
    if (context->needs_input_grad(0)) {
      const at::Tensor sums = at::stack({of_bias, of_weight}).to(at::kDouble);
      if (batch->joined) sums.zero_();
      add_up(sums, *batch, input.scalar_type());
      if (batch->joined) sums.zero_();  // no statistics depend on its inputs
      of_input = input_gradient(gradient, input, weight, mean, invstd, sums, batch->count);
    }
    // Autograd converts them to the parameters' type.
    if (!weight.defined()) of_weight = at::Tensor();
    if (!batch->has_bias) of_bias = at::Tensor();
    return {of_input, of_weight, of_bias, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor sync_batch_norm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& running_mean, const at::Tensor& running_var, double momentum, double eps,
                           const ProcessGroup& group, const SyncBatchNormTag* layer) {
  check_input(input, {weight, bias, running_mean, running_var}, group);
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  const Running running{running_mean, running_var, momentum};
  return SyncBatchNormFunction::apply(input, optional(weight), optional(bias), running, eps, group, layer);
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroup group)
    : NormImplBase(options), group_(std::move(group)) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  const bool tracks = options.track_running_stats();
  double momentum = options.momentum().value_or(0);
  if (is_training() && tracks) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
  }
  if (is_training() && (group_.size() > 1 || ShardExchange::current() != nullptr)) {
    return sync_batch_norm(input, weight, bias, running_mean, running_var, momentum, options.eps(), group_, this);
  }
  _check_input_dim(input);
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !tracks, momentum, options.eps());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << std::boolalpha << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2) return;
  throw Error(ErrorKind::invalid_argument,
              "SyncBatchNorm: the input has shape " + c10::str(input.sizes()) + "; expected [N, C, ...]");
}

}  // namespace lockstep
