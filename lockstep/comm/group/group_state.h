// The state of a group: what its handles share. Internal to group/.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "lockstep/base/fork_guard.h"
#include "lockstep/comm/collective/engine.h"
#include "lockstep/comm/group/call_queue.h"
#include "lockstep/comm/group/device_calls.h"
#include "lockstep/comm/group/group_handle.h"
#include "lockstep/comm/group/turns.h"
#include "lockstep/comm/messages/messenger.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep {

struct GroupHandle::State {
  State(std::unique_ptr<internal::Engine> engine, const GroupOptions& options, std::unique_ptr<internal::Mesh> messages,
        std::shared_ptr<const internal::GroupOrigin> origin);
  // Ends a state that no handle needs any more. In a forked child, which has none of its threads, it stays; and where a
  // thread of the group itself lets go of the last handle, which cannot wait for its own end, another one ends it.
  static void destroy(State* state);
  ~State() { parting = devices.finish(); }

  Deadline deadline(const CallOptions& options) const;
  // Error{invalid_argument} if the group has none.
  internal::Messenger& messenger();
  // Also where this rank has not sent a message yet: the others may wait for one.
  void abort_messages(std::string_view reason) noexcept;

  internal::DeviceCalls::Communicators parting;  // first member: they end last
  const internal::ForkGuard fork_guard;
  const std::unique_ptr<internal::Engine> engine;
  const std::shared_ptr<internal::ArenaHeap> heap;  // null where ranks share no memory
  const GroupOptions options;
  const std::shared_ptr<const internal::GroupOrigin> origin;
  internal::Turns turns_to_split{[] {}};
  int splits = 0;  // of whose turn it is
  std::atomic<std::uint64_t> monitored_barriers{0};
  const internal::FlightLog log;

  std::mutex messenger_mutex;
  // State below is protected by messenger_mutex.
  std::unique_ptr<internal::Mesh> messages;  // until the messenger has it
  std::unique_ptr<internal::Messenger> the_messenger;

  internal::DeviceCalls devices;
  internal::CallQueue calls;  // last member: its thread must end first
};

// Of the source.
inline std::uint16_t line_of(const CallOptions& options) { return static_cast<std::uint16_t>(options.where.line()); }

}  // namespace lockstep
