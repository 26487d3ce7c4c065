// JobReport collects how the attempts of a job ended, and writes it as JSON for other programs (--report FILE). Not
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "lockstep/job/launch/outcome.h"

namespace lockstep::internal {

class JobReport {
 public:
  JobReport(std::string job_id, std::string run_id, std::vector<std::string> program)
      : job_id_(std::move(job_id)), run_id_(std::move(run_id)), program_(std::move(program)) {}

  void add(Outcome attempt) { attempts_.push_back(std::move(attempt)); }

  // One object: "job", "run_id", "program", "exit_code", "stopped_by", and "attempts", each with its "cause" (the rank
  // that failed first, or that a job which hung has waited for; null if there is neither), its "hang", its
  // "lost_hosts" and its "ranks".
  std::string json(int exit_code) const;
  // As write_report_file() does.
  void write(const std::string& path, int exit_code) const;

 private:
  std::string job_id_;
  std::string run_id_;
  std::vector<std::string> program_;
  std::vector<Outcome> attempts_;
};

}  // namespace lockstep::internal
