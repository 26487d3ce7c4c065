// Makes the arena that the processes of one node share. rendezvous -> store -> shared memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/store/store.h"
#include "lockstep/comm/transport/arena.h"

namespace lockstep::internal {

struct SharedArenaSpec {
  std::string name;  // of the group, for the store's keys
  int rank = 0;      // among `members`
  struct Member {
    std::string name;         // "rank 1 (host n1, pid 811)"
    int pid = 0;              // as this process sees it
    std::uint64_t start = 0;  // of its process, see process_watch.h; 0 if it is not known
  };
  std::vector<Member> members;  // all in one pid namespace and of one user
  ArenaOptions options;
  // In which the tensors of the members lie, where the group is split off one that shares memory; the memory that is
  // made then holds staging buffers only. Null: it has segments for the tensors, too.
  std::shared_ptr<const ArenaHeaps> heaps = nullptr;
};

// Blocks until all members have mapped the memory. If the size of a segment is open, it is the largest that all members
// can map (see arena_size.h). It is an anonymous memory file: nothing of it can stay behind,
// whoever dies. Throws on every member: Error{internal} naming the one that could not make or map it (limits on
// addresses, files or descriptors, /proc that may not be read), whereupon all can agree on another transport;
// Error{peer_lost} if one dies meanwhile, Error{timeout} naming the missing ones.
std::unique_ptr<Arena> make_shared_arena(const SharedArenaSpec& spec, Store& store, Deadline deadline);

}  // namespace lockstep::internal
