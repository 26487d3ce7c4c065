// Where the first member of a node keeps the memory file that the others are to map, as it stands in the store.
// invitation -> text -> invitation. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

struct Invitation {
  int pid = 0;  // of the first member
  int fd = -1;
  std::size_t bytes = 0;
  std::uint64_t nonce = 0;
};

std::string to_string(const Invitation& invitation);
// Error{corrupt_data} unless it is one of the process `pid`, whose rank among the members is 0.
Invitation parse_arena_handle(std::string_view text, int pid);

}  // namespace lockstep
