// AsyncSaver saves checkpoints while training goes on. State -> copy in memory of what this rank writes -> its thread
// -> a set, as save() makes it. The training stands still for the copy only, while this rank digests what others write
// of what it has, too, and for an earlier save that is not finished: one is under way at a time. The memory of the
// copy, this rank's part of the state, is kept.
//   lockstep::AsyncSaver saver("checkpoints", world, {.save = {.retention = {.keep_last = 3}}});
//   ... saver.save(state);
// With copy_in_background it does not wait for parameters and the optimizer's state either, which only the optimizer's
// step changes: forward and backward go on meanwhile.
//   saver.save(state); ... loss.backward(); saver.wait_for_copy(); optimizer.step();
// Made and destroyed by all ranks; save() and wait() are collective. What goes wrong in the background is the same
// error on all ranks, and the next save() or wait() throws it; then no checkpoint was published, and earlier ones are
// still there. The destructor finishes what was begun, and logs an error that nobody has asked for.
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
  // A disk that is full or fails is logged as a warning, and training goes on; save() and wait() throw other errors.
  bool keep_going = true;
  // What changes before wait_for_copy() is noticed: by PyTorch's count of changes, and by 32 elements of each tensor,
  // for what is not counted, as plain SGD and what writes through data(). Then there is no checkpoint, and the next
  // call throws Error{invalid_argument} that names the tensor. A change that is not counted and touches few other
  // elements, as rows of a large embedding, is not noticed.
  bool copy_in_background = false;
};

class AsyncSaver {
 public:
  // A relative directory is taken from where the program is now. The thread has a group of its own. Collective;
  // Error{invalid_argument} on all ranks for options that differ or mean nothing.
  AsyncSaver(const std::filesystem::path& directory, ProcessGroup group, const AsyncSaverOptions& options = {});
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;
  ~AsyncSaver();

  void save(const State& state);
  // Until the program may change what it saves. Of this rank alone; throws nothing.
  void wait_for_copy();
  // Until everything is on disk. The newest set of this saver, if there is one.
  std::optional<std::filesystem::path> wait();

 private:
  class Worker;

  const std::filesystem::path directory_;
  const ProcessGroup group_;
  const AsyncSaverOptions options_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace lockstep
