// How many threads torch computes with: at::set_num_threads() for a while. The setting belongs to the calling thread
// (OpenMP's team, which ATen and oneDNN take, and MKL's), and threads that are started meanwhile begin with it.
#pragma once

#include <ATen/Parallel.h>

namespace lockstep::internal {

// Belongs to the thread that makes it; its destructor restores the earlier number.
class ThreadCount {
 public:
  // REQUIRES: threads > 0.
  explicit ThreadCount(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  const int before_;
};

}  // namespace lockstep::internal
