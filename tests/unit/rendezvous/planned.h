// What a process joins that finds these environment variables.
#pragma once

#include <map>
#include <string>

#include "lockstep/comm/rendezvous/join_plan.h"
#include "tests/support/expect_error.h"

namespace lockstep::testing {

using namespace internal;

using Variables = std::map<std::string, std::string>;

inline JoinPlan plan(const Variables& variables, const JoinOptions& options = {}) {
  return plan_join(options, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

inline Error plan_error(const Variables& variables, const JoinOptions& options = {}) {
  return error_of([&] { plan(variables, options); });
}

}  // namespace lockstep::testing
