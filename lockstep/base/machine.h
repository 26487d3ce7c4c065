// How much memory this machine has, in bytes: what takes more need not be tried.
#pragma once

#include <cstddef>

namespace lockstep {

std::size_t machine_memory_bytes();

}  // namespace lockstep
