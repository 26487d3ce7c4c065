// JobMetrics is how a job can be watched from outside: by HTTP, and in a file. What the user has asked for lives as
// long as this; the launcher tells monitor() what happens.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/net/address.h"
#include "lockstep/job/launch/job_monitor.h"

namespace lockstep::tools {

struct MetricsOptions {
  std::optional<Endpoint> endpoint;  // of --metrics-port
  std::string textfile;              // of --metrics-textfile; empty: none

  bool any() const { return endpoint || !textfile.empty(); }
};

// "9400", "10.0.0.1:9400", "[::1]:9400"; a port alone is one of 127.0.0.1. Error{invalid_argument}.
Endpoint parse_metrics_port(const std::string& text);

class JobMetrics {
 public:
  // `say` gets the address that is served. Errors: the port is taken, the file cannot be written.
  JobMetrics(const MetricsOptions& options, const std::string& version, const std::string& program,
             const std::function<void(const std::string&)>& say);
  ~JobMetrics();
  JobMetrics(const JobMetrics&) = delete;
  JobMetrics& operator=(const JobMetrics&) = delete;

  // Null: not watched.
  internal::JobMonitor* monitor() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::tools
