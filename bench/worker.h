// A Worker is a program that measures on command, so that engines of different libraries can be timed in turn: it
// prints one line of JSON when it is ready and one for each line that it is sent; in between its processes sleep.
// Belongs to the thread that made it, which lives as long as the Worker.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/job/launch/child_process.h"

namespace bench {

class Worker {
 public:
  // `command`: program and arguments; a program without a slash is looked up in PATH. Every rank that it starts gets
  // one thread (OMP_NUM_THREADS). Throws lockstep::internal::ExecFailed.
  explicit Worker(std::vector<std::string> command);
  // Closes the program's standard input, which ends it; kills it if it goes on.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Blocks until it has said that it is ready. As measure(), throws Error{peer_lost} if it ends, {timeout}, and
  // {corrupt_data} if it says something else.
  void wait_ready(lockstep::Deadline deadline);
  // Sends a command and blocks until it is done: seconds, one number for each repetition.
  std::vector<double> measure(std::string_view command, lockstep::Deadline deadline);

 private:
  // What is not JSON, a library's warning perhaps, goes to standard error.
  std::string read_json(lockstep::Deadline deadline);
  std::string read_line(lockstep::Deadline deadline);

  const std::string name_;
  std::unique_ptr<lockstep::internal::ChildProcess> process_;
  lockstep::internal::UniqueFd input_;
  lockstep::internal::UniqueFd output_;
  std::string buffer_;  // read, but not yet a whole line
};

}  // namespace bench
