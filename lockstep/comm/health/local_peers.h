// The processes of a group's ranks on this machine, as the kernel sees them. pid -> ProcessWatch -> LocalPeers ->
// Arena, ArenaMesh. One thread at a time.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/health/process_watch.h"

namespace lockstep::internal {

struct LocalPeer {
  std::string name = {};      // "rank 1 (host n1, pid 811)"
  ProcessWatch process = {};  // of nobody for this rank, and for threads of this process
};
using LocalPeerList = std::shared_ptr<const std::vector<LocalPeer>>;  // by rank

class LocalPeers {
 public:
  explicit LocalPeers(LocalPeerList peers);

  int size() const { return static_cast<int>(peers_->size()); }
  const std::string& name(int rank) const { return at(rank).name; }
  ProcessState state(int rank) const { return at(rank).process.state(); }

  // Finds out which processes have ended: one system call, as long as none has.
  void look();
  // As of the last look().
  bool has_ended(int rank) const { return ended_[static_cast<std::size_t>(rank)]; }

 private:
  const LocalPeer& at(int rank) const { return (*peers_)[static_cast<std::size_t>(rank)]; }

  LocalPeerList peers_;
  std::vector<pollfd> watched_;  // by rank; without a descriptor if it has shown anything, which may be another's
  std::vector<bool> ended_;
};

}  // namespace lockstep::internal
