#include "lockstep/train/checkpoint/async_saver.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/train/checkpoint/part_copies.h"
#include "lockstep/train/checkpoint/replicas.h"
#include "lockstep/train/checkpoint/save_agreement.h"
#include "lockstep/train/checkpoint/set_directory.h"
#include "lockstep/train/checkpoint/set_writing.h"
#include "lockstep/train/checkpoint/together.h"

namespace lockstep {

using namespace internal;

// One save at a time, on its own thread.
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
    job_ = std::move(job);
    note_streams();
    replicas_.reset();
    failure_ = error_in([&] {
      copies_.take(job_, copy_in_background ? Which::all_but_stepped : Which::all);
      if (!copy_in_background) take_replicas(at::get_num_threads());
    });
    copied_ = std::promise<void>();
    is_copied_ = copied_.get_future();
    const auto no_thread = error_in([&] {
      const SignalBlock block = SignalBlock::of_new_thread();
      running_ = std::async(std::launch::async, [this] { return run(); });
    });
    if (!no_thread) return;
    // The others wait for this rank, and learn here that it has nothing for them.
    if (!failure_) failure_ = no_thread;
    running_ = std::async(std::launch::deferred, [this] { return run(); });
    running_.wait();
  }

  void wait_for_copy() const {
    if (is_copied_.valid()) is_copied_.wait();
  }

  // Waits, and throws a failure of the save.
  std::optional<std::filesystem::path> finish() {
    if (!running_.valid()) return newest_;
    try {
      newest_ = running_.get();
    } catch (const Error& error) {
      if (!keep_going_ || error.kind() != ErrorKind::internal) throw;
      if (group_.rank() == 0) {
        log_warning(std::string("a checkpoint was not saved; training continues: ") + error.what());
      }
    }
    return newest_;
  }

 private:
  // A failure is reported to the other ranks where they wait for this rank's part.
  std::filesystem::path run() {
    const OnOwnStreams beside_training(planned_.devices());
    planned_.wait_on_streams();
    if (!failure_) {
      failure_ = error_in([&] {
        copies_.take(job_, PartCopies::Which::all);
        if (!replicas_) take_replicas(1);
      });
    }
    job_.of_others.clear();
    copied_.set_value();
    SaveJob job = std::move(job_);
    return run_save(job, group_, failure_, std::exchange(replicas_, std::nullopt));
  }
  // Where the program's streams of devices are. Its tensors stay as they are then until they are copied.
  void note_streams() {
    planned_.clear();
    for (const auto* parts : {&job_.parts, &job_.of_others}) {
      for (const SaveJob::Part& part : *parts) {
        const std::vector<at::Device> known = planned_.devices();
        if (std::ranges::find(known, part.tensor.device()) == known.end()) planned_.add(part.tensor.device());
      }
    }
  }
  // Parts that other ranks write are only read, and may change afterwards.
  void take_replicas(int threads) { replicas_ = replica_digests(job_, threads); }

  const ProcessGroup group_;
  const bool keep_going_;
  PartCopies copies_;
  SaveJob job_;
  StreamMarks planned_;
  std::optional<ReplicaDigests> replicas_;
  std::optional<Error> failure_;  // of this rank, before anything is written
  std::promise<void> copied_;
  std::future<void> is_copied_;
  std::future<std::filesystem::path> running_;
  std::optional<std::filesystem::path> newest_;
};

AsyncSaver::AsyncSaver(const std::filesystem::path& directory, ProcessGroup group, const AsyncSaverOptions& options)
    : directory_(whole_path(directory)), group_(std::move(group)), options_(options) {
  Facts facts = facts_of(options_.save);
  facts.insert(facts.begin(), {{"directory", directory.string()},
                               {"keep_going", options_.keep_going ? "true" : "false"},
                               {"copy_in_background", options_.copy_in_background ? "true" : "false"}});
  require_same_facts(group_, "has an AsyncSaver with", facts);
  act_together(group_, "an AsyncSaver", [&] { check(options_.save.retention); });
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
