#include "lockstep/comm/transport/arena_size.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/transport/arena_memory.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

std::size_t most_bytes_of(std::size_t memory) { return std::max(whole_segment_bytes(memory / 2), kMinSegmentBytes); }
std::size_t fewest_arena_bytes(int ranks) { return arena_bytes(ranks, kMinSegmentBytes); }
std::size_t whole_mebibytes(std::size_t bytes) { return (bytes + kMebibyte - 1) / kMebibyte; }

std::size_t limit_on(__rlimit_resource resource) {
  rlimit limits{};
  return ::getrlimit(resource, &limits) != 0 || limits.rlim_cur == RLIM_INFINITY ? ~std::size_t{0} : limits.rlim_cur;
}

std::size_t mapped_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

bool can_map(std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return false;
  ::munmap(address, bytes);
  return true;
}

}  // namespace

std::size_t segment_bytes_for(const ArenaRoom& room, int ranks) {
  const std::size_t most = std::min(room.addresses / 2, room.file);
  if (most < fewest_arena_bytes(ranks)) return 0;
  const std::size_t each = (most - arena_bytes(ranks, 0)) / static_cast<std::size_t>(ranks);
  return std::min(each / kHugePageBytes * kHugePageBytes, most_bytes_of(room.memory));
}

std::string shortage_of(const ArenaRoom& room, int ranks) {
  const std::size_t fewest = whole_mebibytes(fewest_arena_bytes(ranks));
  if (room.file < fewest_arena_bytes(ranks)) {
    return fmt::format(
        "its files, including memory files, are limited to {} bytes, and {} ranks need {} MiB: raise the limit "
        "(ulimit -f unlimited) before it starts",
        room.file, ranks, fewest);
  }
  const bool is_limited = room.address_limit != ~std::size_t{0};
  return fmt::format(
      "it has {} MiB of address space left, of which shared memory may take half, and {} ranks need {} "
      "MiB: {}",
      room.addresses / kMebibyte, ranks, fewest,
      is_limited ? fmt::format("raise the limit, which is {} MiB (ulimit -v unlimited), before it starts",
                               room.address_limit / kMebibyte)
                 : "start fewer ranks on this node");
}

ArenaRoom room_of_this_process(int ranks) {
  ArenaRoom room{.memory = machine_memory_bytes(), .file = limit_on(RLIMIT_FSIZE)};
  room.address_limit = limit_on(RLIMIT_AS);
  std::size_t half = arena_bytes(ranks, most_bytes_of(room.memory));
  if (room.address_limit != ~std::size_t{0}) {
    const std::size_t mapped = mapped_bytes();
    half = std::min(half, (room.address_limit - std::min(mapped, room.address_limit)) / 2);
  }
  while (half >= kMebibyte && !can_map(half)) half /= 2;
  room.addresses = 2 * half;
  return room;
}

}  // namespace lockstep::internal
