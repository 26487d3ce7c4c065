#include "lockstep/observe/flight_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/observe/flight_layout.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
namespace {

using flight::FlightHeader;
using flight::Slot;
using flight::SlotState;

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::corrupt_data, fmt::format("{} is no flight recording, or damaged: {}", path, what));
}

// Mapped, since its process may still be recording: what is read must be looked at twice.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) {
      throw Error(ErrorKind::invalid_argument, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) throw system_error("looking at " + path, errno);
    if (!S_ISREG(status.st_mode)) damaged(path, "it is not a file");
    if (status.st_size < static_cast<off_t>(sizeof(FlightHeader))) {
      damaged(path, fmt::format("{} bytes are too few", status.st_size));
    }
    bytes_ = static_cast<std::size_t>(status.st_size);
    void* data = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) throw system_error("mapping " + path, errno);
    data_ = static_cast<const std::byte*>(data);
  }
  ~MappedFile() { ::munmap(const_cast<std::byte*>(data_), bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::size_t bytes() const { return bytes_; }
  const FlightHeader& header() const { return *reinterpret_cast<const FlightHeader*>(data_); }
  std::span<const Slot> slots(std::size_t offset, std::size_t count) const {
    return {reinterpret_cast<const Slot*>(data_ + offset), count};
  }

 private:
  const std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

void check_header(const MappedFile& file, const std::string& path) {
  const FlightHeader& header = file.header();
  if (header.magic != flight::kMagic) damaged(path, "it does not begin as one");
  if (header.version != flight::kVersion) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} is a flight recording of version {}; this program reads version {}: use the lockstep "
                            "command of the version that recorded it",
                            path, header.version, flight::kVersion));
  }
  if (header.slots != flight::kSlots || header.groups != flight::kGroups) damaged(path, "its header is wrong");
  if (file.bytes() != flight::kBytes) {
    damaged(path, fmt::format("it has {} bytes where {} belong", file.bytes(), flight::kBytes));
  }
}

std::string text(std::span<const char> field, const std::string& path) {
  const auto end = std::ranges::find(field, '\0');
  const bool printable = std::all_of(field.begin(), end, [](unsigned char c) { return c >= ' ' && c != 0x7f; });
  if (end == field.end() || !printable) damaged(path, "a text in its header is none");
  return {field.begin(), end};
}

// Where a value belongs, among as many slots as there are of its kind.
std::uint64_t key_of(const FlightGroup& group) { return group.number; }
std::uint64_t key_of(const FlightRecord& record) { return record.number; }
std::uint64_t key_of(const FlightName& name) { return name.hash; }

template <class Value>
std::vector<Value> take(std::span<const Slot> slots, const char* what, FlightSnapshot& snapshot) {
  std::vector<Value> values;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Value value;
    const SlotState state = read_slot(slots[i], value);
    if (state == SlotState::empty) continue;
    if (state == SlotState::torn) {
      ++snapshot.torn;
    } else if (!is_sound(value) || key_of(value) % slots.size() != i) {
      damaged(snapshot.path, fmt::format("{} in slot {} makes no sense", what, i));
    } else {
      values.push_back(value);
    }
  }
  std::ranges::sort(values, {}, [](const Value& value) { return key_of(value); });
  return values;
}

}  // namespace

FlightSnapshot read_flight_file(const std::string& path) {
  const MappedFile file(path);
  check_header(file, path);
  const FlightHeader& header = file.header();
  FlightSnapshot snapshot;
  snapshot.path = path;
  snapshot.rank = header.rank;
  snapshot.world_size = header.world_size;
  snapshot.pid = header.pid.load(std::memory_order_acquire);
  snapshot.host = text(header.host, path);
  snapshot.job = text(header.job, path);
  snapshot.ended = text(header.ended, path);
  snapshot.wall_ns = header.wall_ns;
  snapshot.monotonic_ns = header.monotonic_ns;
  snapshot.operations = header.operations.load(std::memory_order_relaxed);
  snapshot.groups = take<FlightGroup>(file.slots(flight::kGroupsOffset, flight::kGroups), "the group", snapshot);
  snapshot.records = take<FlightRecord>(file.slots(flight::kSlotsOffset, flight::kSlots), "the operation", snapshot);
  for (const FlightName& name :
       take<FlightName>(file.slots(flight::kNamesOffset, flight::kNames), "the name", snapshot)) {
    snapshot.names.add(name);
  }
  return snapshot;
}

std::vector<FlightSnapshot> read_flight_directory(const std::string& directory) {
  std::vector<FlightSnapshot> snapshots;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (is_flight_file_name(path.filename().string())) snapshots.push_back(read_flight_file(path.string()));
  }
  if (error) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("cannot read the directory {}: {}", directory, error.message()));
  }
  if (snapshots.empty()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} holds no flight recordings (files rank_<r>.flight)", directory));
  }
  std::ranges::sort(snapshots, {}, &FlightSnapshot::rank);
  for (const FlightSnapshot& each : snapshots) {
    if (each.job == snapshots.front().job) continue;
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{} and {} are recordings of two jobs, {} and {}", snapshots.front().path, each.path,
                            snapshots.front().job, each.job));
  }
  return snapshots;
}

}  // namespace lockstep
