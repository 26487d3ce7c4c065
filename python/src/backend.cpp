#include "backend.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/group/connect.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/store/prefix_store.h"
#include "store.h"

namespace lockstep::python {
namespace {

// A launcher's token, or a fresh one from rank 0: torch's store is then what keeps strangers out.
Token agree_on_token(Store& store, int rank, Deadline deadline) {
  if (std::getenv("LOCKSTEP_TOKEN_FD") != nullptr || std::getenv("LOCKSTEP_TOKEN_FILE") != nullptr) {
    return Token::for_this_process();
  }
  if (rank == 0) {
    const Token token = Token::generate();
    // A process that joins again through the same store keeps the first one.
    const ByteView bytes(reinterpret_cast<const char*>(token.bytes().data()), Token::kBytes);
    return Token::from_bytes(store.compare_set("token", {}, bytes, deadline));
  }
  return Token::from_bytes(store.get("token", deadline));
}

// The launcher's word on ranks and stores is torch's affair here.
const char* environment(const char* name) {
  const std::string_view wanted = name;
  return wanted == "LOCKSTEP_NODE" || wanted == "LOCKSTEP_ADDRESS" ? std::getenv(name) : nullptr;
}

// Torch's names of groups have any length.
std::string short_name(const std::string& name) { return name.size() <= 48 ? name : name.substr(name.size() - 48); }

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, Milliseconds timeout,
                 const std::string& group_name)
    : c10d::Backend(rank, size), options_(c10::make_intrusive<Options>("lockstep", timeout)) {
  with_torch_errors([&] {
    const Deadline deadline = Deadline::after(timeout);
    const auto shared = std::make_shared<PrefixStore>(std::make_shared<TorchStore>(store), "lockstep");
    JoinOptions join_options;
    join_options.store = shared;
    join_options.rank = rank;
    join_options.world_size = size;
    join_options.token = agree_on_token(*shared, rank, deadline);
    join_options.timeout = timeout;
    const Membership membership = join(join_options, environment);
    group_ = std::make_unique<ProcessGroup>(
        connect_group(membership, short_name(group_name), with_environment({.timeout = timeout}), deadline));
  });
}

Backend::~Backend() {
  const auto end = [this] {
    group_.reset();
    completer_.reset();
  };
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const pybind11::gil_scoped_release release;  // the listeners of a Future may need the lock to come to an end
    end();
  } else {
    end();
  }
}

void Backend::abort() { group_->abort("rank " + std::to_string(getRank()) + " called abort()"); }

c10d::ErrorType Backend::getError() { return c10d::ErrorType::SUCCESS; }

bool Backend::supportsTensorAlloc(c10::DeviceIndex device) { return device < 0 && group_->shares_memory(); }

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  return group_->empty({size}, c10::typeMetaToScalarType(options.dtype()));
}

void Backend::require_open(const char* title) const {
  if (!is_shut_down_) return;
  C10_THROW_ERROR(ValueError, std::string(title) + ": this process group was destroyed; make another one");
}

CallOptions Backend::within(Milliseconds timeout) const {
  return {.timeout = timeout == c10d::kUnsetTimeout || timeout == kNoTimeout ? options_->timeout : timeout};
}

Backend::WorkPtr Backend::launch(c10d::OpType type, const char* title, const Tensors& inputs, Tensors outputs,
                                 const std::function<Started()>& start) {
  require_open(title);
  if (!c10d::isP2POp(type)) ++sequence_;
  return c10::make_intrusive<TorchWork>(getRank(), type, title, std::optional(inputs), std::move(outputs), completer_,
                                        start);
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  require_open("lockstep:monitored_barrier");
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  with_torch_errors([&] { group_->monitored_barrier({.timeout = timeout}, wait_all_ranks); });
}

}  // namespace lockstep::python
