// A MetricsServer answers GET /metrics and /healthz by HTTP, in a thread of its own. One port, of the address that it
// is given; whoever reaches that may ask. Clients that send nothing, or do not read, block no others: without
// a place for a new one, the oldest that has sent no whole request is dropped.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/net/address.h"
#include "lockstep/comm/net/listener.h"
#include "tools/metrics/http_connection.h"

namespace lockstep::tools {

struct HealthAnswer {
  bool is_well = true;
  std::string text = {};  // one line
};

class MetricsServer {
 public:
  static constexpr std::size_t kMostConnections = 64;

  // What is asked for; called by the server's thread.
  struct Pages {
    std::function<std::string()> metrics;
    std::function<HealthAnswer()> health;
  };
  // Port 0: a free one. Error{invalid_argument} with the address, and who has the port, if it cannot listen there.
  MetricsServer(const Endpoint& endpoint, Pages pages);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  Endpoint endpoint() const { return listener_.address().endpoint(); }  // with the port that it has got

 private:
  void serve();
  void accept_all();
  bool has_room() const;
  void drop_oldest();
  void tend(HttpConnection& connection);
  HttpAnswer answer(std::string_view path) const;

  const Pages pages_;
  internal::Listener listener_;
  internal::UniqueFd stop_reader_;
  internal::UniqueFd stop_writer_;
  std::vector<HttpConnection> connections_;  // of the thread
  Deadline accepts_at_;                      // likewise
  std::thread thread_;
};

}  // namespace lockstep::tools
