// The carrier over NCCL: libtorch's own process group of that name, between GPUs. Its buffers lie in the memory of this
// process's GPU; what lies in the host's memory is copied there and back.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <atomic>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/adapters/backend_table.h"
#include "lockstep/comm/adapters/torch_calls.h"
#include "lockstep/comm/adapters/torch_store.h"
#include "lockstep/comm/store/prefix_store.h"

namespace lockstep::internal {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(50);  // a waiting rank asks so often whether the group lives

Error nccl_error(const std::string& text) { return Error(ErrorKind::internal, "NCCL: " + text); }

class NcclCarrier final : public Carrier {
 public:
  NcclCarrier(const CarrierSite& site, Deadline deadline)
      : device_(at::kCUDA, c10::cuda::current_device()), check_alive_(site.check_alive) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::hours(24 * 365);  // each call has a deadline, and is watched over here
    const auto store = c10::make_intrusive<TorchStoreView>(
        std::make_shared<PrefixStore>(site.store, "nccl/" + site.group), torch_timeout(deadline));
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, site.rank, site.size, options);
  }

  ~NcclCarrier() override {
    if (was_interrupted_) return;
    try {
      group_->shutdown();  // otherwise libtorch warns, and ends what peers may still be receiving
    } catch (const std::exception&) {
    }
  }

  std::string_view name() const override { return "nccl"; }
  bool reads_device_memory() const override { return true; }

  CarrierBuffers buffers(std::size_t input_bytes, std::size_t output_bytes) override {
    return {grown(input_, input_bytes), grown(output_, output_bytes)};
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    // The default kind tells by the addresses where both sides lie.
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  }

  void run(const CarrierCall& call, Deadline deadline) override {
    const c10::cuda::CUDAGuard guard(device_);
    const auto work =
        with_translated_errors(nccl_error, [&] { return start_call(*group_, call, device_, torch_timeout(deadline)); });
    TimePoint look = steady_clock().now() + kLookEvery;
    while (!with_translated_errors(nccl_error, [&] { return work->isCompleted(); })) {
      const TimePoint now = steady_clock().now();
      if (deadline.expired(now))
        throw Error(
            ErrorKind::timeout,
            "NCCL did not finish the collective before the deadline; a rank may be stopped, or the network slow or "
            "broken");
      if (now >= look) {
        check_alive_(deadline);
        look = steady_clock().now() + kLookEvery;
      }
      std::this_thread::yield();
    }
    with_translated_errors(nccl_error, [&] { work->wait(); });  // throws what it failed with
  }

  void interrupt() noexcept override {
    was_interrupted_ = true;
    try {
      group_->abort();
    } catch (const std::exception&) {  // the others find out by the store
    }
  }

 private:
  static void check(cudaError_t code, const char* what) {
    if (code != cudaSuccess) throw Error(ErrorKind::internal, std::string(what) + ": " + cudaGetErrorString(code));
  }

  std::byte* grown(at::Tensor& buffer, std::size_t bytes) const {
    if (!buffer.defined() || buffer.nbytes() < bytes) {
      const auto size = static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64));
      buffer = at::empty({size}, at::TensorOptions().dtype(at::kByte).device(device_));
    }
    return static_cast<std::byte*>(buffer.data_ptr());
  }

  std::atomic<bool> was_interrupted_{false};
  const at::Device device_;
  const std::function<void(Deadline)> check_alive_;
  at::Tensor input_, output_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

std::unique_ptr<Carrier> make_nccl_carrier(const CarrierSite& site, Deadline deadline) {
  if (c10::cuda::device_count() == 0) {
    throw Error(ErrorKind::invalid_argument, "the nccl backend needs a GPU, but this process sees none");
  }
  return with_translated_errors(nccl_error, [&] { return std::make_unique<NcclCarrier>(site, deadline); });
}

bool nccl_reduces(ReduceOp op, DType dtype) {
  const bool is_bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  // Of bool, "and" and "or" are min and max.
  return torch_reduces(op, dtype) && (!is_bitwise || (dtype == DType::boolean && op != ReduceOp::bxor));
}

}  // namespace

BackendEntry nccl_backend() { return {.name = "nccl", .make = make_nccl_carrier, .reductions = nccl_reduces}; }

}  // namespace lockstep::internal
