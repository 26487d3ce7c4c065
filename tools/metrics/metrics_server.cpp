#include "tools/metrics/metrics_server.h"

#include <civetweb.h>

#include <array>
#include <csignal>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"

namespace lockstep::tools {

using namespace internal;

namespace {

// civetweb ignores SIGPIPE in the whole process, and what the launcher ignores, its ranks would ignore.
class KeptSigpipe {
 public:
  KeptSigpipe() { ::sigaction(SIGPIPE, nullptr, &before_); }
  ~KeptSigpipe() { ::sigaction(SIGPIPE, &before_, nullptr); }
  KeptSigpipe(const KeptSigpipe&) = delete;
  KeptSigpipe& operator=(const KeptSigpipe&) = delete;

 private:
  struct sigaction before_ {};
};

int answer(mg_connection* connection, int code, const char* reason, const char* type, const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n",
            code, reason, type, body.size());
  const bool has_body = std::string_view(mg_get_request_info(connection)->request_method) != "HEAD";
  if (has_body) mg_write(connection, body.data(), body.size());
  return code;
}

bool is_read(mg_connection* connection) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  return method == "GET" || method == "HEAD";
}

constexpr const char* kPlain = "text/plain; charset=utf-8";

int refuse_method(mg_connection* connection) {
  return answer(connection, 405, "Method Not Allowed", kPlain, "use GET\n");
}

}  // namespace

struct MetricsServer::State {
  Pages pages;
  std::string complaint;  // of civetweb
  mg_callbacks callbacks{};
  mg_context* context = nullptr;

  static int keep_complaint(const mg_connection* connection, const char* message) {
    const mg_context* context = mg_get_context(connection);
    auto* state = static_cast<State*>(mg_get_user_data(context));
    if (state != nullptr && state->context == nullptr) state->complaint = message;
    return 1;  // not into a file
  }
  static int serve_metrics(mg_connection* connection, void* data) {
    if (!is_read(connection)) return refuse_method(connection);
    const std::string text = static_cast<State*>(data)->pages.metrics();
    return answer(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", text);
  }
  static int serve_health(mg_connection* connection, void* data) {
    if (!is_read(connection)) return refuse_method(connection);
    const HealthAnswer health = static_cast<State*>(data)->pages.health();
    return answer(connection, health.is_well ? 200 : 503, health.is_well ? "OK" : "Service Unavailable", kPlain,
                  health.text + "\n");
  }
  static int serve_nothing(mg_connection* connection, void* /*data*/) {
    return answer(connection, 404, "Not Found", kPlain, "there are /metrics and /healthz\n");
  }
};

MetricsServer::MetricsServer(const Endpoint& endpoint, Pages pages)
    : state_(std::make_unique<State>()), endpoint_(endpoint) {
  state_->pages = std::move(pages);
  state_->callbacks.log_message = &State::keep_complaint;
  const std::string where = to_string(endpoint);
  const std::array<const char*, 11> options = {
      "listening_ports",  where.c_str(), "num_threads", "2", "request_timeout_ms", "5000", "enable_keep_alive", "no",
      "max_request_size", "4096",        nullptr};
  {
    const KeptSigpipe kept;
    const SignalBlock of_writes({SIGPIPE});  // in its threads, too
    state_->context = mg_start(&state_->callbacks, state_.get(), const_cast<const char**>(options.data()));
  }
  mg_server_port port{};
  if (state_->context == nullptr || mg_get_server_ports(state_->context, 1, &port) < 1) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("cannot serve metrics at {}: {}; name another port with --metrics-port, or 0 for a free one", where,
                    state_->complaint.empty() ? "no thread could be started" : state_->complaint));
  }
  endpoint_.port = static_cast<std::uint16_t>(port.port);
  mg_set_request_handler(state_->context, "**", &State::serve_nothing, nullptr);
  mg_set_request_handler(state_->context, "/metrics", &State::serve_metrics, state_.get());
  mg_set_request_handler(state_->context, "/healthz", &State::serve_health, state_.get());
}

MetricsServer::~MetricsServer() {
  if (state_->context != nullptr) mg_stop(state_->context);
}

}  // namespace lockstep::tools
