// AsyncSaver saves checkpoints while training continues. State -> copy in memory of what this rank writes -> its thread
// -> a set, as save() writes it. Training pauses only for the copy, for the digests of what other ranks write and this
// rank has too, and for an earlier unfinished save: one save runs at a time. The copy's memory, this rank's part of the
// state, is kept.
//   lockstep::AsyncSaver saver("checkpoints", world, {.save = {.retention = {.keep_last = 3}}});
//   ... saver.save(state);
// With copy_in_background it does not wait for parameters and optimizer state either, which only the optimizer's step
// changes: forward and backward run meanwhile.
//   saver.save(state); ... loss.backward(); saver.wait_for_copy(); optimizer.step();
// All ranks construct and destroy it; save() and wait() are collective. A failure in the background is the same error
// on all ranks, thrown by the next save() or wait(); then no checkpoint was published, and earlier ones are kept. The
// destructor finishes a pending save, and logs an error that no call has thrown.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/checkpoint/save_options.h"
#include "lockstep/train/checkpoint/state.h"

namespace lockstep {

struct AsyncSaverOptions {
  SaveOptions save = {};
  // A full or failing disk is logged as a warning, and training continues; save() and wait() throw other errors.
  bool keep_going = true;
  // A change before wait_for_copy() is detected by PyTorch's version counter, or by 32 elements of each tensor where it
  // is not counted, as with plain SGD or writes through data(). Then there is no checkpoint, and the next call throws
  // Error{invalid_argument} that names the tensor. An uncounted change of few other elements, such as rows of a large
  // embedding, is not detected.
  bool copy_in_background = false;
};

class AsyncSaver {
 public:
  // A relative directory is resolved now. The thread has its own process group. Collective; Error{invalid_argument} on
  // all ranks for options that differ or are invalid.
  AsyncSaver(const std::filesystem::path& directory, ProcessGroup group, const AsyncSaverOptions& options = {});
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;
  ~AsyncSaver();

  void save(const State& state);
  // Waits until the program may change the saved state. Local to this rank; throws nothing.
  void wait_for_copy();
  // Waits until everything is on disk. Returns the newest set of this saver, if there is one.
  std::optional<std::filesystem::path> wait();

 private:
  class Worker;

  const std::filesystem::path directory_;
  const ProcessGroup group_;
  const AsyncSaverOptions options_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace lockstep
