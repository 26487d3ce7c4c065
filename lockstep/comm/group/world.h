// A World is the group of all ranks of the job, and owns this process's connection to the store. rendezvous -> World ->
// process group. It is a ProcessGroup: collectives, split() and all functions that take a group work on it. No global
// state: a program may have several worlds. Its destructor waits for no other rank, but for collectives on devices that
// are under way; if it runs while an exception leaves the scope, the other ranks' collectives end at once with
// Error{aborted}, which quotes ProcessGroup::note_failure(). So they do if nobody catches an exception.
#pragma once

#include <c10/core/Device.h>

#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/comm/rendezvous/rendezvous.h"

namespace lockstep {

namespace internal {
class StopAgreement;
class UncaughtWatch;
}  // namespace internal

// The place of this process in the job. A base of World, so that it outlives the group that was made with it.
class Place {
 public:
  explicit Place(Membership membership);
  ~Place();
  Place(Place&&) noexcept;
  Place& operator=(Place&&) = delete;

  int local_rank() const;
  int local_size() const;
  const Membership& membership() const { return *membership_; }
  Store& store() const;

 private:
  std::unique_ptr<Membership> membership_;  // null once moved from
};

class World : public Place, public ProcessGroup {
 public:
  World(Membership membership, ProcessGroup group, std::vector<int> stop_signals = {});
  // With an exception on its way, ends the group, so that the others learn why. Else it waits for collectives on
  // devices that are under way, and throws what they failed with if no call has: their results are not to be used.
  ~World() noexcept(false);
  World(World&&) noexcept;
  World& operator=(World&&) = delete;

  bool is_main_rank() const { return rank() == 0; }
  const ProcessGroup& group() const { return *this; }

  // Whether the job should stop after this step: a rank got one of InitOptions::stop_signals, or called request_stop().
  // All ranks call it after the same steps and get the same answer, at most a few short steps (8, or 50 ms) after the
  // first such event; it then remains true. The program has the launcher's grace (25 s) to save its state and exit with
  // 0. From the first call on, until the world is destroyed, these signals do not end the process, except a further
  // one, a second or more later; after a request this lasts until the program ends. A program that never calls it dies
  // of the first. Collective, but not in each call; errors as of one.
  bool stop_requested() const;
  internal::StopAgreement& stop_agreement() const { return *stop_; }

 private:
  std::unique_ptr<internal::StopAgreement> stop_;
  std::unique_ptr<internal::UncaughtWatch> watch_;  // null once moved from
  int exceptions_;                                  // in flight when it was made
};

// What to do if several ranks use one GPU: nothing, a warning that names them, or Error{invalid_argument} on all ranks.
// With NCCL, which cannot connect them, `warn` is an error as well.
enum class SharedGpu { allow, warn, refuse };

// The options of a world, in one list: init_process_group({.backend = "gloo", .timeout = 60s}). All have defaults;
// those not set here are taken from the environment or the URL.
struct InitOptions {
  std::string backend = {};                   // as GroupOptions::backend
  std::string init_method = {};               // as JoinOptions::init_method
  Duration timeout = GroupOptions().timeout;  // of each call
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::shared_ptr<Store> store = {};
  // The device of tensors, and as GroupOptions::device. Of the same type on all ranks.
  std::optional<c10::Device> device = {};
  SharedGpu shared_gpu = SharedGpu::warn;  // by the ranks' `device`
  // The signals of World::stop_requested(). Those that the program handles or ignores are left alone; none: only
  // request_stop() counts. With Slurm's --signal=USR1@60 also SIGUSR1.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP};

  // As in JoinOptions.
  std::optional<Token> token = {};
  std::function<Bootstrap()> bootstrap = {};
  Duration join_timeout = JoinOptions().timeout;
  Duration notice_after = JoinOptions().notice_after;

  // As in GroupOptions.
  Duration first_report = GroupOptions().first_report;
  std::string transport = {};
  int connections = GroupOptions().connections;
  Checksums checksums = GroupOptions().checksums;
  CallSites call_sites = GroupOptions().call_sites;

  JoinOptions join_options() const;
  GroupOptions group_options() const;
};

// Joins the job and connects all ranks. Blocks until all have joined; throws what join() throws, and errors of
// connecting.
World init_process_group(const InitOptions& options = {});

// Whether this build can run collectives on a backend: "native", "gloo", "mpi" or "nccl". May be called at any time.
bool is_available(std::string_view backend = "native") noexcept;

}  // namespace lockstep
