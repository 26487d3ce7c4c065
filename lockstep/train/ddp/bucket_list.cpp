#include "lockstep/train/ddp/bucket_list.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/failure_note.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/train/ddp/buckets/bucket_plan.h"

namespace lockstep::internal {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kDefaultCapMb = 25;
constexpr double kDefaultFirstMb = 1;

std::vector<std::size_t> caps_of(const DdpOptions& options) {
  if (options.bucketing == Bucketing::off) return {0};
  std::vector<double> mib = options.bucket_cap_mb_list;
  if (mib.empty() && options.bucket_cap_mb) mib = {*options.bucket_cap_mb};
  if (mib.empty()) mib = {kDefaultFirstMb, kDefaultCapMb};
  std::vector<std::size_t> bytes;
  for (const double cap : mib) bytes.push_back(static_cast<std::size_t>(cap * kMiB));
  return bytes;
}

std::vector<PlannedParameter> planned(const TrainedParameters& parameters) {
  std::vector<PlannedParameter> result;
  for (const auto& [name, tensor, sparse, delayed] : parameters) {
    result.push_back({.bytes = static_cast<std::size_t>(tensor.nbytes()),
                      .dtype = dtype_of(tensor, "DistributedDataParallel, parameter " + name),
                      .device = tensor.get_device(),
                      .sparse = sparse,
                      .delayed = delayed});
  }
  return result;
}

// A hook may throw on this rank only.
template <class Call>
void or_fail_everywhere(const ProcessGroup& group, Call&& call) {
  try {
    call();
  } catch (...) {
    group.abort("backward of DistributedDataParallel failed: " + std::string(first_line(text_of_exception())));
    throw;
  }
}

bool is_needed(const GradientBucket& bucket, const std::vector<bool>& needed) {
  return needed.empty() || std::ranges::any_of(bucket.members(), [&](const auto& one) { return needed[one.index]; });
}

}  // namespace

BucketList::BucketList(const TrainedParameters& parameters, const DdpOptions& options, std::uint64_t wrapper)
    : parameters_(parameters), options_(options), wrapper_(wrapper), places_(parameters.size()) {
  form(reversed_order(parameters.size()), {});
}

void BucketList::form(const std::vector<std::size_t>& order, const CommHook& hook) {
  buckets_.clear();
  for (const auto& indices : plan_buckets(planned(parameters_), order, caps_of(options_))) {
    std::vector<BucketMember> members;
    for (const std::size_t index : indices) {
      places_[index] = {buckets_.size(), members.size()};
      members.push_back({.index = index, .name = parameters_[index].name, .parameter = parameters_[index].tensor});
    }
    buckets_.push_back(make_bucket(buckets_.size(), std::move(members), hook));
  }
  std::string list;
  for (const auto& bucket : buckets_) {
    list += fmt::format("{}{} KiB in {}", list.empty() ? "" : ", ", bucket->bytes() / 1024, bucket->members().size());
  }
  log_debug(fmt::format("DistributedDataParallel: {} parameters, {} bucket{}, in this order: {}", parameters_.size(),
                        buckets_.size(), buckets_.size() == 1 ? "" : "s", list));
}

std::unique_ptr<GradientBucket> BucketList::make_bucket(std::size_t index, std::vector<BucketMember> members,
                                                        const CommHook& hook) const {
  const MixedPrecision& mixed = options_.mixed_precision;
  auto dtype = mixed.reduce_dtype ? mixed.reduce_dtype : mixed.param_dtype;
  if (!members.front().parameter.is_floating_point()) dtype.reset();
  if (parameters_[members.front().index].sparse) return make_sparse_bucket(index, std::move(members), wrapper_, dtype);
  if (!hook && !dtype) return make_in_place_bucket(index, std::move(members), wrapper_);
  return make_flat_bucket(index, std::move(members), wrapper_, hook, dtype);
}

void BucketList::reset() {
  next_ = 0;
  for (const auto& bucket : buckets_) bucket->reset();
}

void BucketList::set_ready(std::size_t parameter, bool fired) {
  const Place& place = places_[parameter];
  buckets_[place.bucket]->set_ready(place.member, fired);
}

bool BucketList::is_ready(std::size_t parameter) const {
  return of(parameter).members()[places_[parameter].member].is_ready;
}

void BucketList::launch_ready(Launch launch, const std::vector<bool>& needed) {
  std::size_t last = buckets_.size() - 1;
  while (last > 0 && !is_needed(*buckets_[last], needed)) --last;
  for (; next_ < buckets_.size() && buckets_[next_]->is_ready(); ++next_) {
    if (!is_needed(*buckets_[next_], needed)) continue;
    launch.is_last = next_ == last;
    or_fail_everywhere(launch.group, [&] { buckets_[next_]->launch(launch); });
  }
}

void BucketList::finish(const Finish& finish) {
  for (const auto& bucket : buckets_) {
    if (bucket->is_launched()) or_fail_everywhere(finish.group, [&] { bucket->finish(finish); });
  }
}

void BucketList::drop(const ProcessGroup& group) {
  for (const auto& bucket : buckets_) bucket->drop(group);
}

std::uint64_t BucketList::copied_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& bucket : buckets_) sum += bucket->copied_bytes();
  return sum;
}

std::vector<std::size_t> BucketList::bytes() const {
  std::vector<std::size_t> bytes;
  for (const auto& bucket : buckets_) bytes.push_back(bucket->bytes());
  return bytes;
}

}  // namespace lockstep::internal
