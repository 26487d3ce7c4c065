#include "tools/metrics/job_metrics.h"

#include <chrono>
#include <string>

#include "lockstep/base/format.h"
#include "tools/metrics/exposition.h"
#include "tools/metrics/metrics_server.h"
#include "tools/metrics/metrics_textfile.h"

namespace lockstep::tools {

using namespace internal;

struct JobMetrics::State {
  JobMonitor monitor;
  JobLabels labels;
  std::optional<MetricsTextfile> textfile;
  std::optional<MetricsServer> server;

  std::string text() const { return exposition_of(monitor.status(), labels); }
  HealthAnswer health() const {
    const WatchedJob status = monitor.status();
    HealthAnswer answer;
    answer.is_well = status.is_well(answer.text);
    if (answer.is_well) answer.text = to_string(status.state);
    return answer;
  }
};

Endpoint parse_metrics_port(const std::string& text) {
  const bool has_address = text.find(':') != std::string::npos;
  return has_address ? parse_endpoint(text) : Endpoint{"127.0.0.1", parse_port(text, "--metrics-port")};
}

JobMetrics::JobMetrics(const MetricsOptions& options, const std::string& version, const std::string& program,
                       const std::function<void(const std::string&)>& say) {
  if (!options.any()) return;
  state_ = std::make_unique<State>();
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  state_->labels = {.version = version, .program = program, .start_seconds = now.count()};
  State& state = *state_;
  if (!options.textfile.empty()) state.textfile.emplace(options.textfile, [&state] { return state.text(); });
  if (!options.endpoint) return;
  state.server.emplace(*options.endpoint, MetricsServer::Pages{.metrics = [&state] { return state.text(); },
                                                               .health = [&state] { return state.health(); }});
  say(fmt::format("metrics are at http://{}/metrics", to_string(state.server->endpoint())));
}

JobMetrics::~JobMetrics() = default;

JobMonitor* JobMetrics::monitor() const { return state_ == nullptr ? nullptr : &state_->monitor; }

}  // namespace lockstep::tools
