// What a JoinPlan leaves open, since this host or a library has to be asked for it. JoinPlan -> host, library ->
// JoinPlan.
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

// Ranks that have one process of their launcher in common are told from those of other jobs by its number: from it
// follow the job's name and the store's port. Error{invalid_argument} if plan.job_fd does not lead to it.
void name_job_after_launcher(JoinPlan& plan);

// Many hosts have their own name in /etc/hosts with a loopback address, while to the others it means their real one: on
// such a host rank 0 of a launched job hosts the store at `own_address` instead. Blocks for the resolver.
void avoid_own_loopback(JoinPlan& plan, const std::string& own_address, Deadline deadline);

// Rank and size from the library that started the ranks. Error{invalid_argument} if a launcher says otherwise.
void adopt(const Bootstrap& bootstrap, JoinPlan& plan);

// Has the library carry rank 0's invitation, that is the store's endpoint and a token, to the others. On rank 0 `host`
// makes the store and returns its port; an error of it is an error on all ranks. Without a given token rank 0 draws one
// for the job. Returns the job's token.
Token invite(const Bootstrap& bootstrap, const std::optional<Token>& given, const std::string& own_address,
             const std::function<std::uint16_t(const Token& token)>& host, JoinPlan& plan, Deadline deadline);

// Who has decided about ranks: once, by the rank that the user reads first, in words that he can check.
void say_source(const JoinPlan& plan);

}  // namespace lockstep
