#include "tools/metrics/metrics_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/pipe.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::tools {

using namespace internal;

namespace {

constexpr Duration kResolving = std::chrono::seconds(10);
constexpr Duration kWithoutDescriptors = std::chrono::seconds(1);

Listener listen_at(const Endpoint& endpoint) {
  try {
    return Listener::bind(endpoint, Deadline::after(kResolving));
  } catch (const Error& error) {
    throw Error(
        error.kind(),
        fmt::format(
            "cannot serve metrics: {}; if the port is taken, choose another, or 0 for a free one (--metrics-port)",
            error.what()));
  }
}

}  // namespace

MetricsServer::MetricsServer(const Endpoint& endpoint, Pages pages)
    : pages_(std::move(pages)), listener_(listen_at(endpoint)), accepts_at_(Deadline::after({})) {
  Pipe pipe = make_pipe("the end of a server");
  stop_reader_ = std::move(pipe.reader);
  stop_writer_ = std::move(pipe.writer);
  const SignalBlock block;
  thread_ = std::thread([this] { serve(); });
}

MetricsServer::~MetricsServer() {
  stop_writer_.reset();
  thread_.join();
}

void MetricsServer::serve() {
  for (;;) {
    const bool accepts = has_room() && accepts_at_.expired();
    std::vector<pollfd> set{{stop_reader_.get(), POLLIN, 0}, {accepts ? listener_.fd() : -1, POLLIN, 0}};
    Deadline wake = accepts_at_.expired() ? Deadline::never() : accepts_at_;
    for (const HttpConnection& connection : connections_) {
      set.push_back(connection.wanted());
      wake = std::min(wake, connection.until());
    }
    ::poll(set.data(), set.size(), wake.poll_timeout_ms());
    if (set[0].revents != 0) return;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (set[i + 2].revents != 0) tend(connections_[i]);
    }
    std::erase_if(connections_, [](const HttpConnection& connection) { return connection.is_over(); });
    if (set[1].revents != 0) accept_all();
  }
}

// As many as there are places, so that those who have asked are served between floods.
void MetricsServer::accept_all() {
  try {
    for (std::size_t i = 0; i < kMostConnections && has_room(); ++i) {
      UniqueFd fd = listener_.accept();
      if (!fd) return;
      if (connections_.size() >= kMostConnections) drop_oldest();
      connections_.emplace_back(std::move(fd));
    }
  } catch (const Error&) {  // descriptors or memory are lacking: whoever asks again will be answered
    accepts_at_ = Deadline::after(kWithoutDescriptors);
  }
}

bool MetricsServer::has_room() const {
  return connections_.size() < kMostConnections || !std::ranges::all_of(connections_, &HttpConnection::has_asked);
}

// Of those that have asked for nothing; what they ask may have come in this moment.
void MetricsServer::drop_oldest() {
  const auto oldest = std::ranges::find_if(connections_, [this](HttpConnection& connection) {
    if (!connection.has_asked()) tend(connection);
    return !connection.has_asked() || connection.is_over();
  });
  if (oldest != connections_.end()) connections_.erase(oldest);
}

void MetricsServer::tend(HttpConnection& connection) {
  connection.tend([this](std::string_view path) { return answer(path); });
}

HttpAnswer MetricsServer::answer(std::string_view path) const {
  if (path == "/metrics") return {.body = pages_.metrics(), .type = "text/plain; version=0.0.4; charset=utf-8"};
  if (path != "/healthz") return {.code = 404, .body = "use /metrics or /healthz\n"};
  const HealthAnswer health = pages_.health();
  return {.code = health.is_well ? 200 : 503, .body = health.text + "\n"};
}

}  // namespace lockstep::tools
