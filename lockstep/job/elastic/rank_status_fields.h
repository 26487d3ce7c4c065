// The fields of a RankStatus, for those who write and read an agent's messages (agent_message.cpp).
#pragma once

#include "lockstep/job/launch/rank_status.h"

namespace lockstep::internal {

// `most_ranks`: of a job.
template <class Fields, class Status>
void rank_status_fields(Fields& fields, Status& status, int most_ranks) {
  auto& numbers = status.numbers;
  fields.number(status.rank, 0, most_ranks - 1, "rank");
  fields.choice(status.state, RankState::starting, RankState::failed, "state");
  fields.count(numbers.operations, "number of operations");
  fields.count(numbers.steps, "number of steps");
  fields.count(numbers.samples, "number of samples");
  for (auto& ns : numbers.phase_ns) fields.count(ns, "time");
  fields.count(numbers.waiting_ns, "time");
  fields.count(numbers.communicating_ns, "time");
  fields.count(numbers.hidden_ns, "time");
  fields.count(numbers.checkpoints, "number of checkpoints");
  fields.count(numbers.checkpoint_wall_ns, "time");
  fields.list(numbers.values, kMostValues, [](auto& to, auto& value) {
    to.value_name(value.first);
    to.real(value.second);
  });
  fields.optional(status.lateness_ns, [](auto& to, auto& value) { to.amount(value, "lateness"); });
}

}  // namespace lockstep::internal
