// A MetricsServer answers GET /metrics and /healthz by HTTP, in threads of its own (civetweb). One port, of the
// address that it is given; whoever reaches that may ask.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/net/address.h"

namespace lockstep::tools {

struct HealthAnswer {
  bool is_well = true;
  std::string text = {};  // one line
};

class MetricsServer {
 public:
  // What is asked for; called by the server's threads.
  struct Pages {
    std::function<std::string()> metrics;
    std::function<HealthAnswer()> health;
  };
  // Port 0: a free one. Error{invalid_argument} with the address if it cannot listen there.
  MetricsServer(const Endpoint& endpoint, Pages pages);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }  // with the port that it has got

 private:
  struct State;
  std::unique_ptr<State> state_;
  Endpoint endpoint_;
};

}  // namespace lockstep::tools
