#include "lockstep/job/elastic/separation.h"

#include <algorithm>
#include <tuple>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

const Slot* seat_of(const std::vector<Slot>& slots, int rank) {
  const auto slot = std::ranges::find_if(
      slots, [rank](const Slot& each) { return rank >= each.first_rank && rank < each.first_rank + each.ranks; });
  return slot == slots.end() ? nullptr : &*slot;
}

// A rank that failed because it lost one of another host, or never reached it.
struct Loss {
  const RankEnd* end;
  const Slot* of;
  const Slot* lost;
};

std::vector<Loss> losses(const Outcome& outcome, const std::vector<Slot>& slots) {
  std::vector<Loss> found;
  for (const RankEnd& end : outcome.ranks) {
    if (end.failure.text.empty() || end.failure.fault != Fault::consequence || end.failure.blamed < 0) continue;
    const Loss loss{&end, seat_of(slots, end.rank), seat_of(slots, end.failure.blamed)};
    if (loss.of != nullptr && loss.lost != nullptr && loss.of != loss.lost) found.push_back(loss);
  }
  return found;
}

bool has_own_failure(const Outcome& outcome, const Slot& slot) {
  return std::ranges::any_of(outcome.ranks, [&](const RankEnd& end) {
    const bool is_here = end.rank >= slot.first_rank && end.rank < slot.first_rank + slot.ranks;
    return is_here && !end.told_to_stop && !end.failure.text.empty() && end.failure.fault == Fault::own;
  });
}

std::string evidence(const Separation& separation) {
  return fmt::format("ranks {} and {} lost their connection to each other, but the first host reaches both",
                     separation.leaver_rank, separation.other_rank);
}

}  // namespace

std::optional<Separation> find_separation(const Outcome& outcome, const std::vector<Slot>& slots) {
  const std::vector<Loss> all = losses(outcome, slots);
  const auto answers = [&](const Loss& loss) {
    return std::ranges::find_if(all, [&](const Loss& other) { return other.of == loss.lost && other.lost == loss.of; });
  };
  const auto is_separated = [&](const Loss& loss) {
    return answers(loss) != all.end() && !has_own_failure(outcome, *loss.of) && !has_own_failure(outcome, *loss.lost);
  };
  const auto not_reached_by = [&](const Slot* slot) {
    std::vector<const Slot*> others;
    for (const Loss& loss : all) {
      const bool is_known = std::ranges::find(others, loss.lost) != others.end();
      if (loss.of == slot && !is_known && is_separated(loss)) others.push_back(loss.lost);
    }
    return others.size();
  };
  const Loss* worst = nullptr;
  const auto order = [&](const Loss& loss) { return std::tuple(not_reached_by(loss.of), loss.of->node_rank); };
  for (const Loss& loss : all) {
    if (loss.of->host == kFirstHost || !is_separated(loss)) continue;
    if (worst == nullptr || order(loss) > order(*worst)) worst = &loss;
  }
  if (worst == nullptr) return std::nullopt;
  return Separation{worst->of->host, worst->lost->host, worst->end->rank, answers(*worst)->end->rank};
}

std::string describe_leaver(const Separation& separation, const std::string& other) {
  return fmt::format("it and host {} cannot reach each other ({}); it rejoins when it reaches host {}", other,
                     evidence(separation), other);
}

std::string describe_pair(const Separation& separation, const std::string& leaver, const std::string& other) {
  return fmt::format("hosts {} and {} cannot reach each other ({}): check routes and firewalls between them", leaver,
                     other, evidence(separation));
}

}  // namespace lockstep::internal
