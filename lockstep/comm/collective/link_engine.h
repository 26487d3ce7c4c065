// The LinkEngine runs collectives over the links of a Mesh: TCP between hosts, or in-process. group -> LinkEngine ->
// exchange -> mesh.
//
// Large all-reduce: slice i of the data belongs to rank i, which gets everybody's slice i, reduces them in rank order
// and sends the result to all. Every rank sends 2(n-1)/n of the data, and receiving, reducing and sending overlap.
// Small all-reduce: everybody sends everything to everybody, or in a large group by way of a tree; see tree_plan.h.
// Large broadcast: the root sends one slice to each rank, and the ranks pass them on to each other. Where ranks share
// nodes, large data go in two levels; see node_plan.h. What goes where otherwise is planned in link_plan.h.
// Thread rule: as Engine.
#pragma once

#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/engine_base.h"
#include "lockstep/comm/collective/exchange.h"
#include "lockstep/comm/collective/link_plan.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

class LinkEngine final : public EngineBase {
 public:
  // Error{invalid_argument} for a tuning that cannot work.
  LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, const LinkTuning& tuning = {});
  // topology: of the mesh's ranks, the same on all.
  LinkEngine(std::unique_ptr<Mesh> mesh, std::uint64_t generation, Topology topology, const LinkTuning& tuning = {});
  // Announces a noted failure, which the others' errors quote. Does not wait.
  ~LinkEngine() override;

  std::string_view name() const override { return mesh_->name(); }
  void set_failure_detector(FailureDetector* detector) override { exchange_.set_failure_detector(detector); }
  void set_call_sites(CallSites sites) override { exchange_.set_call_sites(sites); }
  void set_first_report(Duration first) override { exchange_.set_first_report(first); }

 private:
  void begin(Operation& operation, const Collective& collective) override;
  void await(Operation& operation, Deadline deadline) override;
  // Tells the other ranks, then explains.
  Error fail(const Operation& operation, const Error& error) override;
  void tell_abort(const Error& error) noexcept override { mesh_->abort(error); }
  void look_at_peers() override { mesh_->wait({}, Deadline::after(Duration::zero())); }
  // The error, naming who is missing if it is a timeout.
  Error blame(const Error& error) const;
  // failure: of a rank that has left; may be empty.
  Error explain(const Error& error, const Signature& signature, const std::string& failure) const;

  const std::unique_ptr<Mesh> mesh_;
  Exchange exchange_;
  TimePoint started_;  // of the collective that is under way
};

}  // namespace lockstep::internal
