#include "lockstep/base/observe/flight_record.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <span>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

bool is_text(std::span<const char> field) {
  const auto end = std::ranges::find(field, '\0');
  return end != field.end() && std::all_of(field.begin(), end, [](unsigned char c) { return std::isprint(c) != 0; });
}

// So that times can be added and subtracted.
bool is_time(std::int64_t ns) { return ns >= 0 && ns <= std::int64_t{1} << 62; }

}  // namespace

bool is_sound(const FlightRecord& record) {
  return is_time(record.issued_ns) && is_time(record.started_ns) && is_time(record.finished_ns) && record.number != 0 &&
         record.state <= FlightState::failed && record.category <= FlightCategory::message &&
         record.dtype <= DType::opaque && record.error <= static_cast<int>(ErrorKind::internal) + 1 &&
         is_text(record.operation) && is_text(record.reduction);
}

bool is_sound(const FlightGroup& group) {
  return group.number != 0 && group.size > 0 && group.rank >= 0 && group.rank < group.size && is_text(group.name);
}

JobRanks JobRanks::of(std::span<const int> ranks) {
  if (ranks.empty()) return {};
  const int stride = ranks.size() == 1 ? 1 : ranks[1] - ranks[0];
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != stride) return {};
  }
  return {.first = ranks.front(), .stride = stride};
}

int JobRanks::at(int rank) const {
  const std::int64_t found = first + std::int64_t{stride} * rank;
  return stride == 0 || rank < 0 || found < 0 || found > std::numeric_limits<int>::max() ? -1 : static_cast<int>(found);
}

bool is_sound(const FlightName& name) { return name.hash != 0 && is_text(name.text); }

std::string FlightNames::text_of(std::uint64_t name) const {
  // More backwards than this nobody makes; and hashes lie farther apart.
  constexpr std::uint64_t kMostNumbers = std::uint64_t{1} << 32;
  const auto exact = std::ranges::find(names_, name, &FlightName::hash);
  if (exact != names_.end()) return exact->text;
  for (const FlightName& each : names_) {
    const std::uint64_t number = name - each.hash;
    if (number < kMostNumbers) return fmt::format("{} {}", each.text, number);
  }
  return fmt::format("name {:016x}", name);
}

std::string_view to_string(FlightState state) {
  constexpr std::array<std::string_view, 4> kNames = {"issued", "running", "done", "failed"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::optional<std::string> describe_numbers(std::string_view operation, std::uint64_t sequence, std::string_view name) {
  if (operation != "all_gather" || !name.starts_with(kNumbersName)) return std::nullopt;
  const std::string place = sequence == 0 ? "" : fmt::format("#{} ", sequence);
  return fmt::format("all_reduce {}of {}", place, name.substr(kNumbersName.size()));
}

std::string describe(const FlightRecord& record, const FlightNames& names) {
  const std::string_view operation = record.operation;
  const std::string name = record.name == 0 ? "" : names.text_of(record.name);
  if (const auto numbers = describe_numbers(operation, record.sequence, name)) return *numbers;
  std::string text(operation);
  if (record.category == FlightCategory::message) {
    const std::string peer = record.peer < 0 ? "any rank" : fmt::format("rank {}", record.peer);
    return text + fmt::format(" of {} bytes with tag {} {} {}", record.count, static_cast<std::int32_t>(record.tag),
                              operation == "send" ? "to" : "from", peer);
  }
  if (record.reduction[0] != '\0') text += fmt::format("({})", record.reduction);
  if (record.sequence != 0) text += fmt::format(" #{}", record.sequence);
  if (record.count != 0) {
    text += fmt::format(" of {} {}", record.count, to_string(record.dtype));
  } else if (record.dtype != DType::u8) {
    text += fmt::format(" of {}", to_string(record.dtype));
  }
  if (record.peer >= 0) {
    const bool outward = operation == "broadcast" || operation == "scatter";
    text += fmt::format(" {} rank {}", outward ? "from" : "to", record.peer);
  }
  if (record.name != 0) text += ", " + name;
  return text;
}

}  // namespace lockstep::internal
