// A World is this process's place in the job, and owner of what connects it: the store connection and the group of all
// ranks. rendezvous -> World -> process group. No global state: a program may hold several worlds. Its destructor does
// not communicate; if it runs while an exception leaves the scope, the other ranks' collectives end at once with
// Error{aborted}, which quotes what ProcessGroup::note_failure() was told. So they do if nobody catches an exception.
#pragma once

#include <memory>
#include <string>

#include "lockstep/group/process_group.h"
#include "lockstep/group/uncaught.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

struct InitOptions {
  JoinOptions join;    // how to find the other ranks; by default from the environment, or alone
  GroupOptions group;  // of the group of all ranks
};

class World {
 public:
  World(Membership membership, ProcessGroup group);
  ~World();
  World(World&&) noexcept = default;
  World& operator=(World&&) = delete;

  int rank() const { return membership_->rank; }
  int size() const { return membership_->size; }
  int local_rank() const { return membership_->local_rank; }
  int local_size() const { return membership_->local_size; }
  bool is_main_rank() const { return rank() == 0; }

  // All ranks.
  const ProcessGroup& group() const { return group_; }
  void barrier(const CallOptions& options = {}) const { group_.barrier(options); }

  const Membership& membership() const { return *membership_; }
  Store& store() const { return *membership_->store; }

 private:
  std::unique_ptr<Membership> membership_;  // null once moved from
  ProcessGroup group_;
  std::unique_ptr<UncaughtWatch> watch_;
  int exceptions_;  // in flight when it was made
};

// Joins the job and connects all ranks. Blocks until all are there; throws what join() throws, and in addition what
// connecting does.
World init_process_group(const InitOptions& options = {});

}  // namespace lockstep
