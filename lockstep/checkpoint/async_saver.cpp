#include "lockstep/checkpoint/async_saver.h"

#include <future>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/save_job.h"

namespace lockstep {

using namespace internal;

// One save at a time, on a thread of its own.
class AsyncSaver::Worker {
 public:
  Worker(ProcessGroup group, bool keep_going) : group_(std::move(group)), keep_going_(keep_going) {}
  ~Worker() {
    try {
      finish();
    } catch (const std::exception& error) {
      log_warning(std::string("a checkpoint was not saved: ") + error.what());
    }
  }

  void start(SaveJob job) {
    running_ = std::async(std::launch::async, [this, job = std::move(job)]() mutable { return run_save(job, group_); });
  }

  // Waits, and throws what went wrong.
  std::optional<std::filesystem::path> finish() {
    if (!running_.valid()) return newest_;
    try {
      newest_ = running_.get();
    } catch (const Error& error) {
      if (!keep_going_ || error.kind() != ErrorKind::internal) throw;
      if (group_.rank() == 0) {
        log_warning(std::string("a checkpoint was not saved, and training goes on: ") + error.what());
      }
    }
    return newest_;
  }

 private:
  const ProcessGroup group_;
  const bool keep_going_;
  std::future<std::filesystem::path> running_;
  std::optional<std::filesystem::path> newest_;
};

AsyncSaver::AsyncSaver(std::filesystem::path directory, ProcessGroup group, const AsyncSaverOptions& options)
    : directory_(std::move(directory)), group_(std::move(group)), options_(options) {
  check(options_.save.retention);
  worker_ = std::make_unique<Worker>(*group_.split(0, group_.rank()), options_.keep_going);
}

AsyncSaver::~AsyncSaver() = default;

void AsyncSaver::save(const State& state) {
  worker_->finish();
  SaveJob job = plan_save(directory_, state, options_.save, group_);
  copy_parts(job);
  worker_->start(std::move(job));
}

std::optional<std::filesystem::path> AsyncSaver::wait() { return worker_->finish(); }

}  // namespace lockstep
