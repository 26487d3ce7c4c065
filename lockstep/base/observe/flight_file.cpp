#include "lockstep/base/observe/flight_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/flight_layout.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/observe/stack_layout.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {
namespace {

using flight::FlightHeader;
using flight::Slot;

// The limit for a file of another size or kind.
constexpr std::size_t kMostBytes = flight::kBytes + 1;
// A file whose process is recording is read again while records of it were being written, this many times.
constexpr int kAttempts = 100;
constexpr std::int64_t kLatestNs = std::int64_t{1} << 62;

std::string damaged(const std::string& path) { return path + " is not a flight recording, or is damaged"; }

UniqueFd open_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw Error(ErrorKind::invalid_argument, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw system_error("reading the status of " + path, errno);
  if (!S_ISREG(status.st_mode)) throw_corrupt(damaged(path), "it is not a regular file");
  return fd;
}

// Copied and not mapped: a file may be cut while it is read.
Bytes copy_of(int fd, const std::string& path) {
  struct stat status {};
  const bool has_stacks = ::fstat(fd, &status) == 0 && status.st_size == static_cast<off_t>(stacks::kSharedBytes);
  return read_at(fd, 0, has_stacks ? flight::kBytes : kMostBytes, "reading " + path);
}

// REQUIRES: it lies within the bytes.
template <class Value>
Value value_at(ByteView bytes, std::size_t offset) {
  Value value;
  std::memcpy(static_cast<void*>(&value), bytes.data() + offset, sizeof value);
  return value;
}

void check_layout(ByteView bytes, const std::string& path) {
  const std::string what = damaged(path);
  if (bytes.size() < sizeof(FlightHeader)) throw_corrupt(what, fmt::format("it is too short: {} bytes", bytes.size()));
  if (value_at<std::uint64_t>(bytes, offsetof(FlightHeader, magic)) != flight::kMagic) {
    throw_corrupt(what, "it does not begin with the magic number");
  }
  const auto version = value_at<std::uint32_t>(bytes, offsetof(FlightHeader, version));
  if (version != flight::kVersion) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} is a flight recording of version {}, but this program reads version {}; use the "
                            "lockstep command of the version that recorded it",
                            path, version, flight::kVersion));
  }
  checked_between(value_at<std::uint32_t>(bytes, offsetof(FlightHeader, slots)), flight::kSlots, flight::kSlots,
                  "number of operations", what);
  checked_between(value_at<std::uint32_t>(bytes, offsetof(FlightHeader, groups)), flight::kGroups, flight::kGroups,
                  "number of groups", what);
  checked_between(bytes.size(), flight::kBytes, flight::kBytes, "number of bytes", what);
}

// A text of `size` bytes with its final zero.
std::string text_at(ByteView bytes, std::size_t offset, std::size_t size, const std::string& path) {
  const ByteView field = bytes.substr(offset, size), text = field.substr(0, field.find('\0'));
  const bool printable = std::ranges::all_of(text, [](unsigned char c) { return c >= ' ' && c != 0x7f; });
  if (text.size() == field.size() || !printable) throw_corrupt(damaged(path), "a text in its header is not printable");
  return std::string(text);
}

// A value's slot is its key modulo the number of slots, but for groups and names.
std::uint64_t key_of(const FlightGroup& group) { return group.number; }
std::uint64_t key_of(const FlightRecord& record) { return record.number; }
std::uint64_t key_of(const FlightName& name) { return name.hash; }
std::uint64_t key_of(const FlightPhase& phase) { return phase.number; }

template <class Value>
bool is_place_of(const Value& value, std::size_t slot, std::size_t slots) {
  return key_of(value) % slots == slot;
}
template <>
bool is_place_of(const FlightGroup& group, std::size_t slot, std::size_t /*slots*/) {
  return flight::group_slot(group.number) == slot;
}
template <>
bool is_place_of(const FlightName& name, std::size_t slot, std::size_t slots) {
  return (slot + slots - name.hash % slots) % slots < FlightName::kPlaces;
}

// The slots from an offset on: those whose version was the same before and after their words were copied, and even.
template <class Value>
std::vector<Value> take(const FlightCopies& copies, std::size_t offset, std::size_t slots, const char* what,
                        FlightSnapshot& snapshot) {
  std::vector<Value> values;
  for (std::size_t i = 0; i < slots; ++i) {
    const std::size_t slot = offset + i * sizeof(Slot);
    const auto before = value_at<std::uint64_t>(copies.before, slot + offsetof(Slot, version));
    const auto after = value_at<std::uint64_t>(copies.after, slot + offsetof(Slot, version));
    if (before == 0 && after == 0) continue;
    if (before != after || before % 2 != 0) {
      ++snapshot.torn;
      continue;
    }
    const auto value = value_at<Value>(copies.words, slot + offsetof(Slot, words));
    if (!is_sound(value) || !is_place_of(value, i, slots)) {
      throw_corrupt(damaged(snapshot.path), fmt::format("{} in slot {} is invalid", what, i));
    }
    values.push_back(value);
  }
  std::ranges::sort(values, {}, [](const Value& value) { return key_of(value); });
  return values;
}

}  // namespace

FlightSnapshot decode_flight(const FlightCopies& copies, const std::string& path) {
  for (const ByteView copy : {copies.before, copies.words, copies.after}) check_layout(copy, path);
  const ByteView header = copies.words;
  const std::string what = damaged(path);
  const auto time_at = [&](std::size_t offset) {
    return checked_between<std::int64_t>(value_at<std::int64_t>(header, offset), 0, kLatestNs, "time", what);
  };
  FlightSnapshot snapshot;
  snapshot.path = path;
  snapshot.rank = checked_rank_or_none(value_at<std::int32_t>(header, offsetof(FlightHeader, rank)), kMostRanks, what);
  snapshot.world_size = checked_between(value_at<std::int32_t>(header, offsetof(FlightHeader, world_size)), 0,
                                        kMostRanks, "world size", what);
  snapshot.pid =
      checked_between(value_at<std::int32_t>(header, offsetof(FlightHeader, pid)), 0, INT_MAX, "process id", what);
  snapshot.host = text_at(header, offsetof(FlightHeader, host), sizeof(FlightHeader::host), path);
  snapshot.job = text_at(header, offsetof(FlightHeader, job), sizeof(FlightHeader::job), path);
  snapshot.ended = text_at(header, offsetof(FlightHeader, ended), sizeof(FlightHeader::ended), path);
  snapshot.wall_ns = time_at(offsetof(FlightHeader, wall_ns));
  snapshot.monotonic_ns = time_at(offsetof(FlightHeader, monotonic_ns));
  snapshot.operations = value_at<std::uint64_t>(header, offsetof(FlightHeader, operations));
  snapshot.groups = take<FlightGroup>(copies, flight::kGroupsOffset, flight::kGroups, "the group", snapshot);
  snapshot.records = take<FlightRecord>(copies, flight::kSlotsOffset, flight::kSlots, "the operation", snapshot);
  for (const FlightName& name : take<FlightName>(copies, flight::kNamesOffset, flight::kNames, "the name", snapshot)) {
    snapshot.names.add(name);
  }
  snapshot.phases = take<FlightPhase>(copies, flight::kPhasesOffset, flight::kPhases, "the phase", snapshot);
  return snapshot;
}

FlightSnapshot read_flight_file(const std::string& path) {
  const UniqueFd fd = open_file(path);
  Bytes before = copy_of(fd.get(), path);
  for (int attempt = 1;; ++attempt) {
    const Bytes words = copy_of(fd.get(), path);
    Bytes after = copy_of(fd.get(), path);
    FlightSnapshot snapshot = decode_flight({before, words, after}, path);
    if (snapshot.torn == 0 || before == after || attempt == kAttempts) return snapshot;
    before = std::move(after);
  }
}

std::vector<FlightSnapshot> read_flight_directory(const std::string& directory) {
  std::vector<FlightSnapshot> snapshots;
  std::vector<Error> damaged;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (!is_flight_file_name(path.filename().string())) continue;
    try {
      snapshots.push_back(read_flight_file(path.string()));
    } catch (const Error& unread) {
      damaged.push_back(unread);
    }
  }
  if (error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("cannot read the directory {}: {}", directory, error.message()));
  }
  if (snapshots.empty() && !damaged.empty()) throw Error(damaged.front());
  for (const Error& each : damaged) log_warning(fmt::format("{}; it is skipped", each.what()));
  if (snapshots.empty()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} holds no flight recordings (files rank_<r>.flight)", directory));
  }
  std::ranges::sort(snapshots, {}, &FlightSnapshot::rank);
  for (const FlightSnapshot& each : snapshots) {
    if (each.job == snapshots.front().job) continue;
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{} and {} are recordings of different jobs, {} and {}; give a folder with those of one job",
                    snapshots.front().path, each.path, snapshots.front().job, each.job));
  }
  return snapshots;
}

}  // namespace lockstep::internal
