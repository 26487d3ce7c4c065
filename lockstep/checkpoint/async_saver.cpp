#include "lockstep/checkpoint/async_saver.h"

#include <future>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/part_copies.h"
#include "lockstep/checkpoint/set_writing.h"

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

  void start(SaveJob job, bool copy_in_background) {
    using Which = PartCopies::Which;
    std::optional<Error> failure = copy(job, copy_in_background ? Which::all_but_stepped : Which::all);
    std::promise<void> copied;
    copied_ = copied.get_future();
    running_ = std::async(std::launch::async, [this, job = std::move(job), failure = std::move(failure),
                                               copied = std::move(copied)]() mutable {
      if (!failure) failure = copy(job, Which::all);
      copied.set_value();
      return run_save(job, group_, failure);
    });
  }

  void wait_for_copy() const {
    if (copied_.valid()) copied_.wait();
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
  // What goes wrong is told to the other ranks where they wait for this one's part.
  std::optional<Error> copy(SaveJob& job, PartCopies::Which which) {
    try {
      copies_.take(job, which);
    } catch (const Error& error) {
      return error;
    } catch (const std::exception& error) {
      return Error(ErrorKind::internal, std::string("copying a checkpoint: ") + error.what());
    }
    return std::nullopt;
  }

  const ProcessGroup group_;
  const bool keep_going_;
  PartCopies copies_;
  std::future<void> copied_;
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
  worker_->start(plan_save(directory_, state, options_.save, group_), options_.copy_in_background);
}

void AsyncSaver::wait_for_copy() { worker_->wait_for_copy(); }

std::optional<std::filesystem::path> AsyncSaver::wait() { return worker_->finish(); }

}  // namespace lockstep
