// How much a process has sent. descriptors -> kernel -> bytes. Does not block.
#pragma once

#include <cstdint>

// Over the TCP connections that this process has open; retransmitted bytes count once. For connections that belong to
// this process alone.
std::uint64_t sent_bytes();
