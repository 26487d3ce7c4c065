#include "lockstep/base/observe/flight_recorder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/stack_recorder.h"
#include "lockstep/base/tsc_clock.h"

namespace lockstep::internal {
namespace {

using flight::Slot;
using Words = std::array<std::uint64_t, flight::kWords>;

// How many slots that are being written a new operation passes by. Their writers are threads that were interrupted.
constexpr int kTries = 4;
// So many operations, that system calls among them cost nothing.
constexpr std::uint64_t kBetweenChecks = 64;

constexpr std::uint64_t version_of(const FlightTicket& ticket) { return ticket.number * 8 + ticket.step * 2U; }
constexpr std::uint8_t kOver = 2;

template <class Value>
void write(Slot& slot, const Value& value) {
  const auto words = std::bit_cast<Words>(value);
  // Released one by one: a reader that sees any of them also sees the odd version.
  for (std::size_t i = 0; i < words.size(); ++i) slot.words[i].store(words[i], std::memory_order_release);
}

// The slot's older owner, if any, loses it.
bool claim(Slot& slot, std::uint64_t version) {
  std::uint64_t found = slot.version.load(std::memory_order_relaxed);
  return (found & 1) == 0 && found < version &&
         slot.version.compare_exchange_strong(found, version | 1, std::memory_order_acq_rel, std::memory_order_relaxed);
}

// Where a name is, or is to be: the first free slot, and instead of an older one where none is free.
std::uint64_t place_of_name(const FlightMemory& memory, std::uint64_t hash) {
  for (std::uint64_t i = 0; i < FlightName::kPlaces; ++i) {
    const Slot& slot = memory.name(hash + i);
    if (slot.words[0].load(std::memory_order_relaxed) == hash || slot.version.load(std::memory_order_acquire) == 0) {
      return hash + i;
    }
  }
  return hash;
}

// Changes whole words of a record that lies in a slot.
class Change {
 public:
  Change(Slot& slot, FlightTicket& ticket) : slot_(slot), ticket_(ticket) {
    std::uint64_t expected = version_of(ticket);
    owned_ = slot.version.compare_exchange_strong(expected, expected | 1, std::memory_order_acq_rel,
                                                  std::memory_order_relaxed);
  }
  explicit operator bool() const { return owned_; }

  template <class Value>
  void set(std::size_t offset, Value value) {
    static_assert(sizeof value == sizeof(std::uint64_t));
    slot_.words[offset / sizeof value].store(std::bit_cast<std::uint64_t>(value), std::memory_order_release);
  }
  template <class Value>
  Value get(std::size_t offset) const {
    return std::bit_cast<Value>(slot_.words[offset / sizeof(std::uint64_t)].load(std::memory_order_relaxed));
  }
  void end(std::uint8_t step) {
    ticket_.step = step;
    slot_.version.store(version_of(ticket_), std::memory_order_release);
  }

 private:
  Slot& slot_;
  FlightTicket& ticket_;
  bool owned_ = false;
};

// Two of the record's words that hold several members.
struct TagWord {
  std::uint32_t tag;
  std::int32_t error_peer;
};
struct StateWord {
  FlightState state;
  FlightCategory category;
  DType dtype;
  std::uint8_t error;
  std::uint8_t reserved[4];
};
constexpr std::size_t kTagWord = offsetof(FlightRecord, tag);
constexpr std::size_t kStateWord = offsetof(FlightRecord, state);
static_assert(kTagWord % 8 == 0 && kStateWord % 8 == 0 && sizeof(StateWord) == 8 &&
              offsetof(FlightRecord, error) - kStateWord == offsetof(StateWord, error));

std::int64_t ns(TimePoint time) { return time.time_since_epoch().count(); }

}  // namespace

std::uint32_t FlightRecorder::add_group(std::string_view name, int rank, int size, JobRanks job_ranks) noexcept {
  FlightGroup group;
  group.number = memory_.header().groups_made.fetch_add(1, std::memory_order_relaxed) + 1;
  group.rank = rank;
  group.size = size;
  group.job_ranks = job_ranks;
  std::memcpy(group.name, name.data(), std::min(name.size(), sizeof group.name - 1));
  Slot& slot = memory_.group(group.number);
  const std::uint64_t version = version_of({group.number, kOver});
  if (claim(slot, version)) {
    write(slot, group);
    slot.version.store(version, std::memory_order_release);
  }
  return group.number;
}

void FlightRecorder::add_name(std::uint64_t hash, std::string_view text) noexcept {
  Slot& slot = memory_.name(place_of_name(memory_, hash));
  std::uint64_t version = slot.version.load(std::memory_order_acquire);
  if ((version & 1) != 0 || slot.words[0].load(std::memory_order_relaxed) == hash) return;
  if (!slot.version.compare_exchange_strong(version, version | 1, std::memory_order_acq_rel)) return;
  FlightName name;
  name.hash = hash;
  const auto printable = [](char c) { return c >= ' ' && c <= '~' ? c : '?'; };
  std::ranges::transform(text.substr(0, sizeof name.text - 1), std::begin(name.text), printable);
  write(slot, name);
  slot.version.store(version + 2, std::memory_order_release);
}

FlightName FlightRecorder::find_name(std::uint64_t hash) const noexcept {
  for (std::uint64_t i = 0; hash != 0 && i < FlightName::kPlaces; ++i) {
    FlightName name;
    if (read_slot(memory_.name(hash + i), name) == flight::SlotState::whole && name.hash == hash) return name;
  }
  return {};
}

FlightNames FlightRecorder::names() const {
  FlightNames names;
  for (std::size_t i = 0; i < flight::kNames; ++i) {
    FlightName name;
    if (read_slot(memory_.name(i), name) == flight::SlotState::whole) names.add(name);
  }
  return names;
}

FlightTicket FlightRecorder::add(FlightRecord& record) noexcept {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    FlightTicket ticket;
    ticket.number = memory_.header().operations.fetch_add(1, std::memory_order_relaxed) + 1;
    ticket.step = record.state == FlightState::issued ? 0 : 1;
    Slot& slot = memory_.slot(ticket.number);
    if (!claim(slot, version_of(ticket))) continue;
    record.number = ticket.number;
    write(slot, record);
    slot.version.store(version_of(ticket), std::memory_order_release);
    const bool is_early = std::has_single_bit(ticket.number);
    if (is_early || ticket.number % kBetweenChecks == 0) check_stack_recorder();
    return ticket;
  }
  return {};
}

void FlightRecorder::add_phase(FlightPhase& phase) noexcept {
  memory_.header().live.add(phase);
  phase.number = memory_.header().phases.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = memory_.phase(phase.number);
  const std::uint64_t version = version_of({phase.number, kOver});
  if (!claim(slot, version)) return;
  write(slot, phase);
  slot.version.store(version, std::memory_order_release);
}

bool FlightRecorder::start(FlightTicket& ticket, std::uint64_t sequence, TimePoint now) noexcept {
  if (ticket.number == 0 || ticket.step != 0) return false;
  Change change(memory_.slot(ticket.number), ticket);
  if (!change) return false;
  auto state = change.get<StateWord>(kStateWord);
  state.state = FlightState::running;
  change.set(offsetof(FlightRecord, sequence), sequence);
  change.set(offsetof(FlightRecord, started_ns), ns(now));
  change.set(kStateWord, state);
  change.end(1);
  return true;
}

bool FlightRecorder::finish(FlightTicket& ticket, TimePoint now, FlightState state, std::uint8_t error,
                            int error_peer) noexcept {
  if (ticket.number == 0 || ticket.step == kOver) return false;
  Change change(memory_.slot(ticket.number), ticket);
  if (!change) return false;
  auto states = change.get<StateWord>(kStateWord);
  states.state = state;
  states.error = error;
  change.set(offsetof(FlightRecord, finished_ns), ns(now));
  change.set(kStateWord, states);
  if (error_peer >= 0) {
    auto tag = change.get<TagWord>(kTagWord);
    tag.error_peer = error_peer;
    change.set(kTagWord, tag);
  }
  change.end(kOver);
  return true;
}

std::optional<FlightRecord> FlightRecorder::find(std::uint64_t number) const noexcept {
  FlightRecord record;
  const bool found = number != 0 && read_slot(memory_.slot(number), record) == flight::SlotState::whole;
  return found && record.number == number ? std::optional(record) : std::nullopt;
}

FlightLog::FlightLog(FlightRecorder& recorder, std::string_view name, int rank, int size, JobRanks job_ranks)
    : group_(std::make_shared<Group>(recorder, recorder.add_group(name, rank, size, job_ranks))) {}

FlightTicket FlightLog::issue(FlightRecord record) const noexcept {
  if (group_ == nullptr) return {};
  record.group = group_->number;
  record.state = FlightState::issued;
  const TimePoint now = tsc_clock().now();
  record.issued_ns = ns(now);
  FlightTicket ticket = group_->recorder.add(record);
  ticket.since = now;
  return ticket;
}

TimePoint FlightLog::now() noexcept { return tsc_clock().now(); }

FlightTicket FlightLog::start(FlightRecord record, FlightTicket queued, TimePoint begun) const noexcept {
  if (group_ == nullptr) return {};
  if (!group_->recorder.start(queued, record.sequence, begun)) {
    record.group = group_->number;
    record.state = FlightState::running;
    record.issued_ns = record.started_ns = ns(begun);
    queued = group_->recorder.add(record);
  }
  if (record.category == FlightCategory::collective) group_->last.store(queued.number, std::memory_order_relaxed);
  queued.since = begun;
  return queued;
}

TimePoint FlightLog::finish(FlightTicket& ticket) const noexcept {
  const TimePoint now = tsc_clock().now();
  if (group_ != nullptr) group_->recorder.finish(ticket, now, FlightState::done, 0, -1);
  return now;
}

void FlightLog::fail(FlightTicket& ticket, const Error& error) const noexcept {
  if (group_ == nullptr) return;
  const auto kind = static_cast<std::uint8_t>(static_cast<int>(error.kind()) + 1);
  group_->recorder.finish(ticket, tsc_clock().now(), FlightState::failed, kind, error.detail().peer);
}

std::optional<FlightRecord> FlightLog::last_collective() const noexcept {
  return group_ == nullptr ? std::nullopt : group_->recorder.find(group_->last.load(std::memory_order_relaxed));
}

}  // namespace lockstep::internal
