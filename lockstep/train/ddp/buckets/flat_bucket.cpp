#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/comm/group/sole_owner.h"
#include "lockstep/train/ddp/buckets/gradient_bucket.h"
#include "lockstep/train/ddp/comm_hooks/default_hooks.h"

namespace lockstep::internal {
namespace {

class FlatBucket final : public GradientBucket {
 public:
  FlatBucket(std::size_t index, std::vector<BucketMember> members, std::uint64_t wrapper, CommHook hook,
             std::optional<at::ScalarType> dtype)
      : GradientBucket(index, std::move(members), wrapper),
        hook_(hook ? std::move(hook) : all_reduce_hook()),
        dtype_(dtype) {
    for (const BucketMember& member : members_) {
      parameters_.push_back(member.parameter);
      names_.push_back(member.name);
    }
  }

 private:
  void do_finish(const Finish& finish) override {
    const at::NoGradGuard no_grad;
    GradBucket averaged(index(), false, buffer_, parameters_, names_);
    averaged.set_buffer(std::exchange(result_, nullptr)());
    const std::vector<at::Tensor> values = averaged.gradients();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (!is_used(finish, members_[i])) continue;
      const at::Tensor& parameter = members_[i].parameter;
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined() || gradient.scalar_type() != parameter.scalar_type()) {
        gradient = at::empty_like(parameter);
      }
      gradient.copy_(values[i]);
      if (const double factor = factor_of(finish, members_[i]); factor != 1) gradient.mul_(factor);
    }
  }

  void do_drop(const ProcessGroup&) override {
    if (const BucketResult result = std::exchange(result_, nullptr)) result();  // unless it has been asked, and threw
  }

  void do_launch(const Launch& launch) override {
    const at::NoGradGuard no_grad;
    std::int64_t count = 0;
    for (const at::Tensor& parameter : parameters_) count += parameter.numel();
    const at::ScalarType dtype = dtype_.value_or(parameters_.front().scalar_type());
    // A hook's state, or a result, may still refer to the last one.
    const bool is_free = buffer_.defined() && buffer_.use_count() == 1 && owns_its_memory(buffer_);
    if (!is_free) buffer_ = new_buffer(launch.group, count, dtype);
    GradBucket bucket(index(), launch.is_last, buffer_, parameters_, names_, launch.backward, wrapper_,
                      launch.is_weighted);
    const std::vector<at::Tensor> views = bucket.gradients();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const at::Tensor& gradient = contribution(launch, members_[i]);
      if (!gradient.defined()) {
        at::Tensor(views[i]).zero_();
        continue;
      }
      look_for_non_finite(launch, members_[i], gradient);
      at::Tensor(views[i]).copy_(gradient);
      copied_bytes_ += gradient.nbytes();
    }
    note_use(buffer_);
    result_ = hook_(bucket, launch.group);
    if (result_) return;
    throw Error(ErrorKind::invalid_argument, "the communication hook returned no function for bucket " +
                                                 std::to_string(index()) +
                                                 "; it must return a function that returns the averaged gradients");
  }

  const CommHook hook_;
  const std::optional<at::ScalarType> dtype_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  at::Tensor buffer_;
  BucketResult result_;
};

}  // namespace

std::unique_ptr<GradientBucket> make_flat_bucket(std::size_t index, std::vector<BucketMember> members,
                                                 std::uint64_t wrapper, CommHook hook,
                                                 std::optional<at::ScalarType> dtype) {
  return std::make_unique<FlatBucket>(index, std::move(members), wrapper, std::move(hook), dtype);
}

}  // namespace lockstep::internal
