// FlightMemory owns the memory of one rank's flight recording. launcher or process -> FlightMemory -> FlightRecorder.
// Movable, not copyable; not thread-safe. Nothing here waits for another process.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/flight_layout.h"
#include "lockstep/base/observe/stack_layout.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

// The owner of a recording.
struct FlightIdentity {
  int rank = -1;  // of the job
  int world_size = 0;
  std::string job_id = {};
};

// How the last operation that ended has failed, or else the start.
struct FlightFailure {
  ErrorKind kind = ErrorKind::internal;
  int peer = -1;        // the rank of the job that the error names; -1: unknown
  bool is_own = false;  // it names the recording rank itself
};

class FlightMemory {
 public:
  // Ends with the process.
  static FlightMemory make_private(const FlightIdentity& identity);
  // An anonymous memory file of fixed size (close-on-exec), with room for stacks: a launcher makes it and keeps it, a
  // rank inherits it.
  static FlightMemory make_shared(const FlightIdentity& identity);
  // The memory that another process made with make_shared(). Takes the descriptor only if it is such memory: otherwise
  // Error{corrupt_data}.
  static FlightMemory inherit(int fd);
  // A file at `path` (mode 0600), replacing any other. Errors with the path if it cannot be made.
  static FlightMemory make_file(const std::string& path, const FlightIdentity& identity);

  FlightMemory(FlightMemory&& other) noexcept;
  FlightMemory& operator=(FlightMemory&&) = delete;
  ~FlightMemory();

  flight::FlightHeader& header() const { return *reinterpret_cast<flight::FlightHeader*>(data_); }
  flight::Slot& group(std::uint64_t number) const { return at(flight::kGroupsOffset, flight::group_slot(number)); }
  flight::Slot& slot(std::uint64_t number) const { return at(flight::kSlotsOffset, number % flight::kSlots); }
  flight::Slot& name(std::uint64_t hash) const { return at(flight::kNamesOffset, hash % flight::kNames); }
  flight::Slot& phase(std::uint64_t number) const { return at(flight::kPhasesOffset, number % flight::kPhases); }
  int fd() const { return fd_.get(); }
  // Null if there is no room for them, or it is of another version.
  stacks::StackArea* stacks() const;

  // Writes into the recording which process records, and the time of its clocks.
  void sign() const;
  // Whether a process has done so.
  bool is_signed() const { return header().pid.load(std::memory_order_acquire) != 0; }
  // The ranks' group could not be connected. peer: that the error names, or -1.
  void note_failed_start(ErrorKind kind, int peer) const;
  // Nothing if the last operation that ended succeeded, or none has ended and the start has not failed.
  std::optional<FlightFailure> last_failure() const;
  // Writes a copy to a file (mode 0600), with how the process ended. Errors as AtomicFile's.
  void save(const std::string& path, std::string_view ended) const;

 private:
  FlightMemory(UniqueFd fd, std::byte* data, std::size_t bytes) : fd_(std::move(fd)), data_(data), bytes_(bytes) {}
  static FlightMemory map(UniqueFd fd, std::size_t bytes, const std::string& what);
  void format(const FlightIdentity& identity) const;
  std::optional<FlightFailure> failed_start() const;
  flight::Slot& at(std::size_t offset, std::size_t index) const {
    return reinterpret_cast<flight::Slot*>(data_ + offset)[index];
  }

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::internal
