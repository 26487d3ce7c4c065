#include "lockstep/job/elastic/remote_coordinator.h"

#include <algorithm>

#include "lockstep/base/format.h"
#include "lockstep/comm/net/address.h"

namespace lockstep::internal {

void RemoteCoordinator::post(const AgentMessage& message) {
  if (const auto* output = std::get_if<Output>(&message)) untaken_ += output->lines.size();
  link_.send(message);
}

void RemoteCoordinator::tend() {
  link_.tend();
  while (auto message = link_.take()) {
    // The first host knows link-local addresses by its own interface's name.
    if (auto* start = std::get_if<StartRanks>(&*message)) {
      start->store = to_string(with_scope_of(link_.own_address(), parse_endpoint(start->store)));
      start->master_addr = with_scope_of(link_.own_address(), Endpoint{start->master_addr}).host;
    }
    if (const auto* taken = std::get_if<OutputTaken>(&*message)) {
      untaken_ -= std::min<std::size_t>(untaken_, taken->bytes);
    } else {
      inbox_.push_back(std::move(*message));
    }
  }
}

std::optional<AgentMessage> RemoteCoordinator::take() {
  if (inbox_.empty()) return std::nullopt;
  AgentMessage message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

std::string RemoteCoordinator::lost() const {
  if (!link_.failed()) return {};
  return fmt::format("the first host {} ({}) is lost: {}", first_, link_.peer_address(), link_.why());
}

}  // namespace lockstep::internal
