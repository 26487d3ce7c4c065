// What the TCP connections of processes have moved so far, by the kernel's list of sockets: recv() and send() are in no
// counter of a process. Connections that have been closed are not in it. Nothing blocks.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace lockstep::internal {

class TcpBytes {
 public:
  // Of now. Without anything where the kernel does not tell, or for processes with another network.
  static TcpBytes read();

  // Without the connections that the process has open, also where other processes have them, too. For the process of a
  // rank: what moves by Lockstep's own connections, such as heartbeats, is no progress.
  void leave_out(int pid);
  // Received, and sent and acknowledged, by the connections that the process has open.
  std::uint64_t of_process(int pid) const;

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> bytes_;  // by the socket's inode
};

}  // namespace lockstep::internal
