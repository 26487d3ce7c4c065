#include "lockstep/messages/monitored_barrier.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/format.h"
#include "lockstep/health/peer_failure.h"

namespace lockstep {
namespace {

// Above all tags that programs can give.
constexpr std::uint64_t kTags = std::uint64_t{1} << 32;
// How often rank 0, while it waits, asks the missing for a heartbeat and tells the others who they are: theirs may
// be the deadline that passes first.
constexpr Duration kReportPeriod = std::chrono::milliseconds(200);
// The word of rank 0 is on its way when the timeout passes.
constexpr Duration kGrace = std::chrono::milliseconds(50);
// How long rank 0 stays for its last word to leave, at most.
constexpr Duration kFarewell = std::chrono::seconds(1);

std::uint64_t arrival_tag(std::uint64_t number) { return kTags + 2 * number; }
std::uint64_t word_tag(std::uint64_t number) { return kTags + 2 * number + 1; }

enum class Verdict : std::uint32_t { passed, waiting, timeout, peer_lost };

// What rank 0 tells the others.
struct Word {
  Verdict verdict = Verdict::passed;
  std::int32_t culprit = -1;
  char text[2040] = {};
};

ErrorKind kind_of(Verdict verdict) { return verdict == Verdict::peer_lost ? ErrorKind::peer_lost : ErrorKind::timeout; }

auto milliseconds(Duration timeout) { return std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(); }

// Rank 0's list of who has come. The callbacks of receives share it, since they may outlive the barrier.
struct RollCall {
  enum class Standing : std::uint8_t { awaited, came, lost };

  explicit RollCall(int size) : standings(static_cast<std::size_t>(size), Standing::awaited) {
    standings.front() = Standing::came;
  }
  bool is_complete(bool wait_all_ranks) const {
    if (ended) return true;
    const bool has_lost = std::ranges::find(standings, Standing::lost) != standings.end();
    return std::ranges::find(standings, Standing::awaited) == standings.end() || (has_lost && !wait_all_ranks);
  }

  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  std::vector<Standing> standings;
  std::string why_lost;        // the first that was
  std::optional<Error> ended;  // the group, by somebody's abort()
};

class Warden {
 public:
  Warden(Messenger& messenger, std::uint64_t number, Duration timeout, bool wait_all_ranks)
      : messenger_(messenger),
        number_(number),
        timeout_(timeout),
        wait_all_ranks_(wait_all_ranks),
        roll_(std::make_shared<RollCall>(messenger.size())) {}

  void run() {
    const Deadline deadline = Deadline::after(timeout_);
    for (int rank = 1; rank < messenger_.size(); ++rank) await(rank, deadline);
    for (;;) {
      std::unique_lock lock(roll_->mutex);
      const auto complete = [this] { return roll_->is_complete(wait_all_ranks_); };
      const TimePoint report = std::min(Deadline::after(kReportPeriod), deadline).when();
      const bool is_complete = roll_->changed.wait_until(lock, report, complete);
      const auto standings = roll_->standings;
      const std::string why_lost = roll_->why_lost;
      if (roll_->ended) throw Error(*roll_->ended);
      lock.unlock();
      const bool is_over = is_complete || deadline.expired();
      const Word word = judge(standings, why_lost, is_over);
      tell(standings, word, is_over);
      if (word.verdict == Verdict::passed) return;
      if (is_over) throw Error(kind_of(word.verdict), word.text, detail(word));
      for (int rank = 1; rank < messenger_.size(); ++rank) {
        if (standings[static_cast<std::size_t>(rank)] == RollCall::Standing::awaited) messenger_.ask(rank);
      }
    }
  }

 private:
  void await(int rank, Deadline deadline) {
    const Request arrival = messenger_.receive(rank, arrival_tag(number_), MutableByteSpan(), deadline);
    arrival.on_done([roll = roll_, rank](const std::exception_ptr& error) {
      const std::lock_guard lock(roll->mutex);
      auto& standing = roll->standings[static_cast<std::size_t>(rank)];
      try {
        if (error) std::rethrow_exception(error);
        standing = RollCall::Standing::came;
      } catch (const Error& failure) {
        if (failure.kind() == ErrorKind::timeout) return;
        if (failure.kind() == ErrorKind::aborted) roll->ended = failure;
        standing = RollCall::Standing::lost;
        if (roll->why_lost.empty()) roll->why_lost = failure.what();
      }
      roll->changed.notify_all();
    });
  }

  Word judge(const std::vector<RollCall::Standing>& standings, const std::string& why_lost, bool is_over) const {
    std::vector<int> missing;
    std::string fare;
    for (int rank = 1; rank < messenger_.size(); ++rank) {
      const auto standing = standings[static_cast<std::size_t>(rank)];
      const bool counts = standing == RollCall::Standing::lost ||
                          (standing == RollCall::Standing::awaited && (why_lost.empty() || wait_all_ranks_));
      if (!counts || (!missing.empty() && !wait_all_ranks_)) continue;
      missing.push_back(rank);
      if (standing != RollCall::Standing::awaited) continue;
      fare += "; " + describe_missing(messenger_.peer_name(rank), "did not come", messenger_.health(rank));
    }
    Word word;
    if (missing.empty()) return word;
    word.culprit = missing.front();
    word.verdict = !is_over ? Verdict::waiting : why_lost.empty() ? Verdict::timeout : Verdict::peer_lost;
    if (!why_lost.empty()) fare += "; " + why_lost;
    write(word, fmt::format("[Rank 0]: Rank{} {} failed to pass monitoredBarrier in {} ms{}",
                            missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), milliseconds(timeout_), fare));
    return word;
  }

  static void write(Word& word, const std::string& text) {
    std::memcpy(word.text, text.data(), std::min(text.size(), sizeof word.text - 1));
  }

  // Those that are missing hear the last word when they come. The others hear it even if this rank leaves at once.
  void tell(const std::vector<RollCall::Standing>& standings, const Word& word, bool is_over) {
    const auto copy = std::make_shared<Word>(word);
    std::vector<Request> last_words;
    for (int rank = 1; rank < messenger_.size(); ++rank) {
      if (!is_over && standings[static_cast<std::size_t>(rank)] != RollCall::Standing::came) continue;
      const Request sent =
          messenger_.send(rank, word_tag(number_), std::as_bytes(std::span(copy.get(), 1)), Deadline::never());
      sent.on_done([copy](const std::exception_ptr&) {});  // keeps its bytes until they are sent
      if (is_over && standings[static_cast<std::size_t>(rank)] == RollCall::Standing::came) last_words.push_back(sent);
    }
    const Deadline limit = Deadline::after(kFarewell);
    for (const Request& word_to_one : last_words) {
      try {
        word_to_one.wait(limit);
      } catch (const Error&) {  // it has gone, or stands still
      }
    }
  }

  ErrorDetail detail(const Word& word) const {
    return {.rank = 0,
            .peer = word.culprit,
            .operation = "monitored_barrier",
            .sequence = 0,
            .elapsed_seconds = seconds(timeout_)};
  }

  Messenger& messenger_;
  const std::uint64_t number_;
  const Duration timeout_;
  const bool wait_all_ranks_;
  const std::shared_ptr<RollCall> roll_;
};

void report_to_rank_0(Messenger& messenger, std::uint64_t number, Duration timeout) {
  const Deadline deadline = Deadline::after(timeout);
  const Deadline word_deadline = Deadline::after(timeout < Duration::max() - kGrace ? timeout + kGrace : timeout);
  const ErrorDetail detail{.rank = messenger.rank(),
                           .peer = 0,
                           .operation = "monitored_barrier",
                           .sequence = 0,
                           .elapsed_seconds = seconds(timeout)};
  Word word;
  Word heard;
  word.verdict = Verdict::waiting;
  const Request arrival = messenger.send(0, arrival_tag(number), ByteSpan(), deadline);
  try {
    arrival.wait();
    while (word.verdict == Verdict::waiting) {
      messenger.receive(0, word_tag(number), std::as_writable_bytes(std::span(&heard, 1)), word_deadline).wait();
      word = heard;
      const Origin origin("word about a barrier", 0);
      const auto verdict = static_cast<std::uint32_t>(heard.verdict);
      word.verdict = checked_enum(verdict, Verdict::passed, Verdict::peer_lost, "verdict", origin);
      word.culprit = checked_rank_or_none(heard.culprit, messenger.size(), origin);
      word.text[sizeof word.text - 1] = '\0';
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) throw;
  }
  if (word.verdict == Verdict::passed) return;
  const std::string me = fmt::format("[Rank {}]: ", messenger.rank());
  if (word.text[0] != '\0') {
    ErrorDetail culprit = detail;
    culprit.peer = word.culprit;
    throw Error(kind_of(word.verdict),
                fmt::format("{}Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
                            "send/recv from rank 0: {}",
                            me, messenger.rank(), word.text),
                culprit);
  }
  throw Error(ErrorKind::timeout,
              fmt::format("{}Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
                          "send/recv from rank 0: {} did not come in {} ms",
                          me, messenger.rank(), messenger.peer_name(0), milliseconds(timeout)),
              detail);
}

}  // namespace

void monitored_barrier(Messenger& messenger, std::uint64_t number, Duration timeout, bool wait_all_ranks) {
  if (messenger.rank() != 0) return report_to_rank_0(messenger, number, timeout);
  if (timeout <= Duration::zero()) {
    throw Error(ErrorKind::timeout,
                fmt::format("[Rank 0]: Rank 0 timed out in monitoredBarrier after {} ms", milliseconds(timeout)),
                {.rank = 0});
  }
  Warden(messenger, number, timeout, wait_all_ranks).run();
}

}  // namespace lockstep
