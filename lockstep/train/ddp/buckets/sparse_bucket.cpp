#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/train/ddp/buckets/gradient_bucket.h"

namespace lockstep::internal {
namespace {

class SparseBucket final : public GradientBucket {
 public:
  SparseBucket(std::size_t index, std::vector<BucketMember> members, std::uint64_t wrapper,
               std::optional<at::ScalarType> dtype)
      : GradientBucket(index, std::move(members), wrapper),
        dtype_(dtype.value_or(members_.front().parameter.scalar_type())) {}

 private:
  void do_finish(const Finish& finish) override {
    const at::NoGradGuard no_grad;
    const BucketMember& member = members_.front();
    at::Tensor sum = finish.group.all_reduce_sparse(mine_, call());
    mine_.reset();
    if (!is_used(finish, member)) return;
    sum._values().mul_(factor_of(finish, member) / finish.group.size());
    member.parameter.mutable_grad() = sum.to(member.parameter.scalar_type());
  }

  void do_drop(const ProcessGroup&) override { mine_.reset(); }

  // The sizes of all ranks are only known when all are ready, so everything is done at the end of backward.
  void do_launch(const Launch& launch) override {
    const BucketMember& member = members_.front();
    const at::Tensor& parameter = member.parameter;
    const at::Tensor& gradient = contribution(launch, member);
    if (!gradient.defined()) {
      // A gradient with as many sparse dimensions as an embedding's: one.
      mine_ =
          at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                                at::empty(rows_of(parameter, 0), parameter.options().dtype(dtype_)), parameter.sizes());
      return;
    }
    mine_ = gradient.coalesce().to(dtype_);
    look_for_non_finite(launch, member, mine_._values());
  }

  static std::vector<std::int64_t> rows_of(const at::Tensor& parameter, std::int64_t count) {
    std::vector<std::int64_t> sizes = parameter.sizes().vec();
    sizes.front() = count;
    return sizes;
  }

  const at::ScalarType dtype_;  // of the reduction, whatever the parameter's current type
  at::Tensor mine_;
};

}  // namespace

std::unique_ptr<GradientBucket> make_sparse_bucket(std::size_t index, std::vector<BucketMember> members,
                                                   std::uint64_t wrapper, std::optional<at::ScalarType> dtype) {
  return std::make_unique<SparseBucket>(index, std::move(members), wrapper, dtype);
}

}  // namespace lockstep::internal
