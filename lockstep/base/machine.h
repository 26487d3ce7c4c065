// What this machine is. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::internal {

// How much memory it has, in bytes: whatever needs more need not be tried.
std::size_t machine_memory_bytes();

// A text that differs between machines, and between boots of one machine; empty without /proc.
std::string boot_id();

// As others call it; empty if it has no name.
std::string host_name();

}  // namespace lockstep::internal
