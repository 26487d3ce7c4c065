#include "lockstep/base/observe/flight_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/file_io.h"
#include "lockstep/base/open_for_writing.h"

namespace lockstep::internal {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

void put(std::span<char> field, std::string_view text) {
  std::ranges::fill(field, '\0');
  std::memcpy(field.data(), text.data(), std::min(text.size(), field.size() - 1));
}

std::int64_t wall_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Duration>(now).count();
}

}  // namespace

FlightMemory FlightMemory::map(UniqueFd fd, std::size_t bytes, const std::string& what) {
  const int flags = fd ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd.get(), 0);
  if (data == MAP_FAILED) throw system_error("mapping " + what, errno);
  return {std::move(fd), static_cast<std::byte*>(data), bytes};
}

FlightMemory::FlightMemory(FlightMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

FlightMemory::~FlightMemory() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

FlightMemory FlightMemory::make_private(const FlightIdentity& identity) {
  FlightMemory memory = map(UniqueFd(), flight::kBytes, "memory for a flight recording");
  memory.format(identity);
  return memory;
}

FlightMemory FlightMemory::make_shared(const FlightIdentity& identity) {
  UniqueFd fd(::memfd_create("lockstep-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int error = fd ? resize_file(fd.get(), stacks::kSharedBytes) : errno;
  if (error == 0 && ::fcntl(fd.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) error = errno;
  if (error != 0) throw memory_file_error("making a memory file for a flight recording", error);
  FlightMemory memory = map(std::move(fd), stacks::kSharedBytes, "the memory file of a flight recording");
  memory.format(identity);
  stacks::StackHeader& header = reinterpret_cast<stacks::StackArea*>(memory.data_ + stacks::kOffset)->header;
  header.version = stacks::kVersion;
  header.bytes = sizeof(stacks::StackArea);
  header.magic = stacks::kMagic;
  return memory;
}

FlightMemory FlightMemory::inherit(int fd) {
  struct stat status {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(fd, &status) != 0 ||
      status.st_size != static_cast<off_t>(stacks::kSharedBytes)) {
    throw Error(
        ErrorKind::corrupt_data,
        "descriptor " + std::to_string(fd) +
            " does not hold a flight recording; LOCKSTEP_FLIGHT_FD must name the descriptor that the launcher passed");
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  FlightMemory memory = map(UniqueFd(fd), stacks::kSharedBytes, "the flight recording that was inherited");
  const flight::FlightHeader& header = memory.header();
  if (header.magic != flight::kMagic || header.version != flight::kVersion) {
    throw Error(
        ErrorKind::corrupt_data,
        "the flight recording at descriptor " + std::to_string(fd) +
            " was made by another version of Lockstep; install the same version for the launcher and the program");
  }
  return memory;
}

FlightMemory FlightMemory::make_file(const std::string& path, const FlightIdentity& identity) {
  UniqueFd fd = create_in_place_of(path, kPrivateMode, "making the flight recording " + path);
  // Taken now: a full disk would otherwise end the process at some later store.
  if (const int error = ::posix_fallocate(fd.get(), 0, flight::kBytes); error != 0) {
    throw system_error("making the flight recording " + path, error);
  }
  FlightMemory memory = map(std::move(fd), flight::kBytes, "the flight recording " + path);
  memory.format(identity);
  return memory;
}

void FlightMemory::format(const FlightIdentity& identity) const {
  flight::FlightHeader& header = this->header();
  header.version = flight::kVersion;
  header.slots = flight::kSlots;
  header.groups = flight::kGroups;
  header.rank = identity.rank;
  header.world_size = identity.world_size;
  put(header.job, identity.job_id);
  header.magic = flight::kMagic;
}

stacks::StackArea* FlightMemory::stacks() const {
  if (bytes_ < stacks::kSharedBytes) return nullptr;
  auto* area = reinterpret_cast<stacks::StackArea*>(data_ + stacks::kOffset);
  const stacks::StackHeader& header = area->header;
  const bool fits =
      header.magic == stacks::kMagic && header.version == stacks::kVersion && header.bytes == sizeof(stacks::StackArea);
  return fits ? area : nullptr;
}

void FlightMemory::sign() const {
  flight::FlightHeader& header = this->header();
  char host[sizeof header.host] = {};
  ::gethostname(host, sizeof host - 1);
  put(header.host, host);
  header.wall_ns = wall_ns();
  header.monotonic_ns = steady_clock().now().time_since_epoch().count();
  header.pid.store(::getpid(), std::memory_order_release);
}

void FlightMemory::note_failed_start(ErrorKind kind, int peer) const {
  const std::uint32_t first = static_cast<std::uint32_t>(kind) + 1;
  header().failed_start.store((first << 24U) + static_cast<std::uint32_t>(peer + 1), std::memory_order_release);
}

std::optional<FlightFailure> FlightMemory::failed_start() const {
  const std::uint32_t failed = header().failed_start.load(std::memory_order_acquire);
  const std::uint32_t kind = failed >> 24U;
  if (kind == 0 || kind - 1 > static_cast<std::uint32_t>(ErrorKind::internal)) return std::nullopt;
  const int peer = static_cast<int>(failed & 0xFFFFFFU) - 1;
  return FlightFailure{static_cast<ErrorKind>(kind - 1), peer, peer >= 0 && peer == header().rank};
}

std::optional<FlightFailure> FlightMemory::last_failure() const {
  FlightRecord last;
  for (std::uint64_t number = 0; number < flight::kSlots; ++number) {
    FlightRecord record;
    if (read_slot(slot(number), record) != flight::SlotState::whole || !is_sound(record)) continue;
    const bool over = record.state == FlightState::done || record.state == FlightState::failed;
    const auto end = [](const FlightRecord& each) { return std::pair(each.finished_ns, each.number); };
    if (over && end(record) > end(last)) last = record;
  }
  if (last.finished_ns == 0) return failed_start();
  if (last.state != FlightState::failed || last.error == 0) return std::nullopt;
  FlightFailure failure{.kind = static_cast<ErrorKind>(last.error - 1)};
  FlightGroup group_of_it;
  const bool known = read_slot(group(last.group), group_of_it) == flight::SlotState::whole &&
                     group_of_it.number == last.group && is_sound(group_of_it);
  if (!known || last.error_peer < 0) return failure;
  failure.is_own = last.error_peer == group_of_it.rank;
  const bool has_all = group_of_it.job_ranks.stride == 0 && group_of_it.size == header().world_size;
  failure.peer = has_all ? last.error_peer : group_of_it.job_ranks.at(last.error_peer);
  if (failure.peer >= header().world_size) failure.peer = -1;
  return failure;
}

void FlightMemory::save(const std::string& path, std::string_view ended) const {
  std::vector<char> copy(flight::kBytes);
  std::memcpy(copy.data(), data_, copy.size());
  put(std::span(copy).subspan(offsetof(flight::FlightHeader, ended), sizeof(flight::FlightHeader::ended)), ended);
  AtomicFile file(path, {.survives_power_cut = false});
  file.write(std::as_bytes(std::span(copy)));
  file.publish();
}

}  // namespace lockstep::internal
