// The FlightRecorder keeps the last operations of this process in memory that outlives it; a FlightLog is one group's
// way to it. group, engine -> FlightLog -> FlightRecorder -> FlightMemory -> (launcher: file -> lockstep trace).
// Any thread may call anything here; nothing blocks, allocates (but for making a log) or throws. Recording one
// operation costs some tens of nanoseconds, most of them for reading the clock twice.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/observe/flight_memory.h"
#include "lockstep/observe/flight_record.h"

namespace lockstep {

// An operation that is being recorded, and how far it had come. A value.
struct FlightTicket {
  std::uint64_t number = 0;  // 0: of none
  std::uint8_t step = 0;     // 0 issued, 1 running, 2 over
};

class FlightRecorder {
 public:
  explicit FlightRecorder(FlightMemory memory) : memory_(std::move(memory)) { memory_.sign(); }

  // The number by which records name the group.
  std::uint32_t add_group(std::string_view name, int rank, int size) noexcept;
  // Keeps what a hash stands for; the newest of those that fall on one place stays.
  void add_name(std::uint64_t hash, std::string_view text) noexcept;
  FlightNames names() const;
  // Empty if it is not known.
  FlightName find_name(std::uint64_t hash) const noexcept;
  // Takes a slot for the record, whose number it sets.
  FlightTicket add(FlightRecord& record) noexcept;
  // Changes the record to `step`; what is not given stays. False if its slot belongs to a later operation.
  bool start(FlightTicket& ticket, std::uint64_t sequence, TimePoint now) noexcept;
  bool finish(FlightTicket& ticket, TimePoint now, FlightState state, std::uint8_t error, int error_peer) noexcept;
  // Nothing if it has been overwritten, or is being changed at this moment.
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
  FlightLog(FlightRecorder& recorder, std::string_view name, int rank, int size);

  // For an operation that waits for its turn.
  FlightTicket issue(FlightRecord record) const noexcept;
  // It begins now. `queued`: what issue() returned for it, if it had to wait.
  FlightTicket start(FlightRecord record, FlightTicket queued = {}) const noexcept;
  // It has ended; the time of it. Nothing happens to one that has ended before.
  TimePoint finish(FlightTicket& ticket) const noexcept;
  void fail(FlightTicket& ticket, const Error& error) const noexcept;

  // The collective that was started last, if the recording still holds it.
  std::optional<FlightRecord> last_collective() const noexcept;

 private:
  struct Group {
    FlightRecorder& recorder;
    std::uint32_t number;
    std::atomic<std::uint64_t> last{0};
  };
  std::shared_ptr<Group> group_;
};

}  // namespace lockstep
