#include "lockstep/train/ddp/comm_hooks/default_hooks.h"

#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

at::Tensor decompress(const at::Tensor& gradients, const at::Tensor& result, const std::string& hook) {
  if (result.numel() != gradients.numel()) {
    throw Error(ErrorKind::invalid_argument, "the hook inside " + hook + " returned " + std::to_string(result.numel()) +
                                                 " elements for a bucket of " + std::to_string(gradients.numel()));
  }
  return gradients.copy_(result.reshape({-1}));
}

CommHook compress_hook(c10::ScalarType dtype, std::string name, CommHook inner) {
  if (!inner) throw Error(ErrorKind::invalid_argument, name + " got an empty inner hook");
  return [dtype, name = std::move(name), inner = std::move(inner)](GradBucket& bucket, const ProcessGroup& group) {
    require_real(bucket, name);
    const at::Tensor gradients = bucket.buffer();
    bucket.set_buffer(gradients.to(dtype));
    return [gradients, name, result = inner(bucket, group)] { return decompress(gradients, result(), name); };
  };
}

}  // namespace

CommHook all_reduce_hook() {
  return [](GradBucket& bucket, const ProcessGroup& group) {
    const at::Tensor gradients = bucket.buffer();
    // Where ranks share memory a second thread would cost more than it gains.
    const Work work = group.all_reduce_async(
        gradients, ReduceOp::avg,
        {.name = bucket.call_name(), .number = bucket.backward(), .in_caller = group.shares_memory()});
    return [gradients, work] {
      work.wait();
      return gradients;
    };
  };
}

CommHook fp16_compress_hook(CommHook inner) {
  return compress_hook(c10::kHalf, "fp16_compress_hook", std::move(inner));
}

CommHook bf16_compress_hook(CommHook inner) {
  return compress_hook(c10::kBFloat16, "bf16_compress_hook", std::move(inner));
}

CommHook noop_hook() {
  return [](GradBucket& bucket, const ProcessGroup&) { return [gradients = bucket.buffer()] { return gradients; }; };
}

}  // namespace lockstep
