// Where the first member of a node keeps the memory file that the others are to map, as it stands in the store.
// handle -> text -> handle. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::internal {

struct ArenaHandle {
  int pid = 0;  // of the first member
  int fd = -1;
  std::size_t bytes = 0;
  std::uint64_t nonce = 0;
};

std::string to_string(const ArenaHandle& handle);
// Error{corrupt_data} unless it is of the process `pid`, the first member.
ArenaHandle parse_arena_handle(std::string_view text, int pid);

}  // namespace lockstep::internal
