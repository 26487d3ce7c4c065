// A World is the group of all ranks of the job, and owner of what connects this process to them: the store connection.
// rendezvous -> World -> process group. It is a ProcessGroup: collectives, split() and everything that takes a group
// work on it. No global state: a program may hold several worlds. Its destructor does not communicate; if it runs while
// an exception leaves the scope, the other ranks' collectives end at once with Error{aborted}, which quotes what
// ProcessGroup::note_failure() was told. So they do if nobody catches an exception.
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

// Where in the job this process is. A base of World, so that it outlives the group that was made with it.
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
  ~World();
  World(World&&) noexcept;
  World& operator=(World&&) = delete;

  bool is_main_rank() const { return rank() == 0; }
  const ProcessGroup& group() const { return *this; }

  // Whether the job is to end after this step: a rank got one of InitOptions::stop_signals, or called request_stop().
  // All ranks ask after the same steps and get the same answer, at most a few short steps (8, or 50 ms) after the first
  // of them was told. Then it stays true. The program saves its state and exits with 0; what it has for that is the
  // launcher's grace (25 s). From the first question on, until the world goes, the signals do not end the process, but
  // a further one does, if it comes a second later or more, and so after a request until the program ends. A program
  // that never asks dies of the first. Collective, but not in each call; errors as of one.
  bool stop_requested() const;
  internal::StopAgreement& stop_agreement() const { return *stop_; }

 private:
  std::unique_ptr<internal::StopAgreement> stop_;
  std::unique_ptr<internal::UncaughtWatch> watch_;  // null once moved from
  int exceptions_;                                  // in flight when it was made
};

// What happens if several ranks use one GPU: nothing, a warning that names them, or Error{invalid_argument} on all
// ranks. With NCCL, which cannot connect them, a warning is an error as well.
enum class SharedGpu { allow, warn, refuse };

// What a program says of its world, in one list: init_process_group({.backend = "gloo", .timeout = 60s}). Everything
// has a default, and what is not said here is taken from the environment or the URL.
struct InitOptions {
  std::string backend = {};                   // as GroupOptions::backend
  std::string init_method = {};               // as JoinOptions::init_method
  Duration timeout = GroupOptions().timeout;  // of each call
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::shared_ptr<Store> store = {};
  // What tensors are on, and as GroupOptions::device. With a GPU, a backend that nobody names is NCCL where the build
  // has it. Of the same type on all ranks.
  std::optional<c10::Device> device = {};
  SharedGpu shared_gpu = SharedGpu::warn;  // as the ranks' `device` tells
  // What World::stop_requested() listens to. Those for which the program has a handler, or that it ignores, are left as
  // they are; none: only to request_stop(). With Slurm's --signal=USR1@60 also SIGUSR1.
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP};

  // As in JoinOptions.
  std::optional<Token> token = {};
  std::function<Bootstrap()> bootstrap = {};
  Duration join_timeout = JoinOptions().timeout;
  Duration notice_after = JoinOptions().notice_after;

  // As in GroupOptions.
  Duration first_report = GroupOptions().first_report;
  Transport transport = GroupOptions().transport;
  int connections = GroupOptions().connections;
  Checksums checksums = GroupOptions().checksums;
  AfterMismatch after_mismatch = GroupOptions().after_mismatch;
  CallSites call_sites = GroupOptions().call_sites;

  JoinOptions join_options() const;
  GroupOptions group_options() const;
};

// Joins the job and connects all ranks. Blocks until all are there; throws what join() throws, and in addition what
// connecting does.
World init_process_group(const InitOptions& options = {});

// Whether this build can run collectives on a backend: "native", "gloo", "mpi" or "nccl". May be asked at any time.
bool is_available(std::string_view backend = "native") noexcept;

}  // namespace lockstep
