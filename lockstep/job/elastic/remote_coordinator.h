// RemoteCoordinator is the coordinator of a host that is not the first: a link to the first host's agent. See
// Coordinator.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "lockstep/job/elastic/agent_link.h"
#include "lockstep/job/elastic/coordinator.h"

namespace lockstep::internal {

class RemoteCoordinator : public Coordinator {
 public:
  // Bytes of output on their way. More are not sent before the first host has taken some.
  static constexpr std::size_t kMostUntaken = std::size_t{1} << 20;

  // `first`: the first host's name, for messages.
  RemoteCoordinator(AgentLink link, std::string first) : link_(std::move(link)), first_(std::move(first)) {}

  // What has come from the first host already.
  void receive(AgentMessage message) { inbox_.push_back(std::move(message)); }

  void watch(std::vector<pollfd>& set) const override { set.push_back(link_.wanted()); }
  Deadline wake_at() const override { return inbox_.empty() ? link_.wake_at() : Deadline::after({}); }
  void tend() override;
  void post(const AgentMessage& message) override;
  std::optional<AgentMessage> take() override;
  bool takes_output() const override { return untaken_ < kMostUntaken; }
  std::string lost() const override;
  Duration frozen_for() const override { return link_.failed() ? Duration{} : link_.frozen_for(); }
  void close() override { link_.flush(Deadline::after(std::chrono::seconds(1))); }

 private:
  AgentLink link_;
  std::string first_;
  std::deque<AgentMessage> inbox_;
  std::size_t untaken_ = 0;
};

}  // namespace lockstep::internal
