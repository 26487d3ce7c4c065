// The same module on every rank, averaged by hand: what DistributedDataParallel is compared with. Nothing of the
// library under test is used. Ranks are threads of this process, which exchange gradients through a Meeting.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "tests/graphs/case.h"

namespace lockstep::testing {

// Where threads hand each other tensors. Thread-safe. exchange() blocks until all ranks have come; it throws when one
// has left or does not come within a minute.
class Meeting {
 public:
  using Tensors = std::vector<at::Tensor>;

  explicit Meeting(int ranks) : ranks_(ranks), given_(static_cast<std::size_t>(ranks)) {}
  // What each rank has given, by rank.
  std::vector<Tensors> exchange(int rank, Tensors mine);
  void leave();

 private:
  const int ranks_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  std::vector<Tensors> given_, taken_;
  int came_ = 0;
  int round_ = 0;
  bool left_ = false;
};

// ((x0 + x1) + x2) + ..., divided by their number, 16-bit types added in float32 and rounded once.
at::Tensor mean_in_order(const std::vector<at::Tensor>& rows);
// Neighbours are averaged, then neighbours of those, and so on.
at::Tensor mean_in_tree(std::vector<at::Tensor> rows);

// What each rank's run by hand leaves.
std::vector<Trace> run_by_hand(const Case& one);

}  // namespace lockstep::testing
