#include "lockstep/job/elastic/outside.h"

#include <poll.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/job/elastic/endpoint_listener.h"

namespace lockstep::internal {
namespace {

// Within which whoever holds the endpoint answers.
constexpr Duration kFirstAnswer = std::chrono::seconds(5);

// The endpoint may be held for another job, whose agent knows where this one is.
AgentAnswer ask(const OutsideJob& job, const AgentMessage& question, Deadline deadline) {
  const Deadline soon = std::min(deadline, Deadline::after(kFirstAnswer));
  AgentAnswer answer = ask_agent(job.endpoint, job.token, question, soon);
  const auto* elsewhere = std::get_if<Elsewhere>(&answer.message);
  if (elsewhere == nullptr) return answer;
  if (elsewhere->port != 0) {
    const Endpoint there{job.endpoint.host, static_cast<std::uint16_t>(elsewhere->port)};
    answer = ask_agent(there, job.token, question, soon);
    if (!std::holds_alternative<Elsewhere>(answer.message)) return answer;
  }
  throw Error(ErrorKind::invalid_argument,
              fmt::format("there is no job with --rdzv-id {} at {}", job.rdzv_id, to_string(job.endpoint)));
}

// The next message; nothing at the deadline.
std::optional<AgentMessage> next(AgentLink& link, Deadline deadline) {
  for (;;) {
    if (auto message = link.take()) return message;
    if (link.failed())
      throw Error(ErrorKind::peer_lost, "lost the connection to the launcher of the job's first host: " + link.why());
    if (deadline.expired()) return std::nullopt;
    pollfd entry = link.wanted();
    ::poll(&entry, 1, std::min(deadline, link.wake_at()).poll_timeout_ms());
    link.tend();
  }
}

}  // namespace

JobStatus ask_status(const OutsideJob& job, Deadline deadline) {
  AgentAnswer answer = ask(job, AskStatus{job.rdzv_id}, deadline);
  JobStatus status;
  for (std::optional<AgentMessage> message = std::move(answer.message); message;
       message = next(answer.link, deadline)) {
    if (auto* host = std::get_if<HostStatus>(&*message)) status.hosts.push_back(std::move(*host));
    if (auto* done = std::get_if<StatusDone>(&*message)) {
      status.job = std::move(*done);
      return status;
    }
  }
  throw Error(ErrorKind::timeout, "not all of its hosts have reported their ranks in time");
}

std::optional<Farewell> stop_job(const OutsideJob& job, Deadline deadline) {
  AgentAnswer answer = ask(job, StopJob{job.rdzv_id}, deadline);
  while (auto message = next(answer.link, deadline)) {
    if (auto* farewell = std::get_if<Farewell>(&*message)) return std::move(*farewell);
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
