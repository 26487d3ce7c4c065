#include "lockstep/comm/messages/monitored_barrier.h"

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
#include "lockstep/comm/health/peer_failure.h"

namespace lockstep::internal {
namespace {

// Above all tags that programs can give.
constexpr std::uint64_t kTags = std::uint64_t{1} << 32;
// How often rank 0, while it waits, asks the missing for a heartbeat and tells the others who they are: theirs may
// be the deadline that passes first.
constexpr Duration kReportPeriod = std::chrono::milliseconds(200);
// The status from rank 0 is on its way when the timeout passes.
constexpr Duration kGrace = std::chrono::milliseconds(50);
// How long rank 0 stays for its last status to leave, at most.
constexpr Duration kFarewell = std::chrono::seconds(1);

std::uint64_t arrival_tag(std::uint64_t number) { return kTags + 2 * number; }
std::uint64_t status_tag(std::uint64_t number) { return kTags + 2 * number + 1; }

enum class Outcome : std::uint32_t { passed, waiting, timeout, peer_lost };

// What rank 0 sends to the others.
struct Status {
  Outcome outcome = Outcome::passed;
  std::int32_t missing = -1;
  char text[2040] = {};
};

ErrorKind kind_of(Outcome outcome) { return outcome == Outcome::peer_lost ? ErrorKind::peer_lost : ErrorKind::timeout; }

auto milliseconds(Duration timeout) { return std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(); }

// Rank 0's list of who has come. The callbacks of receives share it, since they may outlive the barrier.
struct ArrivalList {
  enum class Arrival : std::uint8_t { awaited, came, lost };

  explicit ArrivalList(int size) : arrivals(static_cast<std::size_t>(size), Arrival::awaited) {
    arrivals.front() = Arrival::came;
  }
  bool is_complete(bool wait_all_ranks) const {
    if (ended) return true;
    const bool has_lost = std::ranges::find(arrivals, Arrival::lost) != arrivals.end();
    return std::ranges::find(arrivals, Arrival::awaited) == arrivals.end() || (has_lost && !wait_all_ranks);
  }

  std::mutex mutex;
  std::condition_variable changed;
  // State below is protected by mutex.
  std::vector<Arrival> arrivals;
  std::string why_lost;        // the first that was
  std::optional<Error> ended;  // the group, by somebody's abort()
};

class BarrierCoordinator {
 public:
  BarrierCoordinator(Messenger& messenger, std::uint64_t number, Duration timeout, bool wait_all_ranks)
      : messenger_(messenger),
        number_(number),
        timeout_(timeout),
        wait_all_ranks_(wait_all_ranks),
        list_(std::make_shared<ArrivalList>(messenger.size())) {}

  void run() {
    const Deadline deadline = Deadline::after(timeout_);
    for (int rank = 1; rank < messenger_.size(); ++rank) await(rank, deadline);
    for (;;) {
      std::unique_lock lock(list_->mutex);
      const auto complete = [this] { return list_->is_complete(wait_all_ranks_); };
      const TimePoint report = std::min(Deadline::after(kReportPeriod), deadline).when();
      const bool is_complete = list_->changed.wait_until(lock, report, complete);
      const auto arrivals = list_->arrivals;
      const std::string why_lost = list_->why_lost;
      if (list_->ended) throw Error(*list_->ended);
      lock.unlock();
      const bool is_over = is_complete || deadline.expired();
      const Status status = status_of(arrivals, why_lost, is_over);
      send_status(arrivals, status, is_over);
      if (status.outcome == Outcome::passed) return;
      if (is_over) throw Error(kind_of(status.outcome), status.text, detail(status));
      for (int rank = 1; rank < messenger_.size(); ++rank) {
        if (arrivals[static_cast<std::size_t>(rank)] == ArrivalList::Arrival::awaited) messenger_.ask(rank);
      }
    }
  }

 private:
  void await(int rank, Deadline deadline) {
    const Request message = messenger_.receive(rank, arrival_tag(number_), MutableByteSpan(), deadline);
    message.on_done([list = list_, rank](const std::exception_ptr& error) {
      const std::lock_guard lock(list->mutex);
      auto& arrival = list->arrivals[static_cast<std::size_t>(rank)];
      try {
        if (error) std::rethrow_exception(error);
        arrival = ArrivalList::Arrival::came;
      } catch (const Error& failure) {
        if (failure.kind() == ErrorKind::timeout) return;
        if (failure.kind() == ErrorKind::aborted) list->ended = failure;
        arrival = ArrivalList::Arrival::lost;
        if (list->why_lost.empty()) list->why_lost = failure.what();
      }
      list->changed.notify_all();
    });
  }

  Status status_of(const std::vector<ArrivalList::Arrival>& arrivals, const std::string& why_lost, bool is_over) const {
    std::vector<int> missing;
    std::string fare;
    for (int rank = 1; rank < messenger_.size(); ++rank) {
      const auto arrival = arrivals[static_cast<std::size_t>(rank)];
      const bool counts = arrival == ArrivalList::Arrival::lost ||
                          (arrival == ArrivalList::Arrival::awaited && (why_lost.empty() || wait_all_ranks_));
      if (!counts || (!missing.empty() && !wait_all_ranks_)) continue;
      missing.push_back(rank);
      if (arrival != ArrivalList::Arrival::awaited) continue;
      fare += "; " + describe_missing(messenger_.peer_name(rank), "did not arrive", messenger_.health(rank));
    }
    Status status;
    if (missing.empty()) return status;
    status.missing = missing.front();
    status.outcome = !is_over ? Outcome::waiting : why_lost.empty() ? Outcome::timeout : Outcome::peer_lost;
    if (!why_lost.empty()) fare += "; " + why_lost;
    write(status, fmt::format("[Rank 0]: Rank{} {} failed to pass monitoredBarrier in {} ms{}",
                              missing.size() == 1 ? "" : "s", fmt::join(missing, ", "), milliseconds(timeout_), fare));
    return status;
  }

  static void write(Status& status, const std::string& text) {
    std::memcpy(status.text, text.data(), std::min(text.size(), sizeof status.text - 1));
  }

  // Those that are missing get the last status when they come. The others get it even if this rank leaves at once.
  void send_status(const std::vector<ArrivalList::Arrival>& arrivals, const Status& status, bool is_over) {
    const auto copy = std::make_shared<Status>(status);
    std::vector<Request> last_ones;
    for (int rank = 1; rank < messenger_.size(); ++rank) {
      if (!is_over && arrivals[static_cast<std::size_t>(rank)] != ArrivalList::Arrival::came) continue;
      const Request sent =
          messenger_.send(rank, status_tag(number_), std::as_bytes(std::span(copy.get(), 1)), Deadline::never());
      sent.on_done([copy](const std::exception_ptr&) {});  // keeps its bytes until they are sent
      if (is_over && arrivals[static_cast<std::size_t>(rank)] == ArrivalList::Arrival::came) last_ones.push_back(sent);
    }
    const Deadline limit = Deadline::after(kFarewell);
    for (const Request& each : last_ones) {
      try {
        each.wait(limit);
      } catch (const Error&) {  // it has gone, or stands still
      }
    }
  }

  ErrorDetail detail(const Status& status) const {
    return {.rank = 0,
            .peer = status.missing,
            .operation = "monitored_barrier",
            .sequence = 0,
            .elapsed_seconds = seconds(timeout_)};
  }

  Messenger& messenger_;
  const std::uint64_t number_;
  const Duration timeout_;
  const bool wait_all_ranks_;
  const std::shared_ptr<ArrivalList> list_;
};

void report_to_rank_0(Messenger& messenger, std::uint64_t number, Duration timeout) {
  const Deadline deadline = Deadline::after(timeout);
  const Deadline last_status = Deadline::after(timeout < Duration::max() - kGrace ? timeout + kGrace : timeout);
  const ErrorDetail detail{.rank = messenger.rank(),
                           .peer = 0,
                           .operation = "monitored_barrier",
                           .sequence = 0,
                           .elapsed_seconds = seconds(timeout)};
  Status status;
  Status heard;
  status.outcome = Outcome::waiting;
  const Request arrival = messenger.send(0, arrival_tag(number), ByteSpan(), deadline);
  try {
    arrival.wait();
    while (status.outcome == Outcome::waiting) {
      messenger.receive(0, status_tag(number), std::as_writable_bytes(std::span(&heard, 1)), last_status).wait();
      status = heard;
      const Origin origin("status of a barrier", 0);
      const auto outcome = static_cast<std::uint32_t>(heard.outcome);
      status.outcome = checked_enum(outcome, Outcome::passed, Outcome::peer_lost, "outcome", origin);
      status.missing = checked_rank_or_none(heard.missing, messenger.size(), origin);
      status.text[sizeof status.text - 1] = '\0';
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timeout) throw;
  }
  if (status.outcome == Outcome::passed) return;
  const std::string me = fmt::format("[Rank {}]: ", messenger.rank());
  if (status.text[0] != '\0') {
    ErrorDetail missing = detail;
    missing.peer = status.missing;
    throw Error(kind_of(status.outcome),
                fmt::format("{}Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
                            "send/recv from rank 0: {}",
                            me, messenger.rank(), status.text),
                missing);
  }
  throw Error(ErrorKind::timeout,
              fmt::format("{}Rank {} successfully reached monitoredBarrier, but received errors while waiting for "
                          "send/recv from rank 0: {} did not arrive in {} ms",
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
  BarrierCoordinator(messenger, number, timeout, wait_all_ranks).run();
}

}  // namespace lockstep::internal
