// Completes a JoinPlan with what only this host or a library can tell. JoinPlan -> host, library -> JoinPlan.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/net/token.h"
#include "lockstep/rendezvous/join_plan.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {

// Whether only processes of this host can reach it.
bool is_on_this_host(const Endpoint& endpoint);

// Ranks that share one process of their launcher are distinguished from other jobs by its pid: the job's name and the
// store's port are derived from it. Error{invalid_argument} if plan.job_fd does not lead to it.
void name_job_after_launcher(JoinPlan& plan);

// On many hosts /etc/hosts maps the host's own name to a loopback address, while other hosts resolve it to the real
// one: there, rank 0 of a launched job hosts the store at `own_address` instead. Blocks for the resolver.
void avoid_own_loopback(JoinPlan& plan, const std::string& own_address, Deadline deadline);

// Rank and size from the library that started the ranks. Error{invalid_argument} if a launcher says otherwise.
void adopt(const Bootstrap& bootstrap, JoinPlan& plan);

// Has the library send the store's endpoint and a token from rank 0 to the others. On rank 0 `host` makes the store and
// returns its port; an error of it is an error on all ranks. Without a given token rank 0 generates one for the job.
// Returns the job's token.
Token share_store(const Bootstrap& bootstrap, const std::optional<Token>& given, const std::string& own_address,
                  const std::function<std::uint16_t(const Token& token)>& host, JoinPlan& plan, Deadline deadline);

// Logs where rank and size came from: once, on rank 0.
void log_source(const JoinPlan& plan);

}  // namespace lockstep
