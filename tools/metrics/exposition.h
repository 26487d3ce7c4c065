// What is known of a job, in Prometheus's text format. WatchedJob -> text. Pure.
#pragma once

#include <string>

#include "lockstep/job/launch/job_monitor.h"

namespace lockstep::tools {

struct JobLabels {
  std::string version;       // of Lockstep
  std::string program;       // its name
  double start_seconds = 0;  // when the launcher began; since 1970
};

// Of a host that is not the first only a comment: the first host reports all ranks.
std::string exposition_of(const internal::WatchedJob& status, const JobLabels& labels);

}  // namespace lockstep::tools
