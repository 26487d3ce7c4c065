// The LinkEngine runs collectives over the links of a Mesh: TCP between hosts, or in-process. group -> LinkEngine ->
// exchange -> mesh.
//
// Large all-reduce: slice i of the data belongs to rank i, which gets everybody's slice i, reduces them in rank order
// and sends the result to all. Every rank sends 2(n-1)/n of the data, and receiving, reducing and sending overlap.
// Small all-reduce: everybody sends everything to everybody, or in a large group by way of a tree; see tree_plan.h.
// Large broadcast: the root sends one slice to each rank, and the ranks pass them on to each other. Where ranks share
// nodes, large data go in two levels; see node_plan.h.
// Thread rule: as Engine.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/collective/engine.h"
#include "lockstep/collective/exchange.h"
#include "lockstep/collective/link_plan.h"
#include "lockstep/transport/mesh.h"

namespace lockstep {

class LinkEngine final : public Engine {
 public:
  // Error{invalid_argument} for a tuning that cannot work.
  LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, const LinkTuning& tuning = {});
  // topology: of the mesh's ranks, the same on all.
  LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, Topology topology, const LinkTuning& tuning = {});

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  std::string_view name() const override { return mesh_->name(); }
  void run(const Collective& collective, Deadline deadline) override;
  void abort(std::string_view reason) noexcept override;
  void set_failure_detector(FailureDetector* detector) override { exchange_.set_failure_detector(detector); }
  void set_call_sites(CallSites sites) override { exchange_.set_call_sites(sites); }
  void set_first_report(Duration first) override { exchange_.set_first_report(first); }
  void set_after_mismatch(AfterMismatch after) override { exchange_.set_after_mismatch(after); }

 private:
  // Tells the other ranks, then explains.
  Error fail(const Error& error, const Signature& signature, Duration elapsed);
  // The error, naming who is missing if it is a timeout.
  Error blame(const Error& error) const;
  Error explain(const Error& error, const Signature& signature, Duration elapsed) const;

  const ForkGuard fork_guard_;
  const std::unique_ptr<Mesh> mesh_;
  const std::uint64_t generation_;
  Exchange exchange_;
  std::uint64_t sequence_ = 0;
  std::optional<Error> failure_;
  std::atomic<bool> failed_{false};  // failure_, for abort()
};

}  // namespace lockstep
