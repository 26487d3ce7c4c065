#include "lockstep/comm/group/device_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/base/signal_block.h"
#include "lockstep/base/wait_until.h"
#include "lockstep/comm/collective/signature.h"
#include "lockstep/comm/group/device_streams.h"
#include "lockstep/comm/group/device_tree.h"
#include "lockstep/comm/group/one_piece.h"
#include "lockstep/comm/group/tensor_segments.h"
#include "lockstep/comm/group/work_control.h"

namespace lockstep::internal {
namespace {

// Between two looks at what is under way, at first and at most.
constexpr Duration kFirstPause = std::chrono::microseconds(100);
constexpr Duration kLongestPause = std::chrono::milliseconds(2);
// The host is not further ahead of the device: it waits then.
constexpr std::size_t kMostUnderWay = 4096;
// The movers of a signature are the engine, then two for each line: see Line::mover().
constexpr std::size_t kMostLines = 127;
// What takes longer than this, once all ranks have come, may wait for one that has died.
constexpr Duration kPeerLook = std::chrono::milliseconds(100);

}  // namespace

// A call that is under way.
class DeviceCalls::Watched final : public Call::Comparison, public WorkControl::OnDevice {
 public:
  Watched(DeviceCalls& calls, Deadline deadline) : calls_(calls), deadline_(deadline) {}

  void agreed() override {
    agreed_at_ = steady_clock().now();
    has_agreed_.store(true, std::memory_order_release);
  }
  void failed(const std::exception_ptr& error) noexcept override {
    try {
      std::rethrow_exception(error);
    } catch (const Error& failure) {
      calls_.fail(failure);
    } catch (const std::exception& failure) {
      calls_.fail(Error(ErrorKind::internal, failure.what()));
    }
  }

  void join() override { done_.wait_on_streams(); }
  bool is_done() override {
    return is_queued_.load(std::memory_order_acquire) && has_agreed_.load(std::memory_order_acquire) &&
           done_.are_reached();
  }

 private:
  friend DeviceCalls;

  DeviceCalls& calls_;
  // Of its flight record, which the engine begins.
  FlightTicket ticket() const {
    FlightTicket ticket = ticket_;
    ticket.step = has_agreed_.load(std::memory_order_acquire) ? 1 : 0;
    return ticket;
  }

  const Deadline deadline_;
  const TimePoint begun_ = steady_clock().now();
  // Set before anybody else has it.
  Work work_;
  FlightTicket ticket_;
  std::shared_ptr<Communicator> communicator_;
  TimePoint agreed_at_;  // before has_agreed_
  std::atomic<bool> has_agreed_{false};
  StreamMarks done_;  // before is_queued_
  std::atomic<bool> is_queued_{false};
  TimePoint next_peer_look_;  // the watcher's
};

DeviceCalls::DeviceCalls(Engine& engine, CallQueue& calls, const FlightLog& log, Policy policy)
    : engine_(engine), calls_(calls), log_(log), policy_(policy) {}

DeviceCalls::~DeviceCalls() = default;

DeviceCalls::Communicators DeviceCalls::finish() noexcept {
  try {
    if (std::uncaught_exceptions() == 0) wait(Deadline::never());
  } catch (const Error&) {  // it has been logged
  }
  if (std::unique_lock lock(mutex_); !watched_.empty()) {
    lock.unlock();
    fail(Error(ErrorKind::aborted, "the group was destroyed with collectives in flight"));
  }
  if (watcher_.joinable()) {
    watcher_.request_stop();
    watcher_.join();
  }
  lines_.clear();
  return std::move(communicators_);
}

const CommunicatorLibrary* DeviceCalls::library_for(const DeviceRequest& request, at::Device device) const {
  const CommunicatorLibrary* const library = communicators_for(device.type());
  if (library == nullptr) return nullptr;
  const at::Tensor& first = request.outputs.empty() ? request.inputs.front() : request.outputs.front();
  const DType dtype = known_dtype(first.scalar_type()).value_or(DType::opaque);
  const bool is_tree = traits_of(request.kind).reduces && request.order == Order::tree;
  const bool can = is_tree ? has_device_tree(*library, request.kind, request.reduce, dtype, engine_.size())
                           : library->supports(request.kind, request.reduce, dtype);
  return can ? library : nullptr;
}

DeviceCalls::Line& DeviceCalls::line_of(at::Device device) {
  const auto found = std::ranges::find(lines_, device, &Line::device);
  if (found != lines_.end()) return *found;
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  const auto number = static_cast<std::uint8_t>(std::min<std::size_t>(lines_.size(), kMostLines - 1));
  return lines_.emplace_back(Line{.device = device, .stream = stream, .number = number});
}

std::optional<Work> DeviceCalls::start(const DeviceRequest& request) {
  if (policy_ == Policy::never) return std::nullopt;
  const std::optional<at::Device> device = device_of(request.outputs, request.inputs);
  if (!device || library_for(request, *device) == nullptr) return std::nullopt;
  fork_guard_.check("a group");
  const std::lock_guard order(order_mutex_);
  throw_if_failed();
  Line& line = line_of(*device);
  if (line.has_met && line.communicator == nullptr && engine_.size() > 1) return std::nullopt;
  CallQueue::Lease lease(calls_);
  Call& call = lease.call();
  const auto watched = std::make_shared<Watched>(*this, request.deadline);
  const Work work = watched->work_ = WorkControl::start(calls_.is_told());
  StreamMarks before;
  before.add(*device);
  {
    const c10::StreamGuard guard(line.stream);
    before.wait_on_streams();
    noting_refusals(engine_, [&] { set(call, request, line); });
    if (!line.has_met) {
      if (engine_.size() > 1) meet(line, call.collective(), request.deadline);
      line.has_met = true;
      if (engine_.size() > 1 && line.communicator == nullptr) return std::nullopt;
    }
    watched->communicator_ = line.communicator;
    // It is compared first: a library may wait for the other ranks until the call is queued, and has to be aborted then
    // if they make other calls, or none.
    or_fail(request.kind, [&] {
      compare(watched, call, request.deadline);
      queue(line, call);
      watched->done_.add(*device);
      watched->is_queued_.store(true, std::memory_order_release);
    });
  }
  WorkControl::attach(work, watched);
  return work;
}

void DeviceCalls::compare(const std::shared_ptr<Watched>& watched, Call& call, Deadline deadline) {
  Collective& collective = call.collective();
  watched->ticket_ = collective.ticket = log_.issue(record_of(signature_of(collective, 0, 0)));
  watch_over(watched, deadline);
  CallQueue::Lease lease(calls_);
  lease.call().compare_for(watched, call);
  calls_.start(lease);
}

void DeviceCalls::set(Call& call, const DeviceRequest& request, const Line& line) const {
  call.set(request.kind, request.outputs, request.inputs,
           {.rank = engine_.rank(), .root = request.root, .memory = Memory::device});
  Collective& collective = call.collective();
  collective.reduce = request.reduce;
  collective.order = request.order;
  collective.name = request.name;
  collective.number = request.number;
  collective.line = request.line;
  collective.mover = line.mover(/*is_new=*/false);
  call.set_deadline(request.deadline);
  call.check(engine_.rank(), engine_.size());
}

void DeviceCalls::watch_over(const std::shared_ptr<Watched>& watched, Deadline deadline) {
  std::unique_lock lock(mutex_);
  wait_until(changed_, lock, deadline, [this] { return watched_.size() < kMostUnderWay || failure_; });
  if (failure_) throw Error(*failure_);
  if (!watcher_.joinable()) {
    const SignalBlock block = SignalBlock::of_new_thread();
    watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }
  watched_.push_back(watched);
  changed_.notify_all();
}

// On the current stream.
void DeviceCalls::queue(Line& line, Call& call) {
  const OpTraits& op = traits_of(call.collective().kind);
  const at::AutoDispatchBelowADInplaceOrView below;  // any tensor may be read, whoever computes with it
  const OnePiece input(call.input().segments(), line.device, true);
  const OnePiece output(call.output().segments(), line.device, op.is_in_place());
  if (line.communicator != nullptr) {
    const CarrierCall queued = call.for_communicator(input.data(), output.data());
    const bool is_tree = op.reduces && call.collective().order == Order::tree;
    is_tree ? all_reduce_in_tree(*line.communicator, queued, engine_.size(), line.stream)
            : line.communicator->enqueue(queued, line.stream);
  } else if (!op.is_in_place()) {
    output.copy_from(input);  // in a group of one rank, what it sends is what it gets
  }
  output.copy_back();
  call.finish_on_streams();
}

void DeviceCalls::wait(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const bool is_over = wait_until(changed_, lock, deadline, [this] { return watched_.empty() || failure_; });
  lock.unlock();
  if (!is_over) fail(Error(ErrorKind::timeout, "collectives on a device are still under way at the deadline"));
  throw_if_failed();
}

void DeviceCalls::throw_if_failed() {
  const std::lock_guard lock(mutex_);
  if (!failure_) return;
  *calls_.is_told() = true;
  throw Error(*failure_);
}

void DeviceCalls::wait_untold() {
  if (!*calls_.is_told()) wait(Deadline::never());  // each has a deadline
}

void DeviceCalls::abort(std::string_view reason) noexcept {
  *calls_.is_told() = true;
  try {
    fail(Error(ErrorKind::aborted, fmt::format("rank {} ended the group: {}", engine_.rank(), reason),
               {.rank = engine_.rank(), .peer = engine_.rank()}));
  } catch (const std::exception&) {  // no memory for the text
  }
}

void DeviceCalls::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Duration pause = kFirstPause;
  while (changed_.wait(lock, stop, [this] { return !watched_.empty() && !failure_; })) {
    const std::list<std::shared_ptr<Watched>> all = watched_;
    lock.unlock();
    std::vector<std::shared_ptr<Watched>> over;
    for (const auto& each : all) {
      if (look_at(*each)) over.push_back(each);
    }
    lock.lock();
    if (failure_) continue;
    for (const auto& each : over) watched_.remove(each);
    lock.unlock();
    for (const auto& each : over) {
      FlightTicket ticket = each->ticket();
      log_.finish(ticket);
      WorkControl::complete(each->work_, nullptr);
    }
    changed_.notify_all();
    lock.lock();
    pause = over.empty() ? std::min<Duration>(pause * 2, kLongestPause) : kFirstPause;
    changed_.wait_for(lock, stop, pause, [] { return false; });
  }
}

bool DeviceCalls::look_at(Watched& watched) {
  const TimePoint now = steady_clock().now();
  const auto fail_with = [&](ErrorKind kind, const std::string& why, int peer) {
    const double elapsed = seconds(now - watched.begun_);
    fail(Error(kind,
               fmt::format("{} failed on rank {} after {:.3f} s ({}): {}", describe(watched), engine_.rank(), elapsed,
                           to_string(kind), why),
               {.rank = engine_.rank(), .peer = peer, .elapsed_seconds = elapsed}));
  };
  try {
    if (!watched.has_agreed_.load(std::memory_order_acquire)) return false;  // the engine watches over that
    if (watched.is_done()) return true;
    const std::string failure = watched.communicator_ == nullptr ? "" : watched.communicator_->failure();
    if (!failure.empty()) {
      fail_with(ErrorKind::internal, failure, engine_.rank());
    } else if (watched.deadline_.expired(now)) {
      fail_with(ErrorKind::timeout,
                "all ranks have made the call, but the device has not finished it. What was queued before it, here or "
                "on another rank, may not end",
                -1);
    } else if (now - watched.agreed_at_ >= kPeerLook && now >= watched.next_peer_look_) {
      watched.next_peer_look_ = now + kPeerLook;
      calls_.run_if_free([](Engine& engine) { engine.check_peers(); });
    }
  } catch (const Error& error) {  // of a rank
    fail_with(error.kind(), error.what(), error.detail().peer);
  } catch (const std::exception& error) {  // of the device: an earlier kernel has failed, say
    fail_with(ErrorKind::internal, error.what(), engine_.rank());
  }
  return false;
}

std::string DeviceCalls::describe(const Watched& watched) const {
  FlightRecorder& recorder = process_recorder();
  const auto record = recorder.find(watched.ticket_.number);
  return record ? internal::describe(*record, recorder.names()) : "a collective on a device";
}

void DeviceCalls::fail(const Error& error) noexcept {
  Communicators communicators;
  std::list<std::shared_ptr<Watched>> watched;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    communicators = communicators_;
    watched.swap(watched_);
  }
  engine_.end_with(error);
  for (const auto& each : communicators) each->abort();
  if (watched.empty()) {
    *calls_.is_told() = true;  // nothing is lost
  } else {
    log_error(
        fmt::format("rank {}: collectives on a device were under way when the group failed; do not use what they "
                    "leave in their tensors: {}",
                    engine_.rank(), error.what()));
  }
  const auto failure = std::make_exception_ptr(error);
  for (const auto& each : watched) {
    FlightTicket ticket = each->ticket();
    log_.fail(ticket, error);
    WorkControl::complete(each->work_, failure);
  }
  changed_.notify_all();
}

}  // namespace lockstep::internal
