#include "lockstep/comm/transport/arena_handle.h"

#include <array>
#include <climits>
#include <limits>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {

std::string to_string(const ArenaHandle& handle) {
  return fmt::format("{} {} {} {}", handle.pid, handle.fd, handle.bytes, static_cast<std::int64_t>(handle.nonce));
}

ArenaHandle parse_arena_handle(std::string_view text, int pid) {
  const Origin origin("handle of shared memory", 0);
  std::array<std::int64_t, 4> numbers{};
  for (std::int64_t& number : numbers) {
    const bool is_last = &number == &numbers.back();
    const std::size_t end = is_last ? text.size() : text.find(' ');
    if (end == std::string_view::npos) throw_corrupt(origin, "it is truncated");
    number = checked_decimal(text.substr(0, end), "number", origin);
    text.remove_prefix(is_last ? end : end + 1);
  }
  ArenaHandle handle;
  handle.pid = checked_between(numbers[0], pid, pid, "process id", origin);
  handle.fd = checked_between(numbers[1], 0, INT_MAX, "descriptor", origin);
  handle.bytes =
      checked_between<std::size_t>(numbers[2], 1, std::numeric_limits<std::int64_t>::max(), "number of bytes", origin);
  handle.nonce = static_cast<std::uint64_t>(numbers[3]);
  return handle;
}

}  // namespace lockstep::internal
