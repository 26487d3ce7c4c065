#include "lockstep/comm/group/process_group.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/observe/process_recorder.h"
#include "lockstep/comm/group/derived.h"
#include "tests/support/captured_log.h"
#include "tests/support/expect_error.h"
#include "tests/support/forked_child.h"
#include "tests/support/local_groups.h"

namespace process_group_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

at::Tensor ramp(at::IntArrayRef sizes, int rank, at::ScalarType dtype = at::kFloat) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return (at::arange(count, at::kDouble) % 13 + rank).reshape(sizes).to(dtype);
}

// The number of the operation that is recorded next.
std::uint64_t next_record() {
  FlightRecord probe;
  return process_recorder().add(probe).number + 1;
}
FlightRecord last_record() { return process_recorder().find(next_record() - 2).value(); }

// A barrier that waits for the other ranks, and so has the turn of its group. REQUIRES: no other thread records
std::future<void> waiting_barrier(const ProcessGroup& group) {
  const std::uint64_t number = next_record();
  auto barrier = std::async(std::launch::async, [group] { group.barrier(); });
  for (;;) {
    const auto record = process_recorder().find(number);
    if (record && record->state == FlightState::running) return barrier;
    std::this_thread::yield();
  }
}

}  // namespace

// feature: C-02
TEST_CASE("all_reduce: any shape and strides, in place, equal on all ranks") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
        const at::Tensor expected = ramp({4, 5}, 0, dtype) * 3 + 3;
        at::Tensor plain = ramp({4, 5}, group.rank(), dtype);
        group.all_reduce(plain);
        CHECK(at::equal(plain, expected));
        at::Tensor columns = ramp({5, 4}, group.rank(), dtype).t();
        group.all_reduce(columns, ReduceOp::max);
        CHECK(at::equal(columns, ramp({5, 4}, 2, dtype).t()));
      }
      at::Tensor scalar = at::full({}, group.rank() + 1.0);
      group.all_reduce(scalar, ReduceOp::avg);
      CHECK(scalar.item<double>() == 2.0);
      at::Tensor none = at::empty({0, 7});
      group.all_reduce(none);
      at::Tensor picture = ramp({2, 3, 4, 4}, group.rank()).contiguous(at::MemoryFormat::ChannelsLast);
      group.all_reduce(picture, ReduceOp::min);
      CHECK(at::equal(picture, ramp({2, 3, 4, 4}, 0)));
    });
  }
}

TEST_CASE("a scan gives each rank what all up to it make, an exclusive one what all before it make") {
  for (const Over transport : kTransports) {
    run_group_or_throw(4, transport, [](const ProcessGroup& group) {
      const int rank = group.rank();
      const auto sum = [](int ranks, at::IntArrayRef sizes) {
        at::Tensor total = at::zeros(sizes);
        for (int each = 0; each < ranks; ++each) total += ramp(sizes, each);
        return total;
      };
      for (const std::int64_t rows : {0, 1, 5, 30'000}) {
        at::Tensor columns = ramp({rows, 3}, rank).t();
        std::vector<at::Tensor> tensors{ramp({rows}, rank), columns, at::full({}, rank + 1.0F)};
        group.scan(tensors);
        CHECK(at::equal(tensors[0], sum(rank + 1, {rows})));
        CHECK(at::equal(columns, sum(rank + 1, {rows, 3}).t()));
        CHECK(tensors[2].item<float>() == static_cast<float>((rank + 1) * (rank + 2)) / 2);
        at::Tensor before = ramp({rows}, rank);
        const Work work = group.exclusive_scan_async(before);
        at::Tensor largest = ramp({rows}, 3 - rank, at::kInt);
        group.scan_async(largest, ReduceOp::max).wait();
        work.wait();
        CHECK(at::equal(before, sum(rank, {rows})));
        CHECK(at::equal(largest, ramp({rows}, 3, at::kInt)));
      }
      at::Tensor offset = at::full({2}, 10, at::kLong);  // where this rank's elements begin among all ranks'
      group.exclusive_scan(offset);
      CHECK(at::equal(offset, at::full({2}, 10 * rank, at::kLong)));
      at::Tensor product = at::full({2}, 2, at::kShort), least = at::full({2}, rank), mean = at::full({2}, 2.0 * rank);
      group.exclusive_scan(product, ReduceOp::product);
      group.exclusive_scan(least, ReduceOp::min);
      group.scan(mean, ReduceOp::avg);
      CHECK(at::equal(product, at::full({2}, 1 << rank, at::kShort)));
      CHECK(least[0].item<std::int64_t>() == (rank == 0 ? std::numeric_limits<std::int64_t>::max() : 0));
      CHECK(at::equal(mean, at::full({2}, static_cast<double>(rank))));
      std::vector<at::Tensor> weighted{at::ones({3})};
      premultiply(weighted, rank + 1.0);
      group.scan(weighted);
      CHECK(weighted[0][2].item<float>() == static_cast<float>((rank + 1) * (rank + 2)) / 2);
      std::vector<at::Tensor> twice{mean, mean};
      CHECK_ERROR(error_of([&] { group.scan(twice); }), ErrorKind::invalid_argument,
                  "scan: output tensors 0 and 1 overlap in memory");
      CHECK(group.supports(OpKind::scan, ReduceOp::bxor, at::kInt));
      CHECK_FALSE(group.supports(OpKind::exclusive_scan, ReduceOp::max, at::kComplexFloat));
    });
  }
}

TEST_CASE("the flight recorder has scans by their names") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    at::Tensor tensor = at::ones({3});
    group.scan(tensor, ReduceOp::product);
    const FlightRecord record = last_record();
    CHECK(std::string_view(record.operation) == "scan");
    CHECK(std::string_view(record.reduction) == "product");
    CHECK(record.count == 3);
    group.exclusive_scan(tensor);
    CHECK(std::string_view(last_record().operation) == "exclusive_scan");
  });
}

// feature: C-01, C-07
TEST_CASE("broadcast, all_gather, reduce_scatter and barrier") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      for (int root = 0; root < 3; ++root) {
        at::Tensor value = ramp({100, 700}, group.rank());
        group.broadcast(value, root);
        CHECK(at::equal(value, ramp({100, 700}, root)));
      }
      const auto parts = group.all_gather(ramp({6}, group.rank()));
      REQUIRE(parts.size() == 3);
      for (int rank = 0; rank < 3; ++rank) CHECK(at::equal(parts[static_cast<std::size_t>(rank)], ramp({6}, rank)));
      at::Tensor mine = at::empty({4});
      group.reduce_scatter(mine, ramp({3, 4}, group.rank()));
      CHECK(at::equal(mine, (ramp({3, 4}, 0) * 3 + 3)[group.rank()]));
      group.barrier();
    });
  }
}

// feature: C-06
TEST_CASE("reduce, gather and scatter for every root") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      for (int root = 0; root < 3; ++root) {
        for (const std::int64_t length : {3, 70'000}) {
          const bool is_root = group.rank() == root;
          at::Tensor sum = ramp({length}, group.rank());
          group.reduce(sum, root, ReduceOp::avg);
          if (is_root) CHECK(at::equal(sum, ramp({length}, 1)));
          const auto parts = group.gather(ramp({length, 2}, group.rank()), root);
          REQUIRE(parts.size() == (is_root ? 3U : 0U));
          for (std::size_t r = 0; r < parts.size(); ++r) {
            CHECK(at::equal(parts[r], ramp({length, 2}, static_cast<int>(r))));
          }
          std::vector<at::Tensor> inputs;
          for (int r = 0; is_root && r < 3; ++r) inputs.push_back(ramp({2, length}, 10 * root + r).t());
          at::Tensor mine = at::empty({length, 2});
          group.scatter(mine, inputs, root);
          CHECK(at::equal(mine, ramp({2, length}, 10 * root + group.rank()).t()));
        }
      }
    });
  }
}

TEST_CASE("all_to_all: every pair has its own size; a pair that disagrees is named, and the group goes on") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      for (const std::int64_t scale : {0, 1, 40'000}) {
        std::vector<at::Tensor> inputs, outputs;
        for (int peer = 0; peer < 3; ++peer) {
          inputs.push_back(ramp({scale * (group.rank() + 2 * peer)}, group.rank() * 3 + peer));
          outputs.push_back(at::empty({scale * (peer + 2 * group.rank())}));
        }
        group.all_to_all(outputs, inputs);
        for (int peer = 0; peer < 3; ++peer) {
          CHECK(at::equal(outputs[static_cast<std::size_t>(peer)],
                          ramp({scale * (peer + 2 * group.rank())}, peer * 3 + group.rank())));
        }
      }
      const std::vector<at::Tensor> ones(3, at::ones({2}));
      std::vector<at::Tensor> wrong{at::empty({2}), at::empty({2}), at::empty({group.rank() == 1 ? 5 : 2})};
      try {
        group.all_to_all(wrong, ones);
        FAIL("sizes that differ were accepted");
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::invalid_argument);
        CHECK(std::string(error.what()).find("rank 2 sends 2 elements to rank 1, which expects 5") !=
              std::string::npos);
      }
      group.barrier();
    });
  }
}

TEST_CASE("types that cannot be reduced are moved all the same") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    for (const auto dtype : {at::kBool, at::kChar, at::kShort, at::kComplexFloat, at::kComplexDouble,
                             at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16}) {
      const at::Tensor mine = ramp({5}, group.rank()).to(dtype);
      const auto all = group.all_gather(mine);
      for (int r = 0; r < 2; ++r) {
        CHECK(at::equal(all[static_cast<std::size_t>(r)].to(at::kComplexDouble),
                        ramp({5}, r).to(dtype).to(at::kComplexDouble)));
      }
    }
    for (const auto dtype : {at::kUInt16, at::kUInt32, at::kUInt64}) {
      at::Tensor sum = ramp({5}, group.rank(), dtype);
      group.all_reduce(sum);
      CHECK(at::equal(sum.to(at::kDouble), ramp({5}, 0, at::kDouble) * 2 + 1));
    }
    at::Tensor flags = at::tensor({1 - group.rank(), 0, 1}).to(at::kBool);
    group.all_reduce(flags);
    CHECK(at::equal(flags, at::tensor({1, 0, 1}).to(at::kBool)));
    at::Tensor waves = at::full({3}, c10::complex<float>(1, static_cast<float>(group.rank())), at::kComplexFloat);
    group.all_reduce(waves, ReduceOp::product);
    CHECK(at::equal(waves, at::full({3}, c10::complex<float>(1, 1), at::kComplexFloat)));
    CHECK_THROWS_AS(group.all_reduce(ramp({5}, 0).to(at::kFloat8_e5m2)), Error);
    CHECK_THROWS_AS(group.all_reduce(waves, ReduceOp::min), Error);
    at::Tensor bits = at::full({3}, group.rank() + 1, at::kInt);
    group.all_reduce(bits, ReduceOp::bor);
    CHECK(at::equal(bits, at::full({3}, 3, at::kInt)));
  });
}

// feature: C-16
TEST_CASE("asynchronous calls finish in issue order, mixed with blocking ones") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 100; ++i) {
        tensors.push_back(at::full({1000}, group.rank() + i));
        works.push_back(group.all_reduce_async(tensors.back()));
        if (i % 10 == 9) {
          at::Tensor now = at::ones({3});
          group.all_reduce(now);
          CHECK(at::equal(now, at::full({3}, 2)));
          CHECK(works.back().is_completed());
        }
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        works[i].wait(Deadline::after(10s));
        CHECK(tensors[i][0].item<float>() == static_cast<float>(2 * i + 1));
        CHECK(works[i].exception() == nullptr);
      }
    });
  }
}

// feature: C-04, Z-02
TEST_CASE("what cannot be moved is refused by name, before anyone hears of it") {
  run_group_or_throw(2, Over::arena, [](const ProcessGroup& group) {
    CHECK_THROWS_WITH_AS(group.all_reduce(at::zeros({2}, at::kFloat8_e5m2)), doctest::Contains("Float8_e5m2"), Error);
    CHECK_THROWS_WITH_AS(group.all_reduce(at::Tensor()), doctest::Contains("undefined"), Error);
    CHECK_THROWS_WITH_AS(group.all_reduce({at::zeros({2}), at::zeros({2}, at::kInt)}),
                         doctest::Contains("tensor 1 is Int where tensor 0 is Float"), Error);
    at::Tensor whole = at::full({2}, 3, at::kInt);
    CHECK_THROWS_WITH_AS(group.all_reduce(whole, ReduceOp::avg), doctest::Contains("avg needs a floating-point type"),
                         Error);
    CHECK(at::equal(whole, at::full({2}, 3, at::kInt)));
    CHECK_THROWS_WITH_AS(group.broadcast(whole, 2), doctest::Contains("root 2"), Error);
    at::Tensor short_output = at::empty({3});
    CHECK_THROWS_AS(group.all_gather_into(short_output, at::zeros({2})), Error);
    group.barrier();
  });
}

TEST_CASE("shapes that differ between ranks are a desync on every rank that Work carries, and ends the group") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      const at::Tensor tensor = at::ones({group.rank() == 0 ? 8 : 4}), same = at::ones({4});
      const Work work = group.all_reduce_async(tensor, ReduceOp::sum, {.name = "layer1.weight"});
      const Work next = group.all_reduce_async(same, ReduceOp::sum, {.name = "layer2.weight"});
      CHECK_ERROR(error_of([&] { work.wait(Deadline::after(10s)); }), ErrorKind::desync, "of 8 float32, layer1.weight",
                  "of 4 float32, layer1.weight");
      for (const auto& later :
           {error_of([&] { next.wait(Deadline::after(10s)); }), error_of([&] { group.all_reduce(same); })}) {
        CHECK_ERROR(later, ErrorKind::desync, "of 8 float32, layer1.weight");
      }
      CHECK(at::equal(same, at::ones({4})));
    });
  }
}

// fault: 31
TEST_CASE("two calls without a name that one rank has swapped are warned of, or refused if that is wanted") {
  const auto swap = [](const ProcessGroup& group) {
    const at::Tensor a = at::ones({4}), b = at::ones({4});
    if (group.rank() == 0) {
      group.all_reduce(a);
      group.all_reduce(b);
    } else {
      group.all_reduce(b);
      group.all_reduce(a);
    }
  };
  const std::string warning = "If they are not meant to be the same call";
  for (const Over transport : kTransports) {
    {
      const CapturedLog log;
      run_group_or_throw(2, transport, [&](const ProcessGroup& group) {
        swap(group);
        swap(group);
      });
      const std::string text = log.text();
      const std::size_t first = text.find(warning), second = text.find(warning, first + 1);
      CHECK(second != std::string::npos);  // each rank once
      CHECK(text.find(warning, second + 1) == std::string::npos);
    }
    for (const auto& error : run_group(2, transport, swap, {.call_sites = CallSites::must_match})) {
      REQUIRE(error);
      CHECK_ERROR(error_of([&] { std::rethrow_exception(error); }), ErrorKind::desync, "called in line");
    }
  }
}

// feature: C-10
TEST_CASE("a per-call timeout counts, and the missing rank is named") {
  const auto errors = run_group(2, Over::arena, [](const ProcessGroup& group) {
    if (group.rank() == 0) group.barrier({.timeout = 100ms});
  });
  REQUIRE(errors[0]);
  CHECK_THROWS_WITH_AS(std::rethrow_exception(errors[0]), doctest::Contains("missing: rank 1"), Error);
}

// fault: 53
TEST_CASE("after a failure every call fails at once with the same reason, and ending the group again does nothing") {
  for (const Over transport : kTransports) {
    auto groups = local_groups(2, transport);
    const auto errors = run_ranks(2, [&](int rank) {
      const at::Tensor tensor = at::ones({4 + rank});
      groups[static_cast<std::size_t>(rank)].all_reduce(tensor);
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK_THROWS_WITH_AS(std::rethrow_exception(errors[rank]), doctest::Contains("of 5 float32"), Error);
      for (int again = 0; again < 2; ++again) {
        CHECK_THROWS_WITH_AS(groups[rank].barrier(), doctest::Contains("of 5 float32"), Error);
        groups[rank].abort("it is over anyway");
      }
      const Work work = groups[rank].barrier_async();
      CHECK_THROWS_WITH_AS(work.wait(Deadline::after(10s)), doctest::Contains("of 5 float32"), Error);
      CHECK_THROWS_AS(groups[rank].all_reduce(at::zeros({2}, at::kFloat8_e5m2)), Error);
    }
    const ProcessGroup copy = groups[0];
    groups.clear();
    CHECK_THROWS_AS(copy.barrier(), Error);
  }
}

TEST_CASE("a blocking call keeps its timeout behind an asynchronous one that hangs, and ends the group") {
  for (const Over transport : kTransports) {
    const auto groups = local_groups(2, transport, {.timeout = 30s});
    const Work hangs = groups[0].all_reduce_async(at::ones({10}));  // rank 1 does not come
    const TimePoint start = steady_clock().now();
    const Error late = error_of([&] { groups[0].barrier({.timeout = 20ms}); });
    CHECK_ERROR(late, ErrorKind::timeout, "barrier timed out on rank 0 before its turn came");
    const auto ended = [&](auto&& call) {
      CHECK_ERROR(error_of(call), ErrorKind::aborted, "barrier timed out on rank 0 before its turn came");
    };
    ended([&] { hangs.wait(); });
    ended([&] { groups[1].all_reduce(at::ones({10})); });
    CHECK(steady_clock().now() - start < 10s);
  }
}

// fault: 54
TEST_CASE("an asynchronous call returns at once while another thread has its turn") {
  const auto groups = local_groups(2, Over::arena, {.timeout = 30s});
  auto first = waiting_barrier(groups[0]);
  auto started = std::async(std::launch::async, [&] { return groups[0].barrier_async(); });
  const bool at_once = started.wait_for(10s) == std::future_status::ready;
  CHECK(at_once);
  if (at_once) CHECK_FALSE(started.get().is_completed());
  groups[1].barrier();
  groups[1].barrier();
  first.get();
}

TEST_CASE("an asynchronous call times out while it waits for its turn, and is recorded as failed") {
  const auto groups = local_groups(2, Over::arena, {.timeout = 30s});
  const auto first = waiting_barrier(groups[0]);
  const Work late = groups[0].barrier_async({.timeout = 1ms});
  CHECK_ERROR(error_of([&] { late.wait(Deadline::after(20s)); }), ErrorKind::timeout,
              "barrier timed out on rank 0 before its turn came");
  CHECK(last_record().state == FlightState::failed);
  CHECK_ERROR(error_of([&] { groups[1].barrier(); }), ErrorKind::aborted, "before its turn came");
}

// fault: 54
TEST_CASE("eight threads of each rank use one group, blocking and not, and every sum is right") {
  for (const Over transport : kTransports) {
    run_group_or_throw(2, transport, [](const ProcessGroup& group) {
      // All calls are alike, so whichever meet, they fit.
      run_ranks_or_throw(8, [&](int thread) {
        for (int i = 0; i < 50; ++i) {
          at::Tensor ones = at::ones({500});
          if ((thread + i) % 2 == 0) {
            group.all_reduce(ones);
          } else {
            group.all_reduce_async(ones).wait(Deadline::after(20s));
          }
          if (!at::equal(ones, at::full({500}, 2))) throw std::runtime_error("a wrong sum");
        }
      });
      group.barrier();
    });
  }
}

TEST_CASE("a monitored barrier is a group's, too") {
  for (const Over transport : kTransports) {
    run_group_or_throw(3, transport, [](const ProcessGroup& group) {
      group.monitored_barrier();
      if (group.rank() != 1) {
        CHECK_THROWS_WITH_AS(group.monitored_barrier({.timeout = 300ms}),
                             doctest::Contains("Rank 1 failed to pass monitoredBarrier in 300 ms"), Error);
      }
      group.barrier();
      if (group.rank() == 1) {  // the one it missed
        CHECK_THROWS_WITH_AS(group.monitored_barrier(), doctest::Contains("Rank 1 failed"), Error);
      }
      group.monitored_barrier();
    });
  }
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) { group.monitored_barrier(); });
}

// fault: 53
// feature: A-08
TEST_CASE("a group that is destroyed with work in flight ends it, on both sides") {
  auto groups = local_groups(2);
  at::Tensor tensor = at::ones({10});
  const Work work = groups[0].all_reduce_async(tensor);
  groups.erase(groups.begin());
  CHECK_THROWS_WITH_AS(work.wait(Deadline::after(10s)), doctest::Contains("destroyed with collectives in flight"),
                       Error);
  CHECK_THROWS_AS(groups[0].barrier(), Error);
}

TEST_CASE("the last handle of a group may lie in what one of its calls keeps alive") {
  for (const Over transport : kTransports) {
    auto groups = local_groups(2, transport);
    std::vector<float> memory(10, 1.0F);
    auto kept = std::make_shared<ProcessGroup>(groups[0]);
    at::Tensor tensor = at::from_blob(
        memory.data(), {10}, [kept](void*) mutable { kept.reset(); }, at::kFloat);
    kept.reset();
    groups[0].all_reduce_async(std::exchange(tensor, {}));
    groups.erase(groups.begin());
    groups[0].all_reduce(at::ones({10}));
    CHECK_THROWS_AS(groups[0].barrier({.timeout = 20s}), Error);  // the other rank has left
  }
}

TEST_CASE("a group of one computes what many would") {
  run_group_or_throw(1, Over::arena, [](const ProcessGroup& group) {
    at::Tensor tensor = at::full({300'000}, 5.0);
    group.all_reduce(tensor, ReduceOp::avg);
    CHECK(at::equal(tensor, at::full({300'000}, 5.0)));
    CHECK(at::equal(group.all_gather(tensor)[0], tensor));
    group.barrier();
  });
}

// fault: 49
TEST_CASE("a child that was forked is refused at once, whatever it calls, and can end the group without harm") {
  for (const Over transport : kTransports) {
    auto groups = local_groups(2, transport, {.timeout = 30s});
    const auto all_reduce = [&] {
      run_ranks_or_throw(2, [&](int rank) {
        at::Tensor tensor = at::ones({1000});
        groups[static_cast<std::size_t>(rank)].all_reduce_async(tensor).wait();
        groups[static_cast<std::size_t>(rank)].all_reduce(tensor);
        CHECK(tensor[999].item<float>() == 4);
      });
    };
    all_reduce();
    CHECK(exit_code_of_child([&] {
            at::Tensor tensor = at::ones({10});
            const std::function<void()> calls[] = {[&] { groups[0].all_reduce(tensor); },
                                                   [&] { groups[0].all_reduce_async(tensor).wait(); },
                                                   [&] { groups[0].barrier(); }, [&] { groups[0].send(tensor, 1); },
                                                   [&] { groups[0].empty({1000}).fill_(1); }};
            const TimePoint start = steady_clock().now();
            int refused = 0;
            for (const auto& call : calls) {
              try {
                call();
              } catch (const Error& error) {
                const std::string text = error.what();
                refused +=
                    text.find("a group was made in process ") == 0 && error.kind() == ErrorKind::invalid_argument;
              }
            }
            groups.clear();
            return refused == 5 && steady_clock().now() - start < 5s;
          }) == 0);
    all_reduce();
  }
}

}  // namespace process_group_test
