#include "lockstep/job/elastic/job_machine.h"

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/elastic/separation.h"
#include "lockstep/job/launch/stop_rules.h"

namespace lockstep::internal {
namespace {

// A host that is not seen any more ends its own ranks in this time after the first host has noticed.
constexpr Duration kFence = std::chrono::seconds(1);

// All of its ranks.
bool has_started(const Outcome& outcome) {
  return std::ranges::find(outcome.ranks, kNotStarted, &RankEnd::pid) == outcome.ranks.end();
}

// How long the other ranks may take to end.
Duration moment_after_failure(const Outcome& outcome) {
  const auto runs = [&](int rank) {
    return std::ranges::find(outcome.ranks, rank, &RankEnd::rank) == outcome.ranks.end();
  };
  return moment_after_failure(outcome.ranks, runs, kMomentForBlamedHost);
}

std::string hosts_text(int count) { return fmt::format("{} host{}", count, count == 1 ? "" : "s"); }

}  // namespace

JobMachine::JobMachine(const JobMachineOptions& options, TimePoint now) : options_(options), waiting_since_(now) {
  outcome_.stop_exit_code = options_.stop_exit_code;
}

HostEntry* JobMachine::entry(int host) {
  const auto found = std::ranges::find(hosts_, host, &HostEntry::number);
  return found == hosts_.end() ? nullptr : &*found;
}

const HostEntry* JobMachine::find(int host) const { return const_cast<JobMachine*>(this)->entry(host); }

// Hosts that the next attempt may have.
int JobMachine::available() const {
  return static_cast<int>(std::ranges::count_if(hosts_, [](const HostEntry& host) { return is_available(host); }));
}

bool JobMachine::had_slot(int host) const { return had_slot_.contains(host); }

bool JobMachine::has_slot(int host) const { return std::ranges::find(slots_, host, &Slot::host) != slots_.end(); }

std::optional<Refused> JobMachine::arrive(const HostEntry& host, TimePoint now) {
  if (phase_ == Phase::over) return Refused{"the job has ended", true};
  if (is_asked() && !host.returns) return Refused{"the job is being stopped", true};
  if (host.wanted && *host.wanted >= options_.most) {
    return Refused{fmt::format("its node rank {} is out of range: the job has at most {}", *host.wanted,
                               hosts_text(options_.most))};
  }
  for (const HostEntry& other : hosts_) {
    if (host.wanted && other.wanted == host.wanted) {
      // It may have died, which is not noticed at once, and be started again.
      return Refused{fmt::format("node rank {} belongs to host {}, which {}", *host.wanted, other.name,
                                 other.leaves ? "has not left yet" : "has already joined"),
                     true};
    }
  }
  hosts_.push_back(host);
  take_in(now);
  return std::nullopt;
}

void JobMachine::reach(int host, TimePoint now) {
  HostEntry* const known = entry(host);
  if (phase_ != Phase::over && known != nullptr && std::exchange(known->kept_out, false)) take_in(now);
}

void JobMachine::leave(int host, TimePoint now) {
  HostEntry* const known = entry(host);
  if (phase_ == Phase::over || known == nullptr) return;
  known->leaves = true;
  const auto [asked, is_new] = leaves_at_.emplace(host, now);
  if (!is_new && now - asked->second >= kSameRequest) to_kill_.push_back(host);
  const bool is_needed = has_slot(host) || host == kFirstHost;
  if (is_new && is_needed && phase_ == Phase::running) end_because(Reason::leaving, now);
}

void JobMachine::lose(int host, const std::string& why, bool silent, TimePoint now) {
  const HostEntry* const known = find(host);
  if (known == nullptr || phase_ == Phase::over) return;
  if (silent) fence_ = now + kFence;
  const RankEnd* cause = outcome_.lost.empty() ? outcome_.first_failure() : nullptr;
  if (cause != nullptr && cause->failure.fault == Fault::own) failed_first_ = true;
  if (running() && has_slot(host)) {
    const auto slot = std::ranges::find(slots_, host, &Slot::host);
    note_loss({known->name, slot->first_rank, slot->ranks, why}, now);
    std::erase(busy_, host);
    end_because(Reason::loss, now);
  }
  remove(host);
}

void JobMachine::remove(int host) {
  std::erase_if(hosts_, [host](const HostEntry& each) { return each.number == host; });
  leaves_at_.erase(host);
  if (available() < options_.least) enough_since_.reset();
}

void JobMachine::note_loss(const LostHost& lost, TimePoint now) {
  const auto [last, is_first] = last_lost_.emplace(lost.host, now);
  if (!is_first && now - std::exchange(last->second, now) < options_.loss_interval) lost_again_ = lost.host;
  outcome_.lost.push_back(lost);
}

void JobMachine::end_because(Reason reason, std::optional<TimePoint> at) {
  if (reason_ == Reason::none || reason == Reason::loss) reason_ = reason;
  if (!end_at_ || *at < *end_at_) end_at_ = at;
}

void JobMachine::rank_ended(int host, int generation, RankEnd end, TimePoint now) {
  if (!running() || generation != generation_ || std::ranges::find(busy_, host) == busy_.end()) return;
  const auto slot = std::ranges::find(slots_, host, &Slot::host);
  if (end.rank < slot->first_rank || end.rank >= slot->first_rank + slot->ranks) return;
  if (const HostEntry* const known = find(host)) end.host = known->name;
  end.round = ++round_;
  const bool failed = !end.failure.text.empty() && !end.told_to_stop;
  outcome_.ranks.push_back(std::move(end));
  if (!failed || phase_ != Phase::running) return;
  if (!failed_at_) failed_at_ = now;
  end_because(Reason::failure, *failed_at_ + moment_after_failure(outcome_));
}

void JobMachine::host_done(int host, int generation, TimePoint /*now*/) {
  if (generation == generation_) std::erase(busy_, host);
}

void JobMachine::rank_crashed(int host, int generation, int rank, std::vector<std::string> stack) {
  const auto slot = std::ranges::find(slots_, host, &Slot::host);
  if (generation != generation_ || slot == slots_.end()) return;
  if (rank < slot->first_rank || rank >= slot->first_rank + slot->ranks) return;
  const auto end = std::ranges::find(outcome_.ranks, rank, &RankEnd::rank);
  if (end != outcome_.ranks.end()) end->stack = std::move(stack);
}

void JobMachine::hang(std::string verdict, int blamed, TimePoint now) {
  if (!undisturbed()) return;
  outcome_.hang = std::move(verdict);
  outcome_.hang_blamed = blamed;
  end_because(Reason::failure, now);
}

void JobMachine::ask_to_stop(int host, int signal, TimePoint now) {
  if (phase_ == Phase::over) return;
  const bool is_first = !is_asked();
  const auto [asked, is_new] = asks_at_.emplace(host, now);
  if (!is_new && (signal == SIGINT || now - asked->second >= kSameRequest)) insisted_ = true;
  if (!is_first) return;
  outcome_.stop_signal = signal;
  if (phase_ == Phase::running) end_because(Reason::stop, now);
}

Deadline JobMachine::wake_at() const {
  if (phase_ == Phase::over) return Deadline::never();
  if (!to_kill_.empty() || (phase_ == Phase::gathering && !leaves_at_.empty())) return Deadline::after({});
  if (phase_ == Phase::gathering && is_asked()) return Deadline::at(stops_at());
  if (phase_ == Phase::gathering) {
    const auto begins = begins_at();
    return Deadline::at(begins.value_or(waiting_since_ + options_.join_timeout));
  }
  if (phase_ == Phase::running && end_at_) return Deadline::at(*end_at_);
  return Deadline::never();
}

std::vector<JobOrder> JobMachine::take_orders(TimePoint now) {
  std::vector<JobOrder> orders;
  switch (phase_) {
    case Phase::over: return orders;
    case Phase::gathering:
      all_leave_or_dismiss(orders);
      if (phase_ == Phase::over) return orders;
      if (is_asked()) {
        if (now < stops_at()) return orders;
        finish(options_.stop_exit_code, fmt::format("stopped by {}", signal_name(outcome_.stop_signal)), orders);
      } else if (const auto begins = begins_at(); begins && *begins <= now) {
        begin();
        orders.push_back({.kind = JobOrder::Kind::start});
      } else if (!begins && now - waiting_since_ >= options_.join_timeout) {
        finish(kRendezvousExitCode,
               fmt::format("{} of at least {} joined within {:g} s (--rdzv-conf join_timeout=)", available(),
                           hosts_text(options_.least), seconds(options_.join_timeout)),
               orders);
      }
      return orders;
    case Phase::running:
    case Phase::ending: break;
  }
  if (busy_.empty()) {
    conclude(now, orders);
    return orders;
  }
  dismiss_leaving(orders);
  if (phase_ == Phase::running && end_at_ && *end_at_ <= now) {
    phase_ = Phase::ending;
    const bool asks = reason_ == Reason::stop || reason_ == Reason::newcomer || reason_ == Reason::leaving;
    orders.push_back(asks ? JobOrder{JobOrder::Kind::stop, is_asked() ? outcome_.stop_signal : SIGTERM}
                          : JobOrder{.kind = JobOrder::Kind::end});
  } else if (phase_ == Phase::ending && reason_ == Reason::loss && !told_) {
    // The ranks were asked to stop; those that wait for a lost host never get there.
    orders.push_back({.kind = JobOrder::Kind::end});
  }
  told_ = reason_ == Reason::loss;
  if (insisted_ && !std::exchange(kill_told_, true)) orders.push_back({.kind = JobOrder::Kind::kill});
  for (const int host : std::exchange(to_kill_, {})) orders.push_back({.kind = JobOrder::Kind::kill, .host = host});
  return orders;
}

void JobMachine::conclude(TimePoint now, std::vector<JobOrder>& orders) {
  std::ranges::sort(outcome_.ranks, {}, &RankEnd::rank);
  const bool cut_short = std::ranges::any_of(outcome_.ranks, &RankEnd::told_to_stop);
  for (const HostEntry& host : hosts_) {
    if (host.leaves && cut_short && has_slot(host.number)) outcome_.left.push_back(host.name);
  }
  if (!is_asked()) part_separated(now, orders);
  orders.push_back({.kind = JobOrder::Kind::report});
  if (is_asked()) return finish(exit_code_of(outcome_), {}, orders);
  const int code = exit_code_of(outcome_), before = code_before_.value_or(code);
  if (!has_started(outcome_)) return finish(before, {}, orders);
  code_before_ = code;
  const bool by_loss = !outcome_.lost.empty() && !failed_first_;
  if (by_loss ? !goes_on_after_loss(orders) : !goes_on_after_failure(orders)) return;
  const bool asked_to_begin_again = reason_ == Reason::newcomer || reason_ == Reason::leaving;
  if (!outcome_.failed() && !(asked_to_begin_again && cut_short)) return finish(0, {}, orders);
  all_leave_or_dismiss(orders);
  if (phase_ != Phase::over) gather_again(now);
}

bool JobMachine::goes_on_after_failure(std::vector<JobOrder>& orders) {
  if (!outcome_.failed() || take_restart()) return true;
  finish(exit_code_of(outcome_), {}, orders);
  return false;
}

bool JobMachine::take_restart() { return restarts_ < options_.max_restarts && ++restarts_ > 0; }

bool JobMachine::goes_on_after_loss(std::vector<JobOrder>& orders) {
  const bool enough = available() >= options_.least;
  if ((enough && lost_again_.empty()) || take_restart()) return true;
  finish(kRendezvousExitCode,
         enough ? fmt::format("host {} was lost again within {:g} s (--rdzv-conf loss_interval=), and no restart is "
                              "left (--max-restarts)",
                              lost_again_, seconds(options_.loss_interval))
                : fmt::format("the job has {} of at least {}, and no restart is left in which another host could join "
                              "(--max-restarts)",
                              hosts_text(available()), options_.least),
         orders);
  return false;
}

// Without one of two hosts that do not reach each other the job goes on, if enough are left.
void JobMachine::part_separated(TimePoint now, std::vector<JobOrder>& orders) {
  if (!outcome_.lost.empty()) return;
  const auto separation = find_separation(outcome_, slots_);
  HostEntry* const leaver = separation ? entry(separation->leaver) : nullptr;
  const HostEntry* const other = separation ? find(separation->other) : nullptr;
  if (leaver == nullptr || other == nullptr || leaver->leaves || other->leaves) return;
  outcome_.apart = available() > options_.least ? "" : describe_pair(*separation, leaver->name, other->name);
  if (!outcome_.apart.empty()) return;
  leaver->kept_out = true;
  const Slot& slot = *std::ranges::find(slots_, leaver->number, &Slot::host);
  note_loss({leaver->name, slot.first_rank, slot.ranks, describe_leaver(*separation, other->name), true}, now);
  orders.push_back({.kind = JobOrder::Kind::keep_out, .host = leaver->number, .other = other->number});
}

// Others than the first that the attempt does not need, or does not need any more.
void JobMachine::dismiss_leaving(std::vector<JobOrder>& orders) {
  for (const auto& [host, at] : std::map(leaves_at_)) {
    if (host == kFirstHost || (!busy_.empty() && has_slot(host))) continue;
    orders.push_back({.kind = JobOrder::Kind::dismiss, .host = host});
    remove(host);
  }
}

// Those that were asked to leave, and no attempt needs any more. Without the first host the others meet anew.
void JobMachine::all_leave_or_dismiss(std::vector<JobOrder>& orders) {
  const bool all = are_back() && std::ranges::all_of(hosts_, &HostEntry::leaves);
  if (!all) dismiss_leaving(orders);
  if (!leaves_at_.contains(kFirstHost)) return;
  outcome_.stop_signal = SIGTERM;
  if (all) return finish(options_.stop_exit_code, "all hosts were asked to leave the job", orders);
  finish(kLeftExitCode, {}, orders);
  result_.goes_on = true;
}

void JobMachine::abandon(int exit_code, const std::string& why) {
  phase_ = Phase::over;
  result_ = {exit_code, why};
}

void JobMachine::finish(int exit_code, std::string text, std::vector<JobOrder>& orders) {
  phase_ = Phase::over;
  result_ = {exit_code, std::move(text)};
  orders.push_back({.kind = JobOrder::Kind::finish});
}

std::string JobMachine::waits_for() const {
  const int missing = phase_ == Phase::gathering ? options_.least - available() : 0;
  return missing <= 0 ? "" : fmt::format("{} more host{}", missing, missing == 1 ? "" : "s");
}

}  // namespace lockstep::internal
