#include "lockstep/job/launch/host_watch.h"

#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/crash_stack.h"
#include "lockstep/job/launch/hang_scout.h"
#include "lockstep/job/launch/watched_ranks.h"

namespace lockstep::internal {
namespace {

class ScoutOfHost final : public HostWatch {
 public:
  ScoutOfHost(Duration tell_after, HostWatchContext context)
      : context_(std::move(context)),
        ranks_(context_.first_rank),
        scout_(tell_after, context_.recordings, steady_clock()),
        next_look_(Deadline::after({})) {}

  void on_start(const std::vector<int>& pids) override { ranks_.start(pids); }
  void on_end(const RankEnd& end) override { ranks_.end(end); }
  Deadline wake_at() const override { return ranks_.is_watching() ? next_look_ : Deadline::never(); }

  TreeOrder serve(std::span<const pollfd> /*ready*/) override {
    if (!ranks_.is_watching() || !next_look_.expired()) return {};
    scout_.awaits_stacks() ? look_at_stacks() : look_at_ranks();
    next_look_ = Deadline::after(scout_.interval());
    return {};
  }

  void tell_stacks(const std::vector<int>& first) override {
    if (!ranks_.is_watching() || scout_.awaits_stacks()) return;
    first_ = first;
    scout_.ask_for_stacks(first_);
    next_look_ = Deadline::after(scout_.interval());
  }

  std::vector<std::string> crash_stack(const RankEnd& end) const override {
    return internal::crash_stack(end, context_.recordings);
  }

 private:
  void look_at_ranks() {
    HostSight sight{.is_still = scout_.look(ranks_.all()), .last_event = steady_clock().now()};
    if (sight.is_still) {
      scout_.measure();
      sight.last_event = scout_.last_event();
      sight.ranks = scout_.sights();
    }
    if (sight.is_still || was_still_) context_.report(std::move(sight));
    was_still_ = sight.is_still;
  }

  void look_at_stacks() {
    if (!scout_.has_stacks()) return;
    std::vector<RankSight> ranks = scout_.sights();
    scout_.take_stacks(ranks);
    for (const std::string& line : stack_lines(ranks, first_)) {
      context_.output.say(
          context_.host.empty() || line.starts_with(' ') ? line : fmt::format("host {}: {}", context_.host, line));
    }
  }

  const HostWatchContext context_;
  WatchedRanks ranks_;
  HangScout scout_;
  Deadline next_look_;
  std::vector<int> first_;
  bool was_still_ = false;
};

}  // namespace

std::unique_ptr<HostWatch> make_host_watch(Duration tell_after, HostWatchContext context) {
  return std::make_unique<ScoutOfHost>(tell_after, std::move(context));
}

}  // namespace lockstep::internal
