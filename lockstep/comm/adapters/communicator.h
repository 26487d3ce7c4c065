// A Communicator moves or reduces memory of a device among the ranks of a group, on a stream of the device: NCCL is
// one. DeviceCalls -> Communicator. What a library can do for all groups is in its CommunicatorLibrary.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/comm/adapters/carrier.h"
#include "lockstep/comm/collective/op_kind.h"

namespace lockstep::internal {

// Thread rule: one thread at a time, except failure() and abort(), which any thread may call.
class Communicator {
 public:
  // Without abort(), waits for what is queued.
  virtual ~Communicator() = default;

  // Queues the call on the stream and does not wait for it. Buffers are the device's, and stay until it is over.
  // Error{internal} quotes the library; after that it is not called again. Error{aborted} after an abort().
  // REQUIRES: CommunicatorLibrary::supports(), and the same call on all ranks.
  virtual void enqueue(const CarrierCall& call, c10::Stream stream) = 0;
  // What the library reports to have failed meanwhile; empty: nothing. Never blocks.
  virtual std::string failure() noexcept = 0;
  // Ends what is queued, which leaves anything in the outputs, and lets the stream go on.
  virtual void abort() noexcept = 0;
};

// Where a communicator is to be made.
struct CommunicatorSite {
  int rank = 0;
  int size = 1;
  at::Device device;
  std::string id;  // of rank 0's CommunicatorLibrary::make_id()
  Deadline deadline = Deadline::never();
  std::function<void()> check_alive;  // throws if the group has ended
};

struct CommunicatorLibrary {
  std::string_view name;  // "nccl"
  at::DeviceType type = at::kCUDA;
  // Whether it can be done, in any number of ranks.
  bool (*supports)(OpKind kind, ReduceOp op, DType dtype) = nullptr;
  // Of at most kMaxCommunicatorId bytes; differs from all others.
  std::string (*make_id)() = nullptr;
  // What tells the physical device from all others of all hosts, in at most kMaxDeviceIdentity bytes. Ranks whose
  // devices have the same cannot be connected. Empty: any devices can.
  std::string (*identity)(at::Device device) = nullptr;
  // Blocks until all ranks have met. Error{timeout}; {internal}, which quotes the library; what check_alive() throws.
  std::unique_ptr<Communicator> (*connect)(const CommunicatorSite& site) = nullptr;
};
inline constexpr std::size_t kMaxCommunicatorId = 128;
inline constexpr std::size_t kMaxDeviceIdentity = 64;

// The library for devices of a type; null if this process has none.
const CommunicatorLibrary* communicators_for(at::DeviceType type) noexcept;
// Makes it the library for devices of its type, in place of another one; null for `library.connect`: of none. For
// tests. Thread-safe; groups that exist may keep the one they have.
void register_communicators(const CommunicatorLibrary& library);

}  // namespace lockstep::internal
