// EndpointListener is where a first host waits for the other agents of its job: at the endpoint that their users name,
// or, while another job is gathered there, at a port of its own, which the agent that holds the endpoint tells those
// who ask. When that agent goes, the endpoint is taken over. Used by one thread, in its poll loop.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/net/acceptor.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/job/elastic/agent_link.h"

namespace lockstep::internal {

// Of connections between agents, whatever their job: which one it is, the first message says. `token`: for this
// process.
HandshakeSettings agent_handshake(const Token& token);

// What an agent has answered to the first message, and the connection.
struct AgentAnswer {
  AgentLink link;
  AgentMessage message;
};
// Connects, says `question`, and waits for the answer. Blocks. Errors as connect_tcp(), handshake_as_client();
// peer_lost, timeout.
AgentAnswer ask_agent(const Endpoint& endpoint, const Token& token, const AgentMessage& question, Deadline deadline);

// The addresses of this host at which agents look for the endpoint, the endpoint's own first; none if it is another
// host's. Where this host's own name leads to its loopback address, those of its interfaces are there too: other hosts
// know the name by one of them. Blocks for the resolver; errors as resolve().
std::vector<std::string> addresses_to_listen(const Endpoint& endpoint, Deadline deadline);

class EndpointListener {
 public:
  // At the endpoint. Nothing if another process holds its port; Error{invalid_argument} if this user may not use it.
  static std::optional<EndpointListener> open(const std::vector<std::string>& addresses, std::uint16_t port,
                                              const Token& token, const std::string& rdzv_id);
  // At a port of its own; call register_with() before others can find it.
  static EndpointListener open_elsewhere(const std::vector<std::string>& addresses, std::uint16_t endpoint_port,
                                         const Token& token, const std::string& rdzv_id);

  // Tells the agent that holds the endpoint. The port at which the job is gathered from now on: another one if an agent
  // came before this one, 0 if the holder has gone. Blocks until the deadline at most.
  int register_at_endpoint(Deadline deadline);

  void watch(std::vector<pollfd>& set) const;
  Deadline wake_at() const;
  // Blocks for half a second at most, when the holder of the endpoint has gone.
  void tend();
  // The next agent that has connected.
  std::optional<AgentLink> take();

  const std::string& address() const { return addresses_.front(); }
  std::uint16_t port() const;
  // Nobody can come any more.
  void close();
  // The agent that holds the endpoint gathers the same job.
  bool is_rival() const { return is_rival_; }
  bool holds_endpoint() const { return at_endpoint_ != nullptr; }

 private:
  EndpointListener(std::vector<std::string> addresses, std::uint16_t endpoint_port, const Token& token,
                   std::string rdzv_id);
  std::unique_ptr<Acceptor> listen(std::uint16_t port) const;

  std::vector<std::string> addresses_;
  std::uint16_t endpoint_port_;
  Token token_;
  std::string rdzv_id_;
  std::unique_ptr<Acceptor> at_endpoint_;
  std::unique_ptr<Acceptor> elsewhere_;
  std::optional<AgentLink> holder_;
  Deadline try_again_ = Deadline::never();
  Duration pause_{};
  bool is_rival_ = false;
};

}  // namespace lockstep::internal
