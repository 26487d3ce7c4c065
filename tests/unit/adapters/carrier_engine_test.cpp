// What the CarrierEngine adds to a library, with one that does nothing much.
#include "lockstep/comm/adapters/carrier_engine.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/comm/store/memory_store.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"

namespace carrier_engine_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(20s); }

// The library of a group of one.
class LoneCarrier final : public Carrier {
 public:
  explicit LoneCarrier(const CarrierSite& site) : check_alive_(site.check_alive) {}
  std::string_view name() const override { return "lone"; }
  CarrierBuffers buffers(std::size_t input_bytes, std::size_t output_bytes) override {
    input_.resize(input_bytes);
    output_.resize(output_bytes);
    return {input_.data(), output_.data()};
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void run(const CarrierCall& call, Deadline deadline) override {
    check_alive_(deadline);
    if (call.kind == OpKind::all_gather) std::memcpy(call.output, call.input, input_.size());
  }
  void interrupt() noexcept override {}

 private:
  const std::function<void(Deadline)> check_alive_;
  std::vector<std::byte> input_, output_;
};

std::unique_ptr<Carrier> make_lone_carrier(const CarrierSite& site, Deadline) {
  return std::make_unique<LoneCarrier>(site);
}
bool reduces_only_sums(ReduceOp op, DType) { return op == ReduceOp::sum; }

// Answers nothing until it is thawed.
class FrozenStore final : public Store {
 public:
  void thaw() {
    const std::lock_guard lock(mutex_);
    is_frozen_ = false;
    thawed_.notify_all();
  }
  // Calls that have ended.
  int answered() const { return answered_; }

  void set(std::string_view key, ByteView value, Deadline deadline) override {
    freeze(deadline);
    store_.set(key, value, deadline);
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    freeze(deadline);
    return store_.get(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override {
    freeze(deadline);
    return store_.add(key, delta, deadline);
  }
  Bytes compare_set(std::string_view key, ByteView expected, ByteView desired, Deadline deadline) override {
    freeze(deadline);
    return store_.compare_set(key, expected, desired, deadline);
  }
  std::vector<std::string> wait(const std::vector<std::string>& keys, Deadline deadline) override {
    freeze(deadline);
    return store_.wait(keys, deadline);
  }
  bool check(const std::vector<std::string>& keys, Deadline deadline) override {
    freeze(deadline);
    return store_.check(keys, deadline);
  }
  bool remove(std::string_view key, Deadline deadline) override {
    freeze(deadline);
    return store_.remove(key, deadline);
  }

 private:
  void freeze(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const bool thawed = thawed_.wait_until(lock, deadline.when(), [this] { return !is_frozen_; });
    ++answered_;
    if (!thawed) throw Error(ErrorKind::timeout, "the store does not answer");
  }

  MemoryStore store_;
  std::atomic<int> answered_{0};
  std::mutex mutex_;
  std::condition_variable thawed_;
  bool is_frozen_ = true;  // protected by mutex_
};

struct Alone {
  explicit Alone(std::shared_ptr<Store> store) {
    CarrierSite site;
    site.group = "world";
    site.members = {"rank 0 (host a, pid 1)"};
    site.store = std::move(store);
    engine = std::make_unique<CarrierEngine>(site, &make_lone_carrier, &reduces_only_sums, soon());
    engine->set_flight_log(log);
  }
  void all_reduce(ReduceOp op, FlightTicket ticket = {}) {
    float value = 1;
    const Segment output{reinterpret_cast<std::byte*>(&value), sizeof value};
    engine->run({.kind = OpKind::all_reduce,
                 .reduce = op,
                 .dtype = DType::f32,
                 .count = 1,
                 .output = {&output, 1},
                 .ticket = ticket},
                soon());
  }

  FlightRecorder recorder{FlightMemory::make_private({})};
  FlightLog log{recorder, "world", 0, 1};
  std::unique_ptr<CarrierEngine> engine;
};

// The library of a group of two of which the other rank does whatever this one does, but not before `comes`.
class PairCarrier final : public Carrier {
 public:
  explicit PairCarrier(std::function<void()> comes) : comes_(std::move(comes)) {}
  std::string_view name() const override { return "pair"; }
  CarrierBuffers buffers(std::size_t input_bytes, std::size_t output_bytes) override {
    input_.resize(input_bytes);
    output_.resize(output_bytes);
    return {input_.data(), output_.data()};
  }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void run(const CarrierCall& call, Deadline) override {
    comes_();
    if (call.kind != OpKind::all_gather) return;
    for (std::byte* to : {call.output, call.output + input_.size()}) std::memcpy(to, call.input, input_.size());
  }
  void interrupt() noexcept override {}

 private:
  const std::function<void()> comes_;
  std::vector<std::byte> input_, output_;
};

std::function<void()> other_comes;
std::unique_ptr<Carrier> make_pair_carrier(const CarrierSite&, Deadline) {
  return std::make_unique<PairCarrier>(other_comes);
}

// Knows one thing of the other rank.
class FixedDetector final : public FailureDetector {
 public:
  explicit FixedDetector(PeerHealth health) : health_(std::move(health)) {}
  void ask(int) noexcept override {}
  PeerHealth health(int) const override { return health_; }

 private:
  const PeerHealth health_;
};

// A barrier of rank 0 of two.
void run_barrier(std::function<void()> comes, FailureDetector& detector) {
  other_comes = std::move(comes);
  CarrierSite site;
  site.size = 2;
  site.group = "world";
  site.members = {"rank 0 (host a, pid 1)", "rank 1 (host b, pid 2)"};
  site.store = std::make_shared<MemoryStore>();
  CarrierEngine engine(site, &make_pair_carrier, &reduces_only_sums, soon());
  engine.set_first_report(20ms);
  engine.set_failure_detector(&detector);
  engine.run({}, soon());
}

}  // namespace

TEST_CASE("who waits for long says in the log for whom, also while it is in the library") {
  FixedDetector detector({.state = "alive", .place = "last seen in all_reduce(sum) #7, left it 3.0 s ago"});
  const CapturedLog log;
  run_barrier(
      [&] {
        log.await(
            "barrier #1 has waited 0 s for: rank 1 (host b, pid 2): alive, last seen in "
            "all_reduce(sum) #7, left it 3.0 s ago");
      },
      detector);
  FixedDetector inside({.state = "alive", .place = "inside barrier #1 for 0.1 s", .inside = 1});
  run_barrier(
      [&] { log.await("barrier #1 has waited 0 s for: the library pair; all ranks have entered the collective"); },
      inside);
}

TEST_CASE("a rank that has left is told from one that has died") {
  const auto closed = [] { throw Error(ErrorKind::peer_lost, "closed by peer"); };
  FixedDetector left({.departure = Departure::left}), died({.departure = Departure::died}), unseen({});
  CHECK_ERROR(error_of([&] { run_barrier(closed, left); }), ErrorKind::peer_lost,
              "rank 1 (host b, pid 2) has left the group after 0 collectives; rank 0 (host a, pid 1) waits for it in "
              "barrier #1. Every rank must make this call: is it on some ranks only, as in if (rank == 0)?");
  CHECK_ERROR(
      error_of([&] { run_barrier(closed, died); }), ErrorKind::peer_lost,
      "rank 1 (host b, pid 2) has ended after 0 collectives; rank 0 (host a, pid 1) waits for it in barrier #1");
  CHECK_ERROR(error_of([&] { run_barrier(closed, unseen); }), ErrorKind::peer_lost,
              "rank 1 (host b, pid 2) died or left the group: closed by peer");
  FixedDetector away({.state = "alive", .place = "seen in no collective yet"});
  CHECK_ERROR(error_of([&] { run_barrier([] { throw Error(ErrorKind::timeout, "too late"); }, away); }),
              ErrorKind::timeout,
              "missing: rank 1 (host b, pid 2) (too late); rank 1 (host b, pid 2): alive, seen in no collective yet");
}

TEST_CASE("to end the group does not wait for a store that does not answer, and the error is still posted") {
  const auto store = std::make_shared<FrozenStore>();
  {
    Alone alone(store);
    alone.engine->abort("the loss is NaN");
    CHECK(store->answered() == 0);
    store->thaw();
  }
  PostedErrors errors(store, "world", 0, 1);
  const auto posted = errors.read(soon());
  REQUIRE(posted[0]);
  CHECK(posted[0]->kind() == ErrorKind::aborted);
  CHECK(contains(posted[0]->what(), "rank 0 ended the group: the loss is NaN"));
}

TEST_CASE("collectives are recorded from their issue to their end, as those of other engines") {
  Alone alone(std::make_shared<MemoryStore>());
  alone.all_reduce(ReduceOp::sum);
  const auto done = alone.log.last_collective();
  REQUIRE(done);
  CHECK(describe(*done) == "all_reduce(sum) #1 of 1 float32");
  CHECK(done->state == FlightState::done);

  const FlightTicket queued = alone.log.issue(*done);
  alone.all_reduce(ReduceOp::sum, queued);
  CHECK(alone.log.last_collective()->number == queued.number);
  CHECK(alone.recorder.find(queued.number)->state == FlightState::done);

  CHECK(error_of([&] { alone.all_reduce(ReduceOp::max); }).kind() == ErrorKind::invalid_argument);
  CHECK(alone.log.last_collective()->sequence == 2);  // it never began

  alone.engine->abort("enough");
  CHECK_ERROR(error_of([&] { alone.all_reduce(ReduceOp::sum); }), ErrorKind::aborted, "enough");
  CHECK(alone.log.last_collective()->sequence == 3);
  CHECK(alone.log.last_collective()->state == FlightState::failed);
}

}  // namespace carrier_engine_test
