// The kernel's memory for bytes of a connection that were not read. The kernel enlarges it for a program that reads
// fast, starting at 64 KiB of data; of several connections that are read in turn none looks like that.
#pragma once

#include <cstddef>

namespace lockstep::internal {

// Lets a connection hold this many bytes, or half of the limit net.ipv4.tcp_rmem; takes no memory before they arrive.
// Never smaller than it was. Linux before 4.18 ignores it.
void enlarge_receive_buffer(int fd, std::size_t bytes);

}  // namespace lockstep::internal
