#include "lockstep/job/elastic/endpoint_listener.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/net/port_holder.h"
#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/rendezvous/local_node.h"

namespace lockstep::internal {
namespace {

constexpr const char* kAgentsJob = "lockstep-agents";
// From one try to take over the endpoint to the next: twice as long each time.
constexpr Duration kFirstPause = std::chrono::milliseconds(10);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);
constexpr Duration kBindTimeout = std::chrono::seconds(5);

bool is_own(const SocketAddress& address) {
  try {
    Listener::bind({address.host(), 0}, Deadline::after(kBindTimeout));
    return true;
  } catch (const Error&) {
    return false;
  }
}

// "127.0.0.1", "localhost": the user means this machine.
bool says_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

}  // namespace

HandshakeSettings agent_handshake(const Token& token) {
  return {.token = token,
          .job_id = kAgentsJob,
          .channel = Channel::control,
          .mine = local_identity(-1, 0, 0),
          .token_origin = Token::origin_for_this_process()};
}

AgentAnswer ask_agent(const Endpoint& endpoint, const Token& token, const AgentMessage& question, Deadline deadline) {
  UniqueFd fd = connect_tcp(endpoint, ConnectRetry::never, deadline);
  PeerIdentity peer = handshake_as_client(fd.get(), agent_handshake(token), deadline);
  AgentLink link(std::move(fd), std::move(peer));
  link.send(question);
  for (;;) {
    if (auto message = link.take()) return {std::move(link), std::move(*message)};
    if (link.failed()) {
      throw Error(ErrorKind::peer_lost, fmt::format("the agent at {} is lost: {}", to_string(endpoint), link.why()));
    }
    if (deadline.expired()) {
      throw Error(ErrorKind::timeout, fmt::format("the agent at {} does not answer", to_string(endpoint)));
    }
    pollfd entry = link.wanted();
    ::poll(&entry, 1, std::min(deadline, link.wake_at()).poll_timeout_ms());
    link.tend();
  }
}

std::vector<std::string> addresses_to_listen(const Endpoint& endpoint, Deadline deadline) {
  std::vector<std::string> addresses;
  for (const SocketAddress& address : resolve(endpoint, deadline)) {
    if (!is_own(address)) continue;
    addresses.push_back(address.host());
    if (!address.is_loopback() || says_loopback(endpoint.host)) return addresses;
    break;
  }
  if (addresses.empty()) return addresses;
  for (const Interface& interface : network_interfaces()) addresses.push_back(interface.address);
  return addresses;
}

EndpointListener::EndpointListener(std::vector<std::string> addresses, std::uint16_t endpoint_port, const Token& token,
                                   std::string rdzv_id)
    : addresses_(std::move(addresses)), endpoint_port_(endpoint_port), token_(token), rdzv_id_(std::move(rdzv_id)) {}

std::unique_ptr<Acceptor> EndpointListener::listen(std::uint16_t port) const {
  std::vector<Listener> listeners;
  for (const std::string& address : addresses_) {
    try {
      listeners.push_back(Listener::bind({address, port}, Deadline::after(kBindTimeout)));
      port = listeners.front().address().port();
    } catch (const Error&) {
      if (listeners.empty()) throw;
    }
  }
  return std::make_unique<Acceptor>("the agent", std::move(listeners), agent_handshake(token_),
                                    [](const PeerIdentity&) { return std::nullopt; });
}

std::optional<EndpointListener> EndpointListener::open(const std::vector<std::string>& addresses, std::uint16_t port,
                                                       const Token& token, const std::string& rdzv_id) {
  EndpointListener listener(addresses, port, token, rdzv_id);
  try {
    listener.at_endpoint_ = listener.listen(port);
  } catch (const Error&) {
    if (port < 1024 && describe_port_holder(port).empty()) throw;
    return std::nullopt;
  }
  return listener;
}

EndpointListener EndpointListener::open_elsewhere(const std::vector<std::string>& addresses,
                                                  std::uint16_t endpoint_port, const Token& token,
                                                  const std::string& rdzv_id) {
  EndpointListener listener(addresses, endpoint_port, token, rdzv_id);
  listener.elsewhere_ = listener.listen(0);
  return listener;
}

int EndpointListener::register_at_endpoint(Deadline deadline) {
  try {
    AgentAnswer answer = ask_agent({address(), endpoint_port_}, token_,
                                   Gathers{rdzv_id_, elsewhere_->listeners()[0].address().port()}, deadline);
    const auto* elsewhere = std::get_if<Elsewhere>(&answer.message);
    if (elsewhere == nullptr) return 0;
    holder_.emplace(std::move(answer.link));
    return elsewhere->port;
  } catch (const Error&) {
    return 0;
  }
}

std::uint16_t EndpointListener::port() const {
  return (at_endpoint_ != nullptr ? at_endpoint_ : elsewhere_)->listeners()[0].address().port();
}

void EndpointListener::close() {
  at_endpoint_.reset();
  elsewhere_.reset();
  holder_.reset();
  try_again_ = Deadline::never();
}

void EndpointListener::watch(std::vector<pollfd>& set) const {
  for (const auto* acceptor : {at_endpoint_.get(), elsewhere_.get()}) {
    if (acceptor != nullptr) set.push_back({acceptor->fd(), POLLIN, 0});
  }
  if (holder_) set.push_back(holder_->wanted());
}

Deadline EndpointListener::wake_at() const {
  Deadline wake = try_again_;
  for (const auto* acceptor : {at_endpoint_.get(), elsewhere_.get()}) {
    if (acceptor != nullptr) wake = std::min(wake, acceptor->wake_at());
  }
  return holder_ ? std::min(wake, holder_->wake_at()) : wake;
}

void EndpointListener::tend() {
  if (holder_) {
    holder_->tend();
    while (holder_->take()) {
    }
    if (holder_->failed()) {
      holder_.reset();
      pause_ = kFirstPause;
      try_again_ = Deadline::after({});
    }
  }
  if (holds_endpoint() || holder_ || !try_again_.expired()) return;
  try {
    at_endpoint_ = listen(endpoint_port_);
    try_again_ = Deadline::never();
  } catch (const Error&) {  // another agent was faster, or the holder is just ending
    const int registered = register_at_endpoint(Deadline::after(kLongestPause));
    is_rival_ = registered != 0 && registered != port();
    try_again_ = holder_ ? Deadline::never() : Deadline::after(pause_);
    pause_ = std::min(2 * pause_, kLongestPause);
  }
}

std::optional<AgentLink> EndpointListener::take() {
  for (const auto& acceptor : {at_endpoint_.get(), elsewhere_.get()}) {
    if (acceptor == nullptr) continue;
    try {
      if (auto arrival = acceptor->take()) return AgentLink(std::move(arrival->fd), std::move(arrival->peer));
    } catch (const Error&) {  // out of descriptors or memory: it goes on by itself
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
