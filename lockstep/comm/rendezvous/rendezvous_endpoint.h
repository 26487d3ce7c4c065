// Where the ranks of a job find each other: the store of a JoinPlan, connected or hosted. JoinPlan -> store.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/rendezvous/join_plan.h"
#include "lockstep/comm/rendezvous/rendezvous.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

struct RendezvousEndpoint {
  std::shared_ptr<Store> store;
  std::shared_ptr<StoreServer> hosted;  // if this process hosts the store
  std::string address;                  // the address of this host from which the store was reached
};

// Connects to the plan's store, and hosts it first if this is rank 0's task. Completes the plan, sets the job's token,
// and logs where rank and size came from. Blocks until the store is reached; Error{timeout} names its host.
RendezvousEndpoint open_endpoint(const JoinOptions& options, JoinPlan& plan, Token& token, Deadline deadline);

}  // namespace lockstep::internal
