// Throughput measures how fast a training goes, and how much of the time is spent on communication. A value.
//   lockstep::Throughput throughput(ddp);
//   ... one step; throughput.add(samples);
#pragma once

#include <chrono>
#include <cstdint>

#include "lockstep/train/ddp/ddp_base.h"

namespace lockstep {

// From construction to the newest add(). Refers to the wrapper, which must outlive it.
class Throughput {
 public:
  explicit Throughput(const DdpBase& ddp) : ddp_(&ddp), communicated_(ddp.stats().communication_seconds) {}

  void add(std::int64_t samples) {
    samples_ += static_cast<double>(samples);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    communication_seconds_ = ddp_->stats().communication_seconds - communicated_;
  }
  // Of all ranks, estimated as if each were as fast as this one.
  double samples_per_second() const { return seconds_ == 0 ? 0 : samples_ * ddp_->group().size() / seconds_; }
  double communication_share() const { return seconds_ == 0 ? 0 : communication_seconds_ / seconds_; }
  // The mean of both over the ranks, so that all have the same values. Collective.
  Throughput over_all_ranks() const {
    Throughput all = *this;
    double samples = samples_, seconds = seconds_, communication = communication_seconds_;
    const double ranks = ddp_->group().size();
    ddp_->group().all_reduce(samples, seconds, communication);
    all.samples_ = samples / ranks;
    all.seconds_ = seconds / ranks;
    all.communication_seconds_ = communication / ranks;
    return all;
  }

 private:
  const DdpBase* ddp_;
  double communicated_;  // before
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double samples_ = 0;
  double seconds_ = 0;
  double communication_seconds_ = 0;
};

}  // namespace lockstep
