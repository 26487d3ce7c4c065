// A GradientBucket is some gradients that are averaged together. BucketList -> bucket -> process group -> .grad
// The list reports which gradients are ready, launches it when all are, and finishes it at the end of backward, or
// drops it if the backward fails. Belongs to the thread that runs backward. Its kinds:
//
//   in place   large gradients that were allocated in shared memory, and that have no other owner, are reduced in
//              place; the others are copied into the bucket's own buffer and back. On a device all are copied into the
//              buffer, and are parts of it from then on.
//   flat       all are copied into one dense tensor, which a communication hook averages, or which has another dtype
//   sparse     one sparse gradient
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/checks/all_finite.h"
#include "lockstep/train/ddp/comm_hooks/comm_hook.h"

namespace lockstep::internal {

struct BucketMember {
  std::size_t index = 0;  // of the parameter in the model
  std::string name;
  at::Tensor parameter;
  bool is_ready = false;  // in this backward, by a gradient or by none
  bool fired = false;     // this backward gave it a gradient
};

struct Launch {
  const ProcessGroup& group;
  std::uint64_t backward = 0;         // which one since the beginning, the same on all ranks
  const at::Tensor* added = nullptr;  // autograd's last addend to the gradient that arrives; see owns_gradient()
  bool is_last = false;               // bucket of this backward
  // By parameter: this rank's contributions instead of its gradients. Null: the gradients.
  const std::vector<at::Tensor>* instead = nullptr;
  FiniteCheck* finite = nullptr;  // gets this rank's gradients; null: nobody looks
  bool is_weighted = false;       // see GradBucket
};

struct Finish {
  const ProcessGroup& group;
  const std::vector<bool>* used = nullptr;       // by parameter: whether some rank used it; null: all are
  double factor = 1;                             // by which averages are multiplied
  const std::vector<double>* factors = nullptr;  // by parameter; null: all by `factor`
};

class GradientBucket {
 public:
  // `members`: of one dtype and device; their gradients are joined in this order, the same on all ranks. wrapper: see
  // GradBucket.
  GradientBucket(std::size_t index, std::vector<BucketMember> members, std::uint64_t wrapper);
  virtual ~GradientBucket() = default;
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  // Begins a backward: all gradients are awaited.
  void reset();
  // A member's gradient is there, or will not come.
  void set_ready(std::size_t member, bool fired);
  bool is_ready() const { return ready_ == members_.size(); }

  // Starts averaging. A member without a gradient contributes zeros. REQUIRES: is_ready().
  void launch(const Launch& launch);
  // Blocks until the averages are in the gradients of those parameters that some rank used.
  void finish(const Finish& finish);
  // Of a backward that has failed: blocks until no reduction of launch() is in flight; gradients keep their values.
  // Does nothing if none is.
  void drop(const ProcessGroup& group);

  std::size_t index() const { return index_; }
  const std::vector<BucketMember>& members() const { return members_; }
  bool is_launched() const { return stage_ != Stage::waiting; }
  std::size_t bytes() const;  // of its parameters
  // In the last launch: gradients that did not lie in shared memory.
  std::size_t copied_bytes() const { return copied_bytes_; }

 protected:
  virtual void do_launch(const Launch& launch) = 0;
  virtual void do_finish(const Finish& finish) = 0;
  virtual void do_drop(const ProcessGroup& group) = 0;
  // The name of the collectives of the last launch; see bucket_call_name().
  CallOptions call() const { return {.name = call_name_, .number = backward_}; }

  // A dense 1-d tensor where the parameters are; in shared memory, if the ranks share memory there.
  at::Tensor new_buffer(const ProcessGroup& group, std::int64_t count, at::ScalarType dtype) const;
  // This rank's contribution for a member; undefined if it has none.
  static const at::Tensor& contribution(const Launch& launch, const BucketMember& member) {
    return launch.instead == nullptr ? member.parameter.grad() : (*launch.instead)[member.index];
  }
  static double factor_of(const Finish& finish, const BucketMember& member) {
    return finish.factors == nullptr ? finish.factor : (*finish.factors)[member.index];
  }
  static bool is_used(const Finish& finish, const BucketMember& member) {
    return finish.used == nullptr || (*finish.used)[member.index];
  }
  static void look_for_non_finite(const Launch& launch, const BucketMember& member, const at::Tensor& values) {
    if (launch.finite != nullptr) launch.finite->add(values, member.index);
  }

  const std::size_t index_;
  const std::uint64_t wrapper_;
  std::vector<BucketMember> members_;
  std::size_t copied_bytes_ = 0;

 private:
  enum class Stage { waiting, launched, finished };

  const std::string call_name_;
  std::uint64_t backward_ = 0;  // of the last launch
  std::size_t ready_ = 0;
  Stage stage_ = Stage::waiting;
};

std::unique_ptr<GradientBucket> make_in_place_bucket(std::size_t index, std::vector<BucketMember> members,
                                                     std::uint64_t wrapper);
// hook: empty for a plain average. dtype: of the reduction; unset: the parameters'.
std::unique_ptr<GradientBucket> make_flat_bucket(std::size_t index, std::vector<BucketMember> members,
                                                 std::uint64_t wrapper, CommHook hook,
                                                 std::optional<at::ScalarType> dtype);
// REQUIRES: one member.
std::unique_ptr<GradientBucket> make_sparse_bucket(std::size_t index, std::vector<BucketMember> members,
                                                   std::uint64_t wrapper, std::optional<at::ScalarType> dtype);

}  // namespace lockstep::internal
