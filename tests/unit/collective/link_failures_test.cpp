// How a LinkEngine fails: ranks that disagree, are late, die or end the group.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/comm/collective/announced_calls.h"
#include "tests/support/expect_error.h"
#include "tests/support/tcp_meshes.h"
#include "tests/unit/collective/link_fixture.h"

namespace link_failures_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

// One rank's memory for `count` float32, with a pattern that shows whether it was written to.
struct Operand {
  explicit Operand(std::size_t count)
      : values(count, 0.5f), segments{{reinterpret_cast<std::byte*>(values.data()), count * 4}} {}
  bool untouched() const {
    return std::ranges::all_of(values, [](float v) { return v == 0.5f; });
  }

  std::vector<float> values;
  std::vector<Segment> segments;
};

Collective all_reduce(const Operand& operand) {
  return {.kind = OpKind::all_reduce, .dtype = DType::f32, .count = operand.values.size(), .output = operand.segments};
}

Error as_error(const std::exception_ptr& exception) {
  return error_of([&] {
    REQUIRE(exception);
    std::rethrow_exception(exception);
  });
}

}  // namespace

TEST_CASE("ranks in different collectives all learn of it, with both sides in the text, and no data is touched") {
  struct Case {
    const char* what;
    void (*change)(Collective&);
    const char* text;
  };
  const Case cases[] = {
      {"operation", [](Collective& c) { c.kind = OpKind::broadcast; }, "broadcast #2 of 40000 float32 from rank 0"},
      {"reduction", [](Collective& c) { c.reduce = ReduceOp::max; }, "all_reduce(max) #2"},
      {"dtype", [](Collective& c) { c.dtype = DType::i32; }, "of 40000 int32"},
      {"name", [](Collective& c) { c.name = 0xBEEF; }, "name 000000000000beef"},
      {"barrier",
       [](Collective& c) {
         c.kind = OpKind::barrier;
         c.count = 0;
         c.output = {};
       },
       "barrier #2"},
      {"count",
       [](Collective& c) {
         static Operand shorter(7);
         c.count = 7;
         c.output = shorter.segments;
       },
       "all_reduce(sum) #2 of 7 float32"},
  };
  for (const Case& each : cases) {
    for (const int odd : {0, 2}) {
      CAPTURE(each.what);
      CAPTURE(odd);
      Engines engines = make_link_engines(make_arena_meshes(3));
      std::vector<Operand> operands(3, Operand(40000));
      for (Operand& operand : operands) operand.segments[0].data = reinterpret_cast<std::byte*>(operand.values.data());
      const auto errors = run_ranks(3, [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        engines[r]->run({.kind = OpKind::barrier}, soon());
        Collective collective = all_reduce(operands[r]);
        if (rank == odd) each.change(collective);
        // Whoever notices first leaves at once, as a program that ends would.
        try {
          engines[r]->run(collective, soon());
        } catch (...) {
          engines[r].reset();
          throw;
        }
      });
      for (int rank = 0; rank < 3; ++rank) {
        CAPTURE(rank);
        const Error error = as_error(errors[static_cast<std::size_t>(rank)]);
        CHECK_ERROR(error, ErrorKind::desync, each.text, "all_reduce(sum) #2 of 40000 float32",
                    "rank " + std::to_string(odd) + " in ", "rank " + std::to_string(rank) + " in ");
        CHECK(operands[static_cast<std::size_t>(rank)].untouched());
      }
    }
  }
}

TEST_CASE("a rank that is in no collective when others differ is named by them, and learns of both at its next call") {
  for (const bool is_tcp : {false, true}) {
    CAPTURE(is_tcp);
    Engines engines = make_link_engines(is_tcp ? make_tcp_meshes(3) : make_arena_meshes(3));
    const auto call = [&](int rank) {
      Operand operand(40000);
      Collective collective = all_reduce(operand);
      if (rank == 1) collective.reduce = ReduceOp::max;
      engines[static_cast<std::size_t>(rank)]->run(collective, soon());
    };
    const auto errors = run_ranks(3, [&](int rank) {
      if (rank != 2) call(rank);
    });
    for (const std::size_t rank : {0, 1}) {
      CHECK_ERROR(as_error(errors[rank]), ErrorKind::desync,
                  "ranks are in different collectives: rank " + std::to_string(rank), "all_reduce(sum) #1",
                  "all_reduce(max) #1", "has not entered a collective");
    }
    CHECK_ERROR(error_of([&] { call(2); }), ErrorKind::desync, "all_reduce(sum) #1", "all_reduce(max) #1");
    CHECK_ERROR(error_of([&] { call(0); }), ErrorKind::desync, as_error(errors[0]).what());
  }
}

namespace {

// Calls a function when the engine announces its call, which it does once ranks differ.
class AnnouncingMesh final : public Mesh {
 public:
  AnnouncingMesh(std::unique_ptr<Mesh> mesh, std::function<void()> then) : mesh_(std::move(mesh)), then_(then) {}

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  std::string_view name() const override { return mesh_->name(); }
  std::size_t send_some(int peer, ByteSpan data) override { return mesh_->send_some(peer, data); }
  std::size_t recv_some(int peer, MutableByteSpan data) override { return mesh_->recv_some(peer, data); }
  void wait(std::span<const Interest> interests, Deadline deadline) override { mesh_->wait(interests, deadline); }
  void wake() noexcept override { mesh_->wake(); }
  void announce(ByteView bytes) noexcept override {
    mesh_->announce(bytes);
    then_();
  }
  std::optional<Announcement> take_announcement() override { return mesh_->take_announcement(); }
  void abort(const Error& error) noexcept override { mesh_->abort(error); }

 private:
  const std::unique_ptr<Mesh> mesh_;
  const std::function<void()> then_;
};

Signature of_barrier(int generation) {
  Signature signature = signature_of({.kind = OpKind::barrier}, 1, generation);
  signature.check = check_of(signature);
  return signature;
}

}  // namespace

TEST_CASE("what a rank announced before another one ended the group is known, and no rank is accused") {
  for (const bool has_announced : {true, false}) {
    CAPTURE(has_announced);
    auto meshes = make_tcp_meshes(3);
    const Signature barrier = of_barrier(7);
    REQUIRE(meshes[1]->send_some(0, std::as_bytes(std::span(&barrier, 1))) == sizeof barrier);
    const auto end = [&] {
      const CallSide call{.rank = 2, .who = {}, .signature = barrier};
      if (has_announced) meshes[2]->announce(encode_calls({&call, 1}));
      meshes[2]->abort(Error(ErrorKind::aborted, "rank 2 has had enough", {.rank = 2, .peer = 2}));
    };
    LinkEngine engine(std::make_unique<AnnouncingMesh>(std::move(meshes[0]), end), 7);
    Operand operand(40000);
    const Error error = error_of([&] { engine.run(all_reduce(operand), soon()); });
    CHECK_ERROR(error, ErrorKind::desync, "rank 0 in all_reduce(sum) #1", "rank 1 in barrier #1",
                has_announced
                    ? "with rank 1: 2"
                    : "rank 2 had announced no call when the group ended; it ended by: rank 2 has had enough");
    CHECK_FALSE(contains(error.what(), "has not entered a collective"));
  }
}

TEST_CASE("ranks with different roots learn of it") {
  Engines engines = make_link_engines(make_arena_meshes(2));
  const auto errors = run_ranks(2, [&](int rank) {
    Operand operand(4);
    Collective collective = all_reduce(operand);
    collective.kind = OpKind::broadcast;
    collective.root = rank;
    engines[static_cast<std::size_t>(rank)]->run(collective, soon());
  });
  for (const auto& error : errors) CHECK_ERROR(as_error(error), ErrorKind::desync, "from rank 0", "from rank 1");
}

TEST_CASE(
    "a rank that skipped a collective shows in the sequence numbers, another start of the job in the generation") {
  Engines engines = make_link_engines(make_arena_meshes(2));
  auto errors = run_ranks(2, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (rank == 1) {
      Operand wrong(4);
      Collective refused = all_reduce(wrong);
      refused.count = 5;
      CHECK_ERROR(error_of([&] { engines[r]->run(refused, soon()); }), ErrorKind::invalid_argument, "5 are needed");
    } else {
      Operand operand(4);
      engines[r]->run(all_reduce(operand), soon());
    }
    engines[r]->run({.kind = OpKind::barrier}, soon());
  });
  for (const auto& error : errors) {
    CHECK_ERROR(as_error(error), ErrorKind::desync, "all_reduce(sum) #1 of 4 float32", "barrier #1");
  }

  auto meshes = make_arena_meshes(2);
  LinkEngine old(std::move(meshes[0]), 3), young(std::move(meshes[1]), 4);
  errors = run_ranks(2, [&](int rank) { (rank == 0 ? old : young).run({.kind = OpKind::barrier}, soon()); });
  for (const auto& error : errors) CHECK_ERROR(as_error(error), ErrorKind::desync, "generation 3", "generation 4");
}

TEST_CASE("a timeout names the ranks that did not come, the collective and the time") {
  Engines engines = make_link_engines(make_arena_meshes(4));
  const auto errors = run_ranks(4, [&](int rank) {
    if (rank >= 2) return;
    Operand operand(100000);
    engines[static_cast<std::size_t>(rank)]->run(all_reduce(operand), Deadline::after(150ms));
  });
  for (const std::size_t rank : {0, 1}) {
    const Error error = as_error(errors[rank]);
    CHECK_ERROR(error, ErrorKind::timeout, "all_reduce(sum) #1 of 100000 float32", "rank 2 has not entered it",
                "rank 3 has not entered it", "on rank " + std::to_string(rank));
    CHECK_FALSE(contains(error.what(), "rank " + std::to_string(1 - rank) + " has"));
    CHECK(error.detail().peer == 2);
    CHECK(error.detail().operation == "all_reduce");
    CHECK(error.detail().elapsed_seconds >= 0.1);  // the deadline began before the call
    CHECK(error.detail().elapsed_seconds < 10);
  }
}

TEST_CASE("a rank that enters a collective after another one's deadline learns who waited for it") {
  for (const bool is_tcp : {false, true}) {
    CAPTURE(is_tcp);
    Engines engines = make_link_engines(is_tcp ? make_tcp_meshes(2) : make_arena_meshes(2));
    CHECK_ERROR(error_of([&] { engines[0]->run({.kind = OpKind::barrier}, Deadline::after(0ms)); }), ErrorKind::timeout,
                "rank 1", "has not entered it");
    const Error error = error_of([&] { engines[1]->run({.kind = OpKind::barrier}, soon()); });
    CHECK_ERROR(error, ErrorKind::timeout, "rank 0", " timed out after ", ", missing: rank 1");
  }
}

TEST_CASE("a rank that stops in the middle is named with how far it came") {
  auto meshes = make_arena_meshes(2, 4096);
  Mesh& half_dead = *meshes[1];
  LinkEngine engine(std::move(meshes[0]), 0);
  const Collective collective{.kind = OpKind::reduce_scatter, .dtype = DType::u8, .count = 50000};
  Signature signature = signature_of(collective, 1, 0);
  signature.check = check_of(signature);
  REQUIRE(half_dead.send_some(0, std::as_bytes(std::span(&signature, 1))) == sizeof signature);
  REQUIRE(half_dead.send_some(0, Buffer(1000)) == 1000);
  Buffer input(100000), output(50000);
  const Segment in[] = {{input.data(), input.size()}};
  const Segment out[] = {{output.data(), output.size()}};
  Collective complete = collective;
  complete.input = in;
  complete.output = out;
  const Error error = error_of([&] { engine.run(complete, Deadline::after(300ms)); });
  CHECK_ERROR(error, ErrorKind::timeout, "rank 1 has sent 1000 of 50000 bytes");
  CHECK(error.detail().peer == 1);
}

TEST_CASE("a peer that sends a byte now and then does not extend the deadline") {
  auto meshes = make_arena_meshes(2);
  LinkEngine engine(std::move(meshes[0]), 0);
  std::atomic<bool> over{false};
  std::jthread dribble([&] {
    Signature signature{.sequence = 1, .kind = OpKind::barrier};
    signature.check = check_of(signature);
    const ByteSpan bytes = std::as_bytes(std::span(&signature, 1));
    for (std::size_t i = 0; i + 1 < bytes.size() && !over; ++i) {
      meshes[1]->send_some(0, bytes.subspan(i, 1));
      std::this_thread::sleep_for(20ms);
    }
  });
  CHECK_ERROR(error_of([&] { engine.run({.kind = OpKind::barrier}, Deadline::after(200ms)); }), ErrorKind::timeout,
              "rank 1");
  over = true;
}

TEST_CASE("a peer that leaves in the middle of a transfer is named by all, and the engine stays failed") {
  auto meshes = make_arena_meshes(3, 4096);
  std::unique_ptr<Mesh> leaving = std::move(meshes[2]);
  LinkEngine first(std::move(meshes[0]), 0), second(std::move(meshes[1]), 0);
  const auto errors = run_ranks(3, [&](int rank) {
    if (rank == 2) {
      Buffer scratch(100);
      while (leaving->recv_some(0, scratch) == 0) leaving->wait(std::array{Mesh::Interest{0, true, false}}, soon());
      leaving.reset();
      return;
    }
    Operand operand(100000);
    LinkEngine& engine = rank == 0 ? first : second;
    const Error error = error_of([&] { engine.run(all_reduce(operand), soon()); });
    CHECK_ERROR(error_of([&] { engine.run({.kind = OpKind::barrier}, soon()); }), ErrorKind::peer_lost,
                "all_reduce(sum) #1");
    throw error;
  });
  for (const std::size_t rank : {0, 1}) {
    const Error error = as_error(errors[rank]);
    CHECK_ERROR(error, ErrorKind::peer_lost, "rank 2 has left", "all_reduce(sum) #1 of 100000 float32");
    CHECK(error.detail().peer == 2);
    CHECK(error.detail().rank == static_cast<int>(rank));
    CHECK(error.detail().sequence == 1);
  }
}

TEST_CASE("abort ends present and later calls on all ranks with the reason") {
  for (const int size : {1, 3}) {
    Engines engines = make_link_engines(make_arena_meshes(size));
    std::vector<double> took(static_cast<std::size_t>(size));
    const auto start = steady_clock().now();
    const auto errors = run_ranks(size, [&](int rank) {
      Engine& engine = *engines[static_cast<std::size_t>(rank)];
      if (rank == 0) {
        engine.abort("step 12 went wrong");
        engine.abort("something else");
      }
      Operand operand(10);
      try {
        engine.run(all_reduce(operand), soon());
      } catch (...) {
        took[static_cast<std::size_t>(rank)] = seconds(steady_clock().now() - start);
        throw;
      }
    });
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      CHECK_ERROR(as_error(errors[rank]), ErrorKind::aborted, "step 12 went wrong", "rank 0 ended the group");
      CHECK(took[rank] < 2);
      CHECK_ERROR(error_of([&] { engines[rank]->run({.kind = OpKind::barrier}, soon()); }), ErrorKind::aborted,
                  "step 12");
    }
  }
}

TEST_CASE("an invalid argument leaves the engine usable") {
  Engines engines = make_link_engines(make_arena_meshes(2));
  run_ranks_or_throw(2, [&](int rank) {
    Engine& engine = *engines[static_cast<std::size_t>(rank)];
    Operand operand(4);
    Collective wrong = all_reduce(operand);
    wrong.root = 9;
    wrong.kind = OpKind::broadcast;
    CHECK_ERROR(error_of([&] { engine.run(wrong, soon()); }), ErrorKind::invalid_argument, "root 9");
    engine.run(all_reduce(operand), soon());
    if (operand.values[0] != 1.0f) throw std::runtime_error("wrong sum");
  });
}

}  // namespace link_failures_test
