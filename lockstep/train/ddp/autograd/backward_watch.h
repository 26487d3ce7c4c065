// Whether every backward of a shard's callback came to its end. One that throws leaves some parameters with its
// gradient and others without, which looks like a complete one. autograd hooks -> BackwardWatch -> ShardedStep.
// Hooks run on the thread that runs backward. Belongs to the thread of its owner.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace lockstep::internal {

// The gradients of a callback's backwards in .grad so far.
class BackwardRecord {
 public:
  enum class Left { whole, part, mixture };  // part: of failed backwards only; mixture: of such and of others

  Left left() const;

 private:
  friend class BackwardWatch;
  struct Open {
    int graph_task = 0;
    bool began_without_gradients = true;
  };
  std::vector<Open> open_;  // those that have not ended
  int whole_ = 0;           // those that have, since .grad was empty
};

class BackwardWatch {
 public:
  // Hooks the parameters until it is destroyed. REQUIRES: leaves that require gradients.
  explicit BackwardWatch(std::vector<at::Tensor> parameters);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // Whether some BackwardWatch hooks it, so it is trained in lockstep mode. For a leaf that requires a gradient.
  static bool watches(const at::Tensor& parameter);

  // From now on backwards are noted in this record; null: in none.
  void note_in(std::shared_ptr<BackwardRecord> record);

 private:
  struct State;
  struct Hooks;
  std::shared_ptr<State> state_;
  std::vector<Hooks> hooks_;  // of each parameter
};

}  // namespace lockstep::internal
