#include "lockstep/job/launch/outcome.h"

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <tuple>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostReasonBytes = 1000;  // it goes into an environment

std::ptrdiff_t accusers(const Outcome& outcome, const RankEnd& end) {
  return std::ranges::count_if(outcome.ranks, [&](const RankEnd& other) {
    return other.rank != end.rank && !other.failure.text.empty() && other.failure.blamed == end.rank;
  });
}

auto order_of_blame(const Outcome& outcome, const RankEnd& end) {
  return std::make_tuple(end.failure.fault, end.told_to_stop, accusers(outcome, end) == 0, !was_struck(end.status),
                         end.round, end.rank);
}

// A save fails on all ranks together, so equal exit codes are no sign of an orderly end.
bool failed_after_request(const Outcome& outcome, const RankEnd& end) {
  // Ranks leave at different times, so some may lose the others.
  if (end.failure.fault != Fault::own || end.status.signal == SIGPIPE) return false;
  const int code = end.status.shell_code();
  return code != 0 && code != outcome.stop_exit_code && code != 128 + SIGTERM && code != 128 + SIGINT &&
         code != 128 + outcome.stop_signal;
}

// Ranks that make room for others begin again whatever they end with.
bool is_to_save(const Outcome& outcome) { return outcome.stop_signal != 0 || !outcome.left.empty(); }

bool is_candidate(const Outcome& outcome, const RankEnd& end) {
  if (end.failure.text.empty()) return false;
  if (!end.told_to_stop) return true;
  switch (end.own_end) {
    case OwnEnd::no: return false;
    case OwnEnd::after_request: return is_to_save(outcome) && failed_after_request(outcome, end);
    case OwnEnd::after_failure:
      return std::ranges::any_of(outcome.ranks, [&](const RankEnd& other) {
        return !other.told_to_stop && !other.failure.text.empty() && other.failure.blamed == end.rank;
      });
  }
  return false;
}

// What became of the others: "; rank 3 failed because of it; ranks 0, 2 were stopped because of it"
std::string consequences(const Outcome& outcome, const RankEnd& first) {
  std::vector<int> failed;
  std::vector<int> stopped;
  for (const RankEnd& end : outcome.ranks) {
    if (end.rank == first.rank || end.pid == kNotStarted) continue;
    if (end.told_to_stop && first.own_end == OwnEnd::after_request) continue;
    if (end.told_to_stop) {
      stopped.push_back(end.rank);
    } else if (!end.failure.text.empty() && end.failure.fault == Fault::consequence) {
      failed.push_back(end.rank);
    }
  }
  std::string text;
  if (!failed.empty()) text += fmt::format("; {} failed because of it", ranks_text(failed));
  if (!stopped.empty()) {
    text += fmt::format("; {} {} stopped because of it", ranks_text(stopped), stopped.size() == 1 ? "was" : "were");
  }
  return text;
}

std::string lateness(const RankEnd& end) {
  constexpr std::int64_t kLeastTold = 1'000'000;
  if (end.failure.lateness_ns.value_or(0) < kLeastTold) return "";
  return fmt::format("; it began {:.2g} s after the first rank{}", seconds(Duration(*end.failure.lateness_ns)),
                     end.host.empty() ? "" : " of its host");
}

// Where the first failure names a rank that did not fail: that rank is what the reader looks for.
void tell_of_blamed(const Outcome& outcome, const RankEnd& first, std::vector<std::string>& lines) {
  for (const RankEnd& end : outcome.ranks) {
    if (end.rank != first.failure.blamed || end.rank == first.rank) continue;
    if (end.told_to_stop) {
      lines.push_back(fmt::format("rank {}, which this error names, was still running", end.rank));
    } else if (end.failure.text.empty()) {
      const char* const early =
          end.status.ok() ? "; other ranks were still training: did it call exit(), or return from main() too early?"
                          : "";
      lines.push_back(fmt::format("rank {}, which this error names, had {}, {:.2f} s after it started{}", end.rank,
                                  describe(end.status), seconds(end.after_start), early));
    }
  }
}

// Half of the time it runs: such ranks are slower by the limit, and that is not to be seen elsewhere.
void tell_of_throttled(const Outcome& outcome, std::vector<std::string>& lines) {
  constexpr std::int64_t kLeastPeriods = 10;
  const auto share = [](const RankEnd& end) {
    const LimitUse use = end.failure.limits.value_or(LimitUse{});
    return use.periods < kLeastPeriods ? 0 : static_cast<double>(use.throttled) / static_cast<double>(use.periods);
  };
  std::vector<int> ranks;
  const RankEnd* most = nullptr;
  for (const RankEnd& end : outcome.ranks) {
    if (share(end) < 0.5) continue;
    ranks.push_back(end.rank);
    if (most == nullptr || share(end) > share(*most)) most = &end;
  }
  if (most == nullptr) return;
  lines.push_back(
      fmt::format("{} reached the limit of {:g} CPUs (--cpus-per-rank): rank {} was throttled in {:.0f} % of the "
                  "periods of 0.1 s in which it ran",
                  ranks_text(ranks), most->failure.limits->limits.cpus, most->rank, 100 * share(*most)));
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return fmt::format("exited with code {}", status.code);
  return fmt::format("was killed by {}{}", signal_name(status.signal), status.core_dumped ? " (core dumped)" : "");
}

std::string describe(const LostHost& lost) {
  const std::string which = lost.ranks == 1
                                ? fmt::format("rank {}", lost.first_rank)
                                : fmt::format("ranks {} to {}", lost.first_rank, lost.first_rank + lost.ranks - 1);
  return fmt::format("host {} ({}) is lost: {}", lost.host, which, lost.why);
}

const RankEnd* Outcome::first_failure() const {
  const RankEnd* first = nullptr;
  for (const RankEnd& end : ranks) {
    if (!is_candidate(*this, end)) continue;
    if (first == nullptr || order_of_blame(*this, end) < order_of_blame(*this, *first)) first = &end;
  }
  return first;
}

const RankEnd* Outcome::cause() const {
  if (const RankEnd* first = first_failure()) return first;
  const auto blamed = std::ranges::find(ranks, hang_blamed, &RankEnd::rank);
  return hang.empty() || blamed == ranks.end() ? nullptr : &*blamed;
}

int exit_code_of(const Outcome& outcome) {
  if (!outcome.hang.empty()) return kHangExitCode;
  if (const RankEnd* first = outcome.first_failure()) return first->status.shell_code();
  const bool cut_short = std::ranges::any_of(outcome.ranks, &RankEnd::told_to_stop);
  return outcome.stop_signal != 0 && cut_short ? outcome.stop_exit_code : 0;
}

// std::terminate() aborts, and so does a program that found an error; a broken pipe is another's end.
bool was_struck(const ExitStatus& status) {
  return status.signal != 0 && status.signal != SIGABRT && status.signal != SIGPIPE;
}

std::string failure_text(const RankEnd& end) {
  return end.killed ? describe(end.status) + " (by the launcher)" : end.failure.text;
}

const std::string& error_of(const RankEnd& end) {
  return end.status.shell_code() == 128 + SIGKILL ? end.failure.error : end.error;
}

std::string describe_failure(const RankEnd& end) {
  std::string where = end.host.empty() ? "" : fmt::format("host {}", end.host);
  if (end.pid != kNotStarted) where += fmt::format("{}pid {}", where.empty() ? "" : ", ", end.pid);
  return fmt::format("rank {}{} {}", end.rank, where.empty() ? "" : fmt::format(" ({})", where), failure_text(end));
}

std::string restart_reason(const Outcome& outcome) {
  const RankEnd* first = outcome.first_failure();
  std::string text =
      outcome.left.empty() ? "other hosts have joined" : fmt::format("host {} has left", outcome.left[0]);
  if (first != nullptr && (outcome.lost.empty() || first->failure.fault == Fault::own)) {
    text = describe_failure(*first);
    if (!error_of(*first).empty()) text += fmt::format(": {}", error_of(*first));
  } else if (!outcome.lost.empty()) {
    text = describe(outcome.lost.front());
  } else if (!outcome.hang.empty()) {
    text = fmt::format("the job hung: {}", outcome.hang);
  }
  if (text.size() > kMostReasonBytes) {
    std::size_t end = kMostReasonBytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // within a character of UTF-8
    text.resize(end);
  }
  std::ranges::replace_if(
      text, [](unsigned char letter) { return letter < ' ' || letter == 0x7F; }, ' ');
  return text;
}

std::string ranks_text(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    while (end < ranks.size() && ranks[end] - ranks[begin] == static_cast<int>(end - begin)) ++end;
    if (end - begin < 3) end = begin + 1;
    text += fmt::format("{} {}", begin == 0 ? "" : ",", ranks[begin]);
    if (end - begin > 1) text += fmt::format(" to {}", ranks[end - 1]);
  }
  return text;
}

std::vector<std::string> report(const Outcome& outcome) {
  std::vector<std::string> lines;
  if (const RankEnd* first = outcome.first_failure()) {
    const std::string when =
        first->pid == kNotStarted ? "" : fmt::format(", {:.2f} s after it started", seconds(first->after_start));
    lines.push_back(describe_failure(*first) + when + consequences(outcome, *first));
    tell_of_blamed(outcome, *first, lines);
    for (const RankEnd& end : outcome.ranks) {
      if (!end.was_suspended) continue;
      lines.push_back(
          fmt::format("rank {} (pid {}) was suspended at that time, by SIGSTOP or the like", end.rank, end.pid));
    }
    if (!first->last_operation.empty())
      lines.push_back(fmt::format("its last operation: {}{}", first->last_operation, lateness(*first)));
    if (!error_of(*first).empty()) lines.push_back(fmt::format("its error: {}", error_of(*first)));
    lines.insert(lines.end(), first->stack.begin(), first->stack.end());
    if (!first->last_error_lines.empty()) {
      lines.push_back(fmt::format("the last lines of rank {} on standard error:", first->rank));
      for (const std::string& line : first->last_error_lines) lines.push_back(fmt::format("  | {}", line));
    }
  }
  if (!outcome.apart.empty()) lines.push_back(outcome.apart);
  if (!outcome.hang.empty()) lines.push_back(fmt::format("the job hung and was ended: {}", outcome.hang));
  if (outcome.stop_signal != 0) lines.push_back(fmt::format("stopped by {}", signal_name(outcome.stop_signal)));
  for (const RankEnd& end : outcome.ranks) {
    if (end.killed) {
      lines.push_back(fmt::format("rank {} (pid {}) did not stop in time and was killed", end.rank, end.pid));
    }
  }
  tell_of_throttled(outcome, lines);
  return lines;
}

}  // namespace lockstep::internal
