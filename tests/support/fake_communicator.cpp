#include "tests/support/fake_communicator.h"

#include <ATen/core/Tensor.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/adapters/communicator.h"
#include "lockstep/comm/collective/reduce.h"
#include "tests/support/fake_device_work.h"

namespace lockstep::testing {
namespace {

using namespace internal;

FakeCommunicators how_they_are;  // set while no group exists
std::atomic<long> calls{0}, aborts{0};

using Row = std::vector<std::byte>;

// Memory of the fake device is scrambled.
void copy_scrambled(const std::byte* from, std::byte* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i] ^ std::byte{0x5a};
}

// One rank's part of a call.
struct Part {
  CarrierCall call;
  std::vector<std::size_t> sent, received;
  std::shared_ptr<QueuedWork> work;
};

std::size_t sum(const std::vector<std::size_t>& numbers) {
  std::size_t all = 0;
  for (const std::size_t each : numbers) all += each;
  return all;
}

std::size_t input_bytes(const Part& part, int ranks, int rank) {
  const std::size_t one = part.call.count * element_size(part.call.dtype), n = static_cast<std::size_t>(ranks);
  switch (traits_of(part.call.kind).input) {
    case Extent::none: return 0;
    case Extent::one: return one;
    case Extent::all: return n * one;
    case Extent::all_on_root: return rank == part.call.root ? n * one : 0;
    case Extent::counted: return sum(part.sent) * element_size(part.call.dtype);
  }
  return 0;
}
std::size_t output_bytes(const Part& part, int ranks, int rank) {
  const std::size_t one = part.call.count * element_size(part.call.dtype), n = static_cast<std::size_t>(ranks);
  switch (traits_of(part.call.kind).output) {
    case Extent::none: return 0;
    case Extent::one: return one;
    case Extent::all: return n * one;
    case Extent::all_on_root: return rank == part.call.root ? n * one : 0;
    case Extent::counted: return sum(part.received) * element_size(part.call.dtype);
  }
  return 0;
}

bool agree(const CarrierCall& a, const CarrierCall& b) {
  return a.kind == b.kind && a.reduce == b.reduce && a.dtype == b.dtype && a.root == b.root && a.count == b.count;
}

// What each rank's output is to hold.
std::vector<Row> results_of(const std::vector<Part>& parts) {
  const std::size_t n = parts.size();
  const CarrierCall& call = parts[0].call;
  const OpTraits& op = traits_of(call.kind);
  const std::size_t element = element_size(call.dtype), one = call.count * element;
  const auto root = static_cast<std::size_t>(call.root);
  std::vector<Row> in(n), out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const int rank = static_cast<int>(i), ranks = static_cast<int>(n);
    out[i].resize(output_bytes(parts[i], ranks, rank));
    in[i].resize(op.is_in_place() ? out[i].size() : input_bytes(parts[i], ranks, rank));
    copy_scrambled(op.is_in_place() ? parts[i].call.output : parts[i].call.input, in[i].data(), in[i].size());
  }
  const auto reduced = [&](std::size_t offset) {
    Row result(std::max<std::size_t>(one, 1));
    std::vector<const std::byte*> rows;
    for (const Row& each : in) rows.push_back(each.data() + offset);
    std::byte* const to = result.data();
    reduce_rows({&to, 1}, rows, call.count, call.dtype, call.reduce, static_cast<int>(n));
    result.resize(one);
    return result;
  };
  for (std::size_t i = 0; i < n; ++i) {
    switch (call.kind) {
      case OpKind::all_reduce: out[i] = reduced(0); break;
      case OpKind::reduce:
        if (i == root) out[i] = reduced(0);
        break;
      case OpKind::reduce_scatter: out[i] = reduced(i * one); break;
      case OpKind::broadcast: out[i] = in[root]; break;
      case OpKind::all_gather:
        for (std::size_t j = 0; j < n; ++j) std::ranges::copy(in[j], out[i].begin() + static_cast<long>(j * one));
        break;
      case OpKind::gather:
        for (std::size_t j = 0; j < n && i == root; ++j) {
          std::ranges::copy(in[j], out[i].begin() + static_cast<long>(j * one));
        }
        break;
      case OpKind::scatter: std::copy_n(in[root].begin() + static_cast<long>(i * one), one, out[i].begin()); break;
      default: {  // all_to_all
        std::size_t at = 0;
        for (std::size_t j = 0; j < n; ++j) {
          std::size_t from = 0;
          for (std::size_t k = 0; k < i; ++k) from += parts[j].sent[k] * element;
          const std::size_t bytes = parts[j].sent[i] * element;
          std::copy_n(in[j].begin() + static_cast<long>(from), bytes, out[i].begin() + static_cast<long>(at));
          at += bytes;
        }
      }
    }
  }
  return out;
}

// What the communicators of the ranks of a group share. Its thread does the calls, one after the other.
class Hub {
 public:
  explicit Hub(int ranks, unsigned seed)
      : parts_(static_cast<std::size_t>(ranks)), is_aborted_(parts_.size()), random_(seed) {}

  // Blocks until all ranks have.
  void join(const CommunicatorSite& site) {
    std::unique_lock lock(mutex_);
    ++joined_;
    changed_.notify_all();
    while (joined_ < static_cast<int>(parts_.size())) {
      changed_.wait_for(lock, std::chrono::milliseconds(5));
      if (joined_ == static_cast<int>(parts_.size())) break;
      lock.unlock();
      if (site.deadline.expired()) throw Error(ErrorKind::timeout, "not all ranks have come");
      site.check_alive();
      lock.lock();
    }
    if (!worker_.joinable()) worker_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }

  void enqueue(int rank, Part part) {
    const std::lock_guard lock(mutex_);
    if (is_aborted_[static_cast<std::size_t>(rank)]) {
      part.work->over->open();
      throw Error(ErrorKind::aborted, "the communicator has been aborted");
    }
    parts_[static_cast<std::size_t>(rank)].push_back(std::move(part));
    changed_.notify_all();
  }

  void abort(int rank) {
    const std::lock_guard lock(mutex_);
    is_aborted_[static_cast<std::size_t>(rank)] = true;
    for (const Part& each : parts_[static_cast<std::size_t>(rank)]) each.work->over->open();
    changed_.notify_all();
  }

  // Until all ranks have queued as many calls as this one; Error{aborted} if it is aborted.
  void await_others(int rank) {
    std::unique_lock lock(mutex_);
    const std::size_t calls = parts_[static_cast<std::size_t>(rank)].size();
    changed_.wait(lock, [&] {
      return is_aborted_[static_cast<std::size_t>(rank)] ||
             std::ranges::all_of(parts_, [&](const auto& each) { return each.size() >= calls; });
    });
    if (is_aborted_[static_cast<std::size_t>(rank)]) throw Error(ErrorKind::aborted, "aborted while it connects");
  }

  // As the communicator of a rank that goes.
  void await_all_of(int rank) {
    LateWork::Gates gates;
    {
      const std::lock_guard lock(mutex_);
      for (const Part& each : parts_[static_cast<std::size_t>(rank)]) gates.push_back(each.work->over);
    }
    await_all(gates);
  }

 private:
  bool is_broken() const { return std::ranges::find(is_aborted_, true) != is_aborted_.end(); }

  void work(const std::stop_token& stop) {
    for (std::size_t next = 0;; ++next) {
      std::vector<Part> call;
      {
        std::unique_lock lock(mutex_);
        const bool came = changed_.wait(lock, stop, [&] {
          return std::ranges::all_of(parts_, [&](const auto& each) { return each.size() > next; });
        });
        if (!came || is_broken()) return;
        for (const auto& each : parts_) call.push_back(each[next]);
      }
      for (const Part& each : call) await_all(each.work->before);
      const bool hangs = static_cast<int>(next) >= how_they_are.never_finished_from ||
                         std::ranges::any_of(call, [&](const Part& each) { return !agree(each.call, call[0].call); });
      if (hangs) return;
      finish(call);
    }
  }

  void finish(const std::vector<Part>& call) {
    std::vector<std::size_t> order(call.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random_);
    std::vector<Row> results;
    {
      const std::lock_guard lock(mutex_);  // no rank lets go of its memory meanwhile
      if (is_broken()) return;
      results = results_of(call);
    }
    for (const std::size_t rank : order) {
      if (how_they_are.longest_delay_us > 0) {
        const auto delay = static_cast<int>(random_() % static_cast<unsigned>(how_they_are.longest_delay_us));
        std::this_thread::sleep_for(std::chrono::microseconds(delay));
      }
      const std::lock_guard lock(mutex_);
      if (is_aborted_[rank]) continue;
      if (!results[rank].empty()) copy_scrambled(results[rank].data(), call[rank].call.output, results[rank].size());
      call[rank].work->over->open();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  // State below is protected by mutex_.
  int joined_ = 0;
  std::vector<std::vector<Part>> parts_;  // by rank and call
  std::vector<bool> is_aborted_;
  std::mt19937 random_;  // the worker's
  std::jthread worker_;  // last member: it must end first
};

std::mutex hubs_mutex;
std::map<std::string, std::weak_ptr<Hub>> hubs;  // by id; protected by hubs_mutex

class FakeCommunicator final : public Communicator {
 public:
  explicit FakeCommunicator(const CommunicatorSite& site) : rank_(site.rank), size_(site.size) {
    {
      const std::lock_guard lock(hubs_mutex);
      std::weak_ptr<Hub>& known = hubs[site.id];
      hub_ = known.lock();
      if (hub_ == nullptr) known = hub_ = std::make_shared<Hub>(size_, static_cast<unsigned>(hubs.size()));
    }
    hub_->join(site);
  }
  ~FakeCommunicator() override {
    if (!is_aborted_) hub_->await_all_of(rank_);
  }

  void enqueue(const CarrierCall& call, c10::Stream stream) override {
    ++calls;
    Part part{call, {call.sent.begin(), call.sent.end()}, {call.received.begin(), call.received.end()}, nullptr};
    part.work =
        std::make_shared<QueuedWork>(stream, std::string("a communicator's ") + std::string(to_string(call.kind)));
    const std::size_t in = input_bytes(part, size_, rank_), out = output_bytes(part, size_, rank_);
    const std::shared_ptr<QueuedWork> work = part.work;
    hub_->enqueue(rank_, std::move(part));
    if (in != 0) work->order.reads(call.input, in);
    if (out != 0) work->order.writes(call.output, out);
    check_races();
    if (how_they_are.waits_within) hub_->await_others(rank_);
  }
  std::string failure() noexcept override { return how_they_are.failure; }
  void abort() noexcept override {
    if (is_aborted_.exchange(true)) return;
    ++aborts;
    hub_->abort(rank_);
  }

 private:
  const int rank_;
  const int size_;
  std::shared_ptr<Hub> hub_;
  std::atomic<bool> is_aborted_{false};
};

bool fake_supports(OpKind kind, ReduceOp op, DType dtype) {
  const OpTraits& traits = traits_of(kind);
  const bool is_scan = traits.from != From::all || !traits.moves_data();
  return !is_scan && (!traits.reduces || (supports(kind, op, dtype) && op != ReduceOp::bxor && dtype != DType::i16));
}

std::string make_id() {
  static std::atomic<int> next{0};
  return "fake " + std::to_string(++next);
}

std::string identity_of(at::Device device) {
  return how_they_are.on_one_device ? "the only one" : "device " + std::to_string(device.index());
}

std::unique_ptr<Communicator> connect_fake(const CommunicatorSite& site) {
  return std::make_unique<FakeCommunicator>(site);
}

}  // namespace

WithFakeCommunicators::WithFakeCommunicators(const FakeCommunicators& how) {
  how_they_are = how;
  register_communicators({.name = "fake",
                          .type = at::kPrivateUse1,
                          .supports = fake_supports,
                          .make_id = make_id,
                          .identity = identity_of,
                          .connect = connect_fake});
}

WithFakeCommunicators::~WithFakeCommunicators() { register_communicators({.name = "none", .type = at::kPrivateUse1}); }

long fake_communicator_calls() { return calls; }
long fake_communicator_aborts() { return aborts; }

}  // namespace lockstep::testing
