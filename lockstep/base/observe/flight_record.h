// A FlightRecord is the flight recorder's record of one operation: a collective or a message. It is stored as it is:
// trivially copyable, without addresses. Values; nothing here blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/error.h"

namespace lockstep::internal {

enum class FlightState : std::uint8_t { issued, running, done, failed };
enum class FlightCategory : std::uint8_t { collective, message };

// Times are nanoseconds of the recording machine's monotonic clock; 0: not yet.
struct FlightRecord {
  std::uint64_t number = 0;    // of all operations of the process, from 1
  std::uint64_t sequence = 0;  // of the group's collectives, from 1; 0: a message, or still queued
  std::uint64_t count = 0;     // elements; of a message bytes
  std::uint64_t name = 0;      // its hash, plus a number; 0: nameless. See FlightNames
  std::int64_t issued_ns = 0;
  std::int64_t started_ns = 0;
  std::int64_t finished_ns = 0;
  std::uint32_t group = 0;       // number of the FlightGroup
  std::int32_t peer = -1;        // the root, or the other rank of a message; -1: none, or any
  std::uint32_t tag = 0;         // of a message
  std::int32_t error_peer = -1;  // the rank that the error names
  FlightState state = FlightState::issued;
  FlightCategory category = FlightCategory::collective;
  DType dtype = DType::u8;
  std::uint8_t error = 0;  // its ErrorKind + 1; 0: none
  std::uint8_t reserved[4] = {};
  char operation[24] = {};  // "all_reduce"; both end with a zero
  char reduction[16] = {};  // "sum"; empty where nothing is reduced

  // Set once; longer texts are cut.
  void set_operation(std::string_view text) { text.copy(operation, sizeof operation - 1); }
  void set_reduction(std::string_view text) { text.copy(reduction, sizeof reduction - 1); }
};
static_assert(sizeof(FlightRecord) == 120 && std::is_trivially_copyable_v<FlightRecord>);

// Which ranks of the job a group has: first, first + stride, ... with stride 0: not known, or no such series.
struct JobRanks {
  std::int32_t first = 0;
  std::int32_t stride = 0;

  static JobRanks of(std::span<const int> ranks);
  // -1: not known.
  int at(int rank) const;
};

// A group of ranks as one process knows it.
struct FlightGroup {
  std::uint32_t number = 0;  // of all groups of the process, from 1
  std::int32_t rank = -1;    // of this process in it
  std::int32_t size = 0;
  JobRanks job_ranks = {};
  char name[100] = {};  // the same in all its ranks; ends with a zero
};
static_assert(sizeof(FlightGroup) == sizeof(FlightRecord) && std::is_trivially_copyable_v<FlightGroup>);

// The text of a hash.
struct FlightName {
  // In how many slots, from that of its hash on, a name may lie.
  static constexpr std::uint64_t kPlaces = 8;

  std::uint64_t hash = 0;
  char text[112] = {};  // ends with a zero; longer names are cut
};
static_assert(sizeof(FlightName) == sizeof(FlightRecord) && std::is_trivially_copyable_v<FlightName>);

// Names by their hashes: ranks exchange 64 bits, users read the text. A name with a counter, such as the bucket of
// every backward, has one text, and the counter is added to its hash.
class FlightNames {
 public:
  void add(const FlightName& name) { names_.push_back(name); }
  void add(const FlightNames& names) { names_.insert(names_.end(), names.names_.begin(), names.names_.end()); }
  // "gradient bucket 0 (fc.weight) of backward 17"; "name 57abdf012b6c2958" if the text is not known.
  std::string text_of(std::uint64_t name) const;

 private:
  std::vector<FlightName> names_;
};

// Whether a recorder can have written it; it may come from another process or a damaged file.
bool is_sound(const FlightRecord& record);
bool is_sound(const FlightGroup& group);
bool is_sound(const FlightName& name);

std::string_view to_string(FlightState state);
// "all_reduce(sum) #41 of 1024 float32, split", "send of 12 bytes with tag 7 to rank 1"
std::string describe(const FlightRecord& record, const FlightNames& names = {});

// The name of an all-gather that carries an all-reduce of numbers begins with this. Texts show the all-reduce.
inline constexpr std::string_view kNumbersName = "all_reduce of ";
// "all_reduce #12 of a number: loss, sum of float64"; nullopt for all other operations.
std::optional<std::string> describe_numbers(std::string_view operation, std::uint64_t sequence, std::string_view name);

}  // namespace lockstep::internal
