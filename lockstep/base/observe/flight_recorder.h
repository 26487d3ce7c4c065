// The FlightRecorder keeps the last operations of this process in memory that outlives it; a FlightLog is one group's
// handle to it. group, engine -> FlightLog -> FlightRecorder -> FlightMemory -> (launcher: file -> lockstep trace). Any
// thread may call anything here; nothing blocks, allocates (but for making a log) or throws. Recording one operation
// costs some tens of nanoseconds, most of them for reading the clock twice.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/observe/flight_memory.h"
#include "lockstep/base/observe/flight_record.h"

namespace lockstep::internal {

// An operation in the recording, and the last recorded step. A value.
struct FlightTicket {
  std::uint64_t number = 0;  // 0: not recorded
  std::uint8_t step = 0;     // 0 issued, 1 running, 2 over
  TimePoint since = {};      // when it was issued, or began
};

class FlightRecorder {
 public:
  explicit FlightRecorder(FlightMemory memory) : memory_(std::move(memory)) { memory_.sign(); }

  // The number by which records name the group.
  std::uint32_t add_group(std::string_view name, int rank, int size, JobRanks job_ranks = {}) noexcept;
  // Keeps the text of a hash; of several that share a slot, the newest.
  void add_name(std::uint64_t hash, std::string_view text) noexcept;
  FlightNames names() const;
  // Empty if the hash is not known.
  FlightName find_name(std::uint64_t hash) const noexcept;
  // Takes a slot for the record and sets the record's number.
  FlightTicket add(FlightRecord& record) noexcept;
  // Changes the record to `step`; other fields are kept. False if its slot belongs to a later operation.
  bool start(FlightTicket& ticket, std::uint64_t sequence, TimePoint now) noexcept;
  bool finish(FlightTicket& ticket, TimePoint now, FlightState state, std::uint8_t error, int error_peer) noexcept;
  // Sets the phase's number. It is over already.
  void add_phase(FlightPhase& phase) noexcept;
  // A step of a wrapped model is over.
  void count_step() noexcept { memory_.header().live.steps.fetch_add(1, std::memory_order_relaxed); }
  // Nothing if it has been overwritten, or is being changed right now.
  std::optional<FlightRecord> find(std::uint64_t number) const noexcept;

  const FlightMemory& memory() const { return memory_; }

 private:
  FlightMemory memory_;
};

// A copyable handle. One without a recorder records nothing.
class FlightLog {
 public:
  FlightLog() = default;
  // `recorder` is borrowed. name: the same on all ranks of the group.
  FlightLog(FlightRecorder& recorder, std::string_view name, int rank, int size, JobRanks job_ranks = {});

  // For an operation that is queued.
  FlightTicket issue(FlightRecord record) const noexcept;
  static TimePoint now() noexcept;
  // The operation begins, or has begun at `begun`: before the others can see it. `queued`: the result of issue(), if it
  // was queued.
  FlightTicket start(FlightRecord record, FlightTicket queued = {}, TimePoint begun = now()) const noexcept;
  // The operation has ended; returns the time. Does nothing for an operation that has ended before.
  TimePoint finish(FlightTicket& ticket) const noexcept;
  void fail(FlightTicket& ticket, const Error& error) const noexcept;

  // The last collective that was started, if the recording still has it.
  std::optional<FlightRecord> last_collective() const noexcept;

 private:
  struct Group {
    FlightRecorder& recorder;
    std::uint32_t number;
    std::atomic<std::uint64_t> last{0};
  };
  std::shared_ptr<Group> group_;
};

}  // namespace lockstep::internal
