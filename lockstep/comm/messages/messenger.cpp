#include "lockstep/comm/messages/messenger.h"

#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/comm/messages/progress_engine.h"

namespace lockstep::internal {
namespace {

constexpr const char* kDestroyed = "the messenger was destroyed before the transfer completed";

Error abort_error(const Mesh& mesh, std::string_view reason) {
  return Error(ErrorKind::aborted, fmt::format("rank {} ended the group: {}", mesh.rank(), reason),
               {.rank = mesh.rank(), .peer = mesh.rank()});
}

}  // namespace

void abort_messages(Mesh& mesh, std::string_view reason) noexcept {
  try {
    mesh.abort(abort_error(mesh, reason));
  } catch (const std::exception&) {  // no memory for the text: the group still ends, by this process's death
  }
}

Messenger::Messenger(std::unique_ptr<Mesh> mesh, FlightLog log, Duration first_report)
    : mesh_(std::move(mesh)), heartbeat_(mesh_->size(), std::move(log)), first_report_(first_report) {
  const SignalBlock block = SignalBlock::of_new_thread();
  thread_ = std::thread([this] { run(); });
}

Messenger::~Messenger() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  wake();
  thread_.join();
}

Request Messenger::send(int peer, std::uint64_t tag, ByteSpan data, Deadline deadline) {
  return send(peer, tag, std::vector<ByteSpan>{data}, deadline);
}

Request Messenger::send(int peer, std::uint64_t tag, const std::vector<ByteSpan>& pieces, Deadline deadline) {
  std::vector<MutableByteSpan> memory;
  memory.reserve(pieces.size());
  for (const ByteSpan piece : pieces) memory.emplace_back(const_cast<std::byte*>(piece.data()), piece.size());
  return post({Direction::send, peer, tag, 0}, std::move(memory), deadline);
}

Request Messenger::receive(int peer, std::uint64_t tag, MutableByteSpan data, Deadline deadline) {
  return receive(peer, tag, std::vector<MutableByteSpan>{data}, deadline);
}

Request Messenger::receive(int peer, std::uint64_t tag, std::vector<MutableByteSpan> pieces, Deadline deadline) {
  return post({Direction::receive, peer, tag, 0}, std::move(pieces), deadline);
}

Request Messenger::post(const Envelope& envelope, std::vector<MutableByteSpan> memory, Deadline deadline) {
  fork_guard_.check("a group");
  const bool sends = envelope.direction == Direction::send;
  const auto operation = std::make_shared<Operation>();
  operation->envelope = envelope;
  for (const MutableByteSpan piece : memory) operation->envelope.bytes += piece.size();
  if (envelope.peer >= size() || envelope.peer < (sends ? 0 : kAnySource)) {
    throw Error(
        ErrorKind::invalid_argument,
        fmt::format("{}: there is no such rank in this group of {} ranks", describe(operation->envelope), size()),
        {.rank = rank(), .peer = envelope.peer});
  }
  operation->memory = std::move(memory);
  operation->deadline = deadline;
  operation->start = steady_clock().now();
  operation->reports = WaitReports(first_report_);
  operation->state = std::make_shared<RequestState>(operation->envelope);
  const Request transfer(operation->state);
  bool is_first = false;
  bool is_late = false;
  {
    const std::lock_guard lock(mutex_);
    is_late = is_ending_;  // a callback on what ends with the messenger
    is_first = inbox_.empty();
    if (!is_late) inbox_.push_back(operation);
  }
  if (is_late) {
    auto error = std::make_exception_ptr(Error(ErrorKind::aborted,
                                               fmt::format("{} failed: {}", describe(operation->envelope), kDestroyed),
                                               {.rank = rank(), .peer = envelope.peer}));
    operation->state->complete(-1, std::move(error));
  } else if (is_first) {
    wake();  // the thread looks into the inbox before it sleeps
  }
  return transfer;
}

void Messenger::ask(int rank) noexcept {
  if (rank < 0 || rank >= size() || rank == this->rank()) return;
  try {
    if (!heartbeat_.ask(rank)) return;
    const std::lock_guard lock(mutex_);
    asked_.push_back(rank);
  } catch (const std::exception&) {  // no memory: the rank will seem silent
  }
  wake();
}

PeerHealth Messenger::health(int rank) const { return health_of(*mesh_, heartbeat_, rank); }

void Messenger::abort(std::string_view reason) noexcept {
  try {
    const Error error = abort_error(*mesh_, reason);
    mesh_->abort(error);
    const std::lock_guard lock(mutex_);
    if (!abort_) abort_ = error;
  } catch (const std::exception&) {  // no memory for the text: the group still ends, by this process's death
  }
  wake();
}

void Messenger::wake() noexcept {
  posted_.notify_one();
  mesh_->wake();
}

void Messenger::run() {
  ProgressEngine engine(*mesh_, heartbeat_);
  for (;;) {
    std::vector<OperationPtr> posted;
    std::vector<int> asked;
    std::optional<Error> aborted;
    bool is_ending = false;
    {
      const std::lock_guard lock(mutex_);
      posted.swap(inbox_);
      asked.swap(asked_);
      aborted = abort_;
      is_ending = is_ending_;
    }
    if (aborted) engine.fail_all(*aborted);
    try {
      for (const OperationPtr& each : posted) engine.post(each);
      for (const int rank : asked) engine.ask(rank);
      if (is_ending) {
        return engine.close(Error(ErrorKind::aborted, kDestroyed));
      }
      if (engine.progress()) continue;
      if (engine.has_peers()) {
        engine.wait();
        continue;
      }
    } catch (const std::exception& error) {  // no memory, or the system failed
      engine.fail_all(Error(ErrorKind::internal, error.what()));
      continue;
    }
    std::unique_lock lock(mutex_);
    const auto called = [&] { return !inbox_.empty() || !asked_.empty() || is_ending_ || (abort_ && !aborted); };
    const Deadline deadline = engine.next_deadline();
    if (deadline.is_never()) {
      posted_.wait(lock, called);
    } else {
      posted_.wait_until(lock, deadline.when(), called);
    }
  }
}

}  // namespace lockstep::internal
