// The buckets of a model: all, the complete ones, and those in flight.
// BackwardAverager -> BucketList -> GradientBucket. Buckets are launched in their order, each as soon as it and all
// before it are complete. Belongs to the thread that runs backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/train/ddp/buckets/gradient_bucket.h"
#include "lockstep/train/ddp/comm_hooks/comm_hook.h"
#include "lockstep/train/ddp/options.h"
#include "lockstep/train/ddp/trained_parameter.h"

namespace lockstep::internal {

class BucketList {
 public:
  // parameters, options: outlive it. wrapper: see GradBucket. Error{invalid_argument} names a parameter of a type that
  // cannot be reduced.
  BucketList(const TrainedParameters& parameters, const DdpOptions& options, std::uint64_t wrapper);

  // Replaces the buckets by new ones. order: of all parameters, as their gradients are expected. hook: empty for a
  // plain average.
  void form(const std::vector<std::size_t>& order, const CommHook& hook);

  // Begins a backward: all gradients are awaited.
  void reset();
  // See GradientBucket::set_ready().
  void set_ready(std::size_t parameter, bool fired);
  bool is_ready(std::size_t parameter) const;
  const GradientBucket& of(std::size_t parameter) const { return *buckets_[places_[parameter].bucket]; }

  // Launches complete buckets. needed: by parameter; buckets without a needed one are skipped; empty: all are needed.
  // An exception of a hook ends the group, since other ranks wait for this one's part; so in finish().
  void launch_ready(Launch launch, const std::vector<bool>& needed);
  bool has_launched() const { return next_ != 0; }
  void finish(const Finish& finish);
  // See GradientBucket::drop().
  void drop(const ProcessGroup& group);

  // Of the last launches.
  std::uint64_t copied_bytes() const;
  // Of each bucket, in the order of reduction.
  std::vector<std::size_t> bytes() const;

 private:
  struct Place {
    std::size_t bucket;
    std::size_t member;
  };

  std::unique_ptr<GradientBucket> make_bucket(std::size_t index, std::vector<BucketMember> members,
                                              const CommHook& hook) const;

  const TrainedParameters& parameters_;
  const DdpOptions& options_;
  const std::uint64_t wrapper_;
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::vector<Place> places_;  // by parameter
  std::size_t next_ = 0;       // bucket to launch
};

}  // namespace lockstep::internal
