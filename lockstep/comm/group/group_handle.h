// A process's handle of a group, besides its collectives: its rank, memory, messages, and the end of the group. The
// base of ProcessGroup, whose rules hold for these calls, too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/collective/op_kind.h"
#include "lockstep/comm/group/options.h"
#include "lockstep/comm/group/work.h"
#include "lockstep/comm/messages/request.h"

namespace lockstep {

namespace internal {
class ArenaHeap;
class Engine;
class Mesh;
struct CallTimes;
struct Collective;
struct GroupOrigin;
}  // namespace internal

struct MessageCall {  // for batch_isend_irecv()
  enum class Kind { send, receive };
  Kind kind = Kind::send;
  at::Tensor tensor;
  int peer = 0;
  int tag = 0;
};

class GroupHandle {
 public:
  // messages: used by send() and recv(); null if there are none.
  // origin: the members and their store, from which subgroups are made; null if it has none.
  explicit GroupHandle(std::unique_ptr<internal::Engine> engine, const GroupOptions& options = {},
                       std::unique_ptr<internal::Mesh> messages = nullptr,
                       std::shared_ptr<const internal::GroupOrigin> origin = nullptr);

  int rank() const;
  int size() const;
  // "shared memory", "tcp", "tcp and shared memory", "in-process"; else the name of the backend.
  std::string_view transport() const;
  // Whether both are handles of one group; a group of the same ranks may be another one.
  bool is_same_group(const GroupHandle& other) const { return state_ == other.state_; }
  Duration timeout() const;
  const std::optional<c10::Device>& device() const;  // as of GroupOptions
  // The options for several calls that share one deadline: that of a call which begins now.
  CallOptions with_deadline(CallOptions options = {}) const {
    if (!options.deadline) options.deadline = Deadline::after(options.timeout.value_or(timeout()));
    return options;
  }

  // An uninitialised tensor in memory that all ranks of the node share: collectives on it move the least bytes. In
  // ordinary memory if the ranks share none. Error{invalid_argument} for sizes that no memory has.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) const;
  // Whether a dense tensor lies in this rank's part of that memory.
  bool is_shared(const at::Tensor& tensor) const;

  // Whether this group supports it for tensors of a dtype on a device; asking sends nothing. Unsupported calls get
  // Error{invalid_argument} before anything is sent.
  bool supports(OpKind kind, ReduceOp op, at::ScalarType dtype, at::DeviceType device = at::kCPU) const;

  // A barrier by messages, to find missing ranks: every rank gets Error{timeout} that names a rank that has not called
  // it in time, and its state; all such ranks with wait_all_ranks. The group always remains usable.
  void monitored_barrier(const CallOptions& options = {}, bool wait_all_ranks = false) const;

  // Messages from one rank to another, independent of collectives and of their order. Those between two ranks with the
  // same tag arrive in the order sent. send() returns when the tensor may be used again, for a large one when it has
  // been received. recv() returns the rank that sent; kAnySource takes the first message. The tensor has the size of
  // the message; if not, Error{desync} names both, and the group remains usable. See messages/messenger.h.
  void send(const at::Tensor& tensor, int peer, int tag = 0, const CallOptions& options = {}) const;
  int recv(const at::Tensor& tensor, int peer = kAnySource, int tag = 0, const CallOptions& options = {}) const;
  Work send_async(const at::Tensor& tensor, int peer, int tag = 0, const CallOptions& options = {}) const;
  Work recv_async(const at::Tensor& tensor, int peer = kAnySource, int tag = 0, const CallOptions& options = {}) const;

  // Starts all messages, then returns their works in the same order, so ranks that send to each other need not agree on
  // an order.
  std::vector<Work> batch_isend_irecv(const std::vector<MessageCall>& calls, const CallOptions& options = {}) const;

  // Ends every present and future call on all ranks, collectives and messages, with Error{aborted} quoting the reason.
  // Never blocks.
  void abort(std::string_view reason) const noexcept;

  // Call it before letting an exception escape that may affect other ranks. what: what failed ("forward of my model");
  // text: the exception's. Other ranks' errors quote it if this rank then makes a different call, or leaves. The next
  // successful collective clears it. DistributedDataParallel calls it for forwards and backwards.
  void note_failure(std::string_view what, std::string_view text) const noexcept;
  // The same for the exception that is being handled, unless it is the group's own. REQUIRES: within a catch.
  void note_exception(std::string_view what) const noexcept;
  // "forward of my model: index out of range"; empty if there is nothing.
  std::string noted_failure() const;

  // The memory that all ranks of the group share; null if they do not.
  const std::shared_ptr<internal::ArenaHeap>& heap() const;
  bool shares_memory() const { return heap() != nullptr; }

  // How long this rank's collectives have waited for others, and moved data, up to `now`; messages do not count.
  internal::CallTimes call_times(TimePoint now) const;

  // Starts a collective on plain memory, which runs while the caller computes: in poll() and wait() if the engine
  // advances in poll(), else on the group's thread. `keeps` owns the memory, and is held until it is finished, even if
  // nobody waits. If ranks that share memory post different collectives, the group ends.
  class Posted;
  Posted post(const internal::Collective& collective, std::shared_ptr<const void> keeps) const;
  // Advances posted collectives if the engine advances in poll(), as over shared memory; else the group's thread does,
  // and this does nothing. Never waits for another rank or call, unless the memory is not shared (see ArenaEngine).
  void poll() const;
  void wait(const Posted& posted) const;

 protected:
  // Blocks until collectives on devices are over. Throws what they failed with, unless an earlier call has.
  void await_device_calls() const;

  struct State;

  std::shared_ptr<State> state_;
};

// A collective that post() has started; by default none.
class GroupHandle::Posted {
  friend class GroupHandle;
  std::uint64_t number_ = 0;  // of an engine that advances in poll()
  Work work_;                 // elsewhere
};

}  // namespace lockstep
