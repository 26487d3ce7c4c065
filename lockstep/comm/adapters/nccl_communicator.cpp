// Communicators over NCCL, between GPUs. They do not block: NCCL says that a call is under way, and is asked until it
// is queued, so that a rank that never comes ends the wait (NCCL User Guide, "Fault Tolerance" and "ncclCommAbort").
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/adapters/backend_table.h"

namespace lockstep::internal {
namespace {

static_assert(sizeof(ncclUniqueId) <= kMaxCommunicatorId);

// How often NCCL is asked: all the time at first, since most calls are queued within it.
constexpr Duration kAskAllTheTime = std::chrono::microseconds(200);
constexpr Duration kAskEvery = std::chrono::microseconds(50);
constexpr Duration kAskOfRanksEvery = std::chrono::milliseconds(1);  // while ranks meet or part
constexpr Duration kLookEvery = std::chrono::milliseconds(50);       // whether the group lives, while ranks meet
constexpr Duration kPartWithin = std::chrono::seconds(10);

struct NcclType {
  ncclDataType_t type = ncclInt8;
  std::size_t numbers = 1;  // to an element: two in a complex one
};

// For what is only moved, any type of the same size does.
NcclType type_to_move(DType dtype) { return {ncclInt8, element_size(dtype)}; }

NcclType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return {ncclFloat32};
    case DType::f64: return {ncclFloat64};
    case DType::f16: return {ncclFloat16};
    case DType::bf16: return {ncclBfloat16};
    case DType::i8: return {ncclInt8};
    case DType::i32: return {ncclInt32};
    case DType::u32: return {ncclUint32};
    case DType::i64: return {ncclInt64};
    case DType::u64: return {ncclUint64};
    case DType::u8: return {ncclUint8};
    case DType::boolean: return {ncclUint8};
    case DType::c64: return {ncclFloat32, 2};
    case DType::c128: return {ncclFloat64, 2};
    default: throw Error(ErrorKind::internal, fmt::format("NCCL cannot reduce {}", to_string(dtype)));
  }
}

// Of bool, which is bytes of 0 and 1 here, sum means "or" and product "and".
ncclRedOp_t operation_of(ReduceOp op, DType dtype) {
  const bool is_bool = dtype == DType::boolean;
  switch (op) {
    case ReduceOp::sum: return is_bool ? ncclMax : ncclSum;
    case ReduceOp::product: return is_bool ? ncclMin : ncclProd;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::avg: return ncclAvg;
    case ReduceOp::bor: return ncclMax;
    case ReduceOp::band: return ncclMin;
    default: throw Error(ErrorKind::internal, fmt::format("NCCL has no reduction {}", to_string(op)));
  }
}

bool reduces(ReduceOp op, DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f64:
    case DType::f16:
    case DType::bf16: return op != ReduceOp::band && op != ReduceOp::bor && op != ReduceOp::bxor;
    // NCCL's average of integers is rounded in its own way.
    case DType::i8:
    case DType::i32:
    case DType::u32:
    case DType::i64:
    case DType::u64:
    case DType::u8: return op == ReduceOp::sum || op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::max;
    case DType::boolean: return op != ReduceOp::avg && op != ReduceOp::bxor;
    case DType::c64:
    case DType::c128: return op == ReduceOp::sum || op == ReduceOp::avg;
    default: return false;
  }
}

bool nccl_supports(OpKind kind, ReduceOp op, DType dtype) {
  switch (kind) {
    case OpKind::all_reduce:
    case OpKind::reduce:
    case OpKind::reduce_scatter: return reduces(op, dtype);
    case OpKind::broadcast:
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all: return true;
    default: return false;
  }
}

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(const CommunicatorSite& site) : device_(site.device), rank_(site.rank), size_(site.size) {
    const c10::cuda::CUDAGuard guard(device_);
    ncclUniqueId id{};
    std::memcpy(&id, site.id.data(), std::min(sizeof id, site.id.size()));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t state = ncclCommInitRankConfig(&comm_, size_, id, rank_, &config);
    TimePoint look = steady_clock().now() + kLookEvery;
    try {
      while (state == ncclInProgress) {
        const TimePoint now = steady_clock().now();
        if (site.deadline.expired(now)) {
          throw Error(ErrorKind::timeout,
                      "NCCL did not connect the ranks before the deadline; NCCL_DEBUG=INFO shows what it tries");
        }
        if (now >= look) {
          site.check_alive();
          look = steady_clock().now() + kLookEvery;
        }
        std::this_thread::sleep_for(kAskOfRanksEvery);
        check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      }
      check(state, "ncclCommInitRankConfig");
    } catch (...) {
      if (comm_ != nullptr) ncclCommAbort(comm_);
      throw;
    }
  }

  // What other ranks have not received yet is delivered. ncclCommDestroy() returns an error and frees nothing where
  // something has failed, and waits for the other ranks of the host to part, too: not while an exception is on its way.
  ~NcclCommunicator() override {
    if (is_aborted_) return;
    ncclResult_t state = ncclRemoteError;
    if (std::uncaught_exceptions() == 0) state = ncclCommFinalize(comm_);
    const Deadline deadline = Deadline::after(kPartWithin);
    while (state == ncclInProgress && !deadline.expired()) {
      std::this_thread::sleep_for(kAskOfRanksEvery);
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      if (asked != ncclSuccess) state = asked;
    }
    if (state == ncclSuccess) {
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
  }

  void enqueue(const CarrierCall& call, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    throw_if_aborted();
    const c10::cuda::CUDAGuard guard(device_);
    const cudaStream_t cuda_stream = c10::cuda::CUDAStream(stream).stream();
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(cuda_stream, &capture), "cudaStreamIsCapturing");
    if (capture != cudaStreamCaptureStatusNone) {
      throw Error(ErrorKind::invalid_argument,
                  "collectives cannot be captured in a CUDA graph: ranks compare each call, and a replay makes none; "
                  "capture the forward and backward, and call the group outside");
    }
    await(start(call, cuda_stream));
  }

  std::string failure() noexcept override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || is_aborted_) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked == ncclSuccess && is_good(state)) return {};
    return text_of(asked == ncclSuccess ? state : asked, "a collective");
  }

  // A thread that waits for NCCL sees the flag, and lets go of the lock.
  void abort() noexcept override {
    if (is_aborted_.exchange(true)) return;
    const std::lock_guard lock(mutex_);
    ncclCommAbort(comm_);
  }

 private:
  static void check(cudaError_t code, const char* what) {
    if (code != cudaSuccess) throw Error(ErrorKind::internal, fmt::format("{}: {}", what, cudaGetErrorString(code)));
  }
  std::string text_of(ncclResult_t code, const char* what) const noexcept {
    const char* const last = comm_ == nullptr ? nullptr : ncclGetLastError(comm_);
    std::string text = std::string("NCCL, ") + what + ": " + ncclGetErrorString(code);
    if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
    return text;
  }
  static bool is_good(ncclResult_t code) { return code == ncclSuccess || code == ncclInProgress; }
  void check(ncclResult_t code, const char* what) const {
    if (!is_good(code)) throw Error(ErrorKind::internal, text_of(code, what));
  }
  void throw_if_aborted() const {
    if (is_aborted_) throw Error(ErrorKind::aborted, "the communicator of the group has been aborted");
  }

  // Until NCCL has put the kernels on the stream: at a first call it connects the ranks that it needs.
  void await(ncclResult_t state) {
    const TimePoint begun = steady_clock().now();
    while (state == ncclInProgress) {
      throw_if_aborted();
      if (steady_clock().now() - begun < kAskAllTheTime) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kAskEvery);
      }
      check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    }
    check(state, "a collective");
  }

  ncclResult_t start(const CarrierCall& call, cudaStream_t stream) {
    const bool reduces = traits_of(call.kind).reduces;
    const NcclType type = reduces ? type_of(call.dtype) : type_to_move(call.dtype);
    const std::size_t count = call.count * type.numbers;
    switch (call.kind) {
      case OpKind::all_reduce:
        return ncclAllReduce(call.output, call.output, count, type.type, operation_of(call.reduce, call.dtype), comm_,
                             stream);
      case OpKind::reduce:
        return ncclReduce(call.output, call.output, count, type.type, operation_of(call.reduce, call.dtype), call.root,
                          comm_, stream);
      case OpKind::reduce_scatter:
        return ncclReduceScatter(call.input, call.output, count, type.type, operation_of(call.reduce, call.dtype),
                                 comm_, stream);
      case OpKind::broadcast:
        return ncclBroadcast(call.output, call.output, count, type.type, call.root, comm_, stream);
      case OpKind::all_gather: return ncclAllGather(call.input, call.output, count, type.type, comm_, stream);
      default: return exchange(call, count, stream);
    }
  }

  // The calls that NCCL has no algorithm for: each rank sends to each what it needs, all at a time. A group that has
  // begun is ended also where a call in it has failed, or the thread's next calls would be in it.
  ncclResult_t exchange(const CarrierCall& call, std::size_t bytes, cudaStream_t stream) {
    const bool is_root = call.root == rank_;
    const std::size_t element = element_size(call.dtype);
    ncclResult_t state = ncclGroupStart();
    if (state != ncclSuccess) return state;
    const std::byte* input = call.input;
    std::byte* output = call.output;
    for (int peer = 0; peer < size_ && is_good(state); ++peer) {
      std::size_t sent = 0, received = 0;
      if (call.kind == OpKind::all_to_all) {
        sent = call.sent[static_cast<std::size_t>(peer)] * element;
        received = call.received[static_cast<std::size_t>(peer)] * element;
      } else if (call.kind == OpKind::gather) {
        sent = peer == call.root ? bytes : 0;
        received = is_root ? bytes : 0;
      } else {  // scatter
        sent = is_root ? bytes : 0;
        received = peer == call.root ? bytes : 0;
      }
      if (sent != 0) state = ncclSend(input, sent, ncclInt8, peer, comm_, stream);
      if (received != 0 && is_good(state)) state = ncclRecv(output, received, ncclInt8, peer, comm_, stream);
      if (call.kind != OpKind::gather) input += sent;
      if (call.kind != OpKind::scatter) output += received;
    }
    const ncclResult_t end = ncclGroupEnd();
    return is_good(state) ? end : state;
  }

  const at::Device device_;
  const int rank_;
  const int size_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> is_aborted_{false};
};

std::string make_id() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) {
    throw Error(ErrorKind::internal, fmt::format("NCCL, ncclGetUniqueId: {}", ncclGetErrorString(result)));
  }
  return {reinterpret_cast<const char*>(&id), sizeof id};
}

// NCCL takes ranks of one GPU if they say that they are of different hosts.
std::string identity_of(at::Device device) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device.index()) != cudaSuccess) return {};
  std::string identity(properties.uuid.bytes, sizeof properties.uuid.bytes);
  identity += EnvironmentReader().text("NCCL_HOSTID").value_or("");
  return identity.substr(0, kMaxDeviceIdentity);
}

std::unique_ptr<Communicator> connect(const CommunicatorSite& site) { return std::make_unique<NcclCommunicator>(site); }

constexpr CommunicatorLibrary kLibrary{.name = "nccl",
                                       .type = at::kCUDA,
                                       .supports = nccl_supports,
                                       .make_id = make_id,
                                       .identity = identity_of,
                                       .connect = connect};

}  // namespace

BackendEntry nccl_backend() { return {.name = "nccl", .communicators = &kLibrary}; }

}  // namespace lockstep::internal
