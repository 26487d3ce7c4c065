#include "lockstep/ddp/uneven_inputs/join.h"

#include <ATen/ops/tensor.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ddp/checks/ddp_errors.h"

namespace lockstep {

using namespace internal;

namespace {

thread_local JoinState current;

}  // namespace

JoinState internal::join_state() { return current; }

JoinScope::JoinScope(JoinState state) : previous_(std::exchange(current, state)) {}
JoinScope::~JoinScope() { current = previous_; }

namespace join_detail {

bool anybody_goes_on(const ProcessGroup& group, bool i_go_on, const UnevenOptions& options) {
  const at::Tensor mine = at::tensor({i_go_on ? 1 : 0}, at::kInt);
  std::string ended;
  bool anybody = false;
  int rank = 0;
  for (const at::Tensor& theirs : group.all_gather(mine, {.name = "join"})) {
    const bool goes_on = *theirs.const_data_ptr<int>() != 0;
    anybody = anybody || goes_on;
    if (!goes_on) ended += (ended.empty() ? "" : ", ") + std::to_string(rank);
    ++rank;
  }
  if (options.throw_on_early_termination && anybody && !ended.empty()) {
    throw Error(ErrorKind::aborted,
                "join: rank " + ended + " has no more batches, and throw_on_early_termination ends all ranks then",
                {.rank = group.rank(), .operation = "join"});
  }
  return anybody;
}

void throw_never_had_one(const ProcessGroup& group) {
  throw_on_all_ranks(
      group, Error(ErrorKind::invalid_argument,
                   "join: rank " + std::to_string(group.rank()) +
                       " has no batch at all, so it has no step to repeat while the others go on. Give every rank one "
                       "batch, or give join() a batch of the right shape as `first`",
                   {.rank = group.rank(), .operation = "join"}));
}

}  // namespace join_detail
}  // namespace lockstep
