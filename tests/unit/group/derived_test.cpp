// Operations made of a group's own.
#include "lockstep/comm/group/derived.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/machine.h"
#include "lockstep/comm/group/objects.h"
#include "lockstep/comm/group/shape_message.h"
#include "tests/support/expect_error.h"
#include "tests/support/local_groups.h"

namespace derived_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

at::Tensor rows(std::int64_t count, int rank) { return at::arange(count * 2, at::kDouble).reshape({count, 2}) + rank; }

at::Tensor coo(std::vector<std::int64_t> indices, const at::Tensor& values, at::IntArrayRef sizes) {
  const auto elements = static_cast<std::int64_t>(indices.size());
  const at::Tensor index = at::tensor(indices, at::kLong).reshape({1, elements});
  return at::sparse_coo_tensor(index, values, sizes);
}

// Notes by when each collective of a rank has to end.
class NotingEngine final : public Engine {
 public:
  NotingEngine(std::unique_ptr<Engine> engine, std::vector<TimePoint>& ends)
      : engine_(std::move(engine)), ends_(ends) {}
  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string_view name() const override { return engine_->name(); }
  std::uint64_t post(const Collective& collective, Deadline deadline, std::shared_ptr<const void> keeps) override {
    return engine_->post(collective, deadline, std::move(keeps));
  }
  bool poll() override { return engine_->poll(); }
  void wait(std::uint64_t number, Deadline deadline) override { engine_->wait(number, deadline); }
  void run(const Collective& collective, Deadline deadline) override {
    ends_.push_back(deadline.when());
    engine_->run(collective, deadline);
  }
  void abort(std::string_view reason) noexcept override { engine_->abort(reason); }
  void end_with(const Error& error) noexcept override { engine_->end_with(error); }
  void check_peers() override { engine_->check_peers(); }

 private:
  std::unique_ptr<Engine> engine_;
  std::vector<TimePoint>& ends_;
};

}  // namespace

TEST_CASE("a call that takes several collectives has one deadline for all of them") {
  auto meshes = make_arena_meshes(2);
  const auto errors = run_ranks(2, [&](int rank) {
    std::vector<TimePoint> ends;
    auto engine = std::make_unique<LinkEngine>(std::move(meshes[static_cast<std::size_t>(rank)]), 0);
    const ProcessGroup group(std::make_unique<NotingEngine>(std::move(engine), ends), {.timeout = 1h});
    // How many collectives it took, all with one deadline. An all_to_all is two: the first tells counts.
    const auto steps = [&](const auto& call) {
      ends.clear();
      call();
      CHECK(std::ranges::count(ends, ends.front()) == std::ssize(ends));
      return ends.size();
    };
    CHECK(steps([&] { group.all_gather_v(rows(rank + 1, rank)); }) == 3);
    CHECK(steps([&] { group.all_reduce_sparse(coo({rank}, at::ones({1}), {3})); }) == 5);
    CHECK(steps([&] { group.all_gather_object(std::string("object")); }) == 3);
    CHECK(steps([&] { gather_bytes_to(group, "object", 0, 100); }) == 3);
    CHECK(steps([&] { broadcast_bytes(group, "object", 1); }) == 2);
    CHECK(steps([&] { scatter_bytes_from(group, {"one", "other"}, 0); }) == 3);
    const TimePoint soon = steady_clock().now() + 1min;
    steps([&] { group.all_gather_v(rows(1, rank), {.timeout = 1min}); });
    CHECK(ends.front() - soon < 30min);
    steps([&] { group.all_gather_v(rows(1, rank), {.deadline = Deadline::at(soon)}); });
    CHECK(ends.front() == soon);
  });
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// feature: C-07
TEST_CASE("all_gather_v: ranks give different numbers of rows") {
  as_group(3, [](const ProcessGroup& group) {
    const auto all = group.all_gather_v(rows(group.rank() * 4, group.rank()));
    REQUIRE(all.size() == 3);
    for (int rank = 0; rank < 3; ++rank) CHECK(at::equal(all[static_cast<std::size_t>(rank)], rows(rank * 4, rank)));
    const auto numbers = group.all_gather_v(at::full({}, group.rank(), at::kLong));
    CHECK(at::equal(at::cat(numbers), at::arange(3)));
  });
}

// feature: C-07
TEST_CASE("all_gather_v: other differences are refused with what every rank gave, and the group goes on") {
  as_group(3, [](const ProcessGroup& group) {
    const at::Tensor mine = group.rank() == 1 ? at::ones({5, 3}) : at::ones({4 + group.rank(), 2});
    CHECK_ERROR(error_of([&] { group.all_gather_v(mine); }), ErrorKind::invalid_argument,
                "must be the same on all ranks, except the first",
                "rank 0 gave Float (4, 2), rank 1 gave Float (5, 3), rank 2 gave Float (6, 2)");
    CHECK_ERROR(error_of([&] { group.all_gather_v(rows(2, 0).to(group.rank() == 2 ? at::kHalf : at::kInt)); }),
                ErrorKind::invalid_argument, "rank 1 gave Int (2, 2), rank 2 gave Half (2, 2)");
    CHECK(group.all_gather_v(rows(1, 0)).size() == 3);
  });
}

TEST_CASE("lists in one collective") {
  as_group(3, [](const ProcessGroup& group) {
    const int rank = group.rank();
    const auto all = group.all_gather_coalesced({rows(3, rank), rows(1, rank + 5)});
    REQUIRE(all.size() == 3);
    for (int peer = 0; peer < 3; ++peer) {
      CHECK(at::equal(all[static_cast<std::size_t>(peer)].at(0), rows(3, peer)));
      CHECK(at::equal(all[static_cast<std::size_t>(peer)].at(1), rows(1, peer + 5)));
    }
    const at::Tensor first = at::zeros({2, 2}, at::kDouble), second = at::zeros({1, 2}, at::kDouble);
    group.reduce_scatter_coalesced({first, second}, {rows(6, rank), rows(3, rank)}, ReduceOp::max);
    CHECK(at::equal(first, rows(6, 2).slice(0, 2 * rank, 2 * rank + 2)));
    CHECK(at::equal(second, rows(3, 2).slice(0, rank, rank + 1)));
    CHECK_ERROR(error_of([&] { group.reduce_scatter_coalesced({first}, {rows(5, 0)}); }), ErrorKind::invalid_argument,
                "input 0 has 10 elements and output 0 has 4");
    CHECK_ERROR(error_of([&] { group.reduce_scatter_coalesced({first}, {}); }), ErrorKind::invalid_argument,
                "0 inputs for 1 outputs");
  });
}

TEST_CASE("all_to_all_single cuts tensors by rows") {
  as_group(3, [](const ProcessGroup& group) {
    const int rank = group.rank();
    at::Tensor output = at::zeros({3, 2}, at::kDouble);
    group.all_to_all_single(output, rows(3, 10 * rank));
    for (int peer = 0; peer < 3; ++peer) CHECK(at::equal(output[peer], rows(3, 10 * peer)[rank]));
    // Rank r sends r rows to rank 0, one to rank 1, none to rank 2.
    const std::vector<std::int64_t> sent{rank, 1, 0};
    const std::vector<std::int64_t> received = rank == 0   ? std::vector<std::int64_t>{0, 1, 2}
                                               : rank == 1 ? std::vector<std::int64_t>{1, 1, 1}
                                                           : std::vector<std::int64_t>{0, 0, 0};
    output = at::zeros({std::accumulate(received.begin(), received.end(), std::int64_t{0}), 2}, at::kDouble);
    group.all_to_all_single(output, rows(rank + 1, 10 * rank), received, sent);
    if (rank == 0) CHECK(at::equal(output, at::cat({rows(1, 10), rows(2, 20)})));
    if (rank == 1) CHECK(at::equal(output, at::stack({rows(1, 0)[0], rows(2, 10)[1], rows(3, 20)[2]})));
    CHECK_ERROR(error_of([&] { group.all_to_all_single(rows(3, 0), rows(4, 0)); }), ErrorKind::invalid_argument,
                "the input has 4 rows, which cannot be split equally over 3 ranks");
    CHECK_ERROR(error_of([&] {
                  group.all_to_all_single(rows(3, 0), rows(3, 0), {1, 1, 2});
                }),
                ErrorKind::invalid_argument, "the splits of the output must be 3 row counts that add up to its 3 rows");
    CHECK_ERROR(error_of([&] {
                  group.all_to_all_single(rows(3, 0), rows(3, 0), {4, 1, -2});
                }),
                ErrorKind::invalid_argument, "the splits of the output");
  });
}

TEST_CASE("premul_sum multiplies before it sums") {
  as_group(2, [](const ProcessGroup& group) {
    const at::Tensor tensor = at::full({4}, 2.0);
    group.all_reduce_premul_sum(tensor, 0.5 * (group.rank() + 1));
    CHECK(at::equal(tensor, at::full({4}, 3.0)));
    group.all_reduce_premul_sum(tensor, at::full({1}, group.rank() == 0 ? 1.0 : 0.0));
    CHECK(at::equal(tensor, at::full({4}, 3.0)));
    CHECK_ERROR(error_of([&] { group.all_reduce_premul_sum(tensor, at::ones({2})); }), ErrorKind::invalid_argument,
                "premul_sum: the factor must be a tensor of one element");
  });
}

TEST_CASE("sparse tensors are added up in rank order") {
  as_group(3, [](const ProcessGroup& group) {
    const int rank = group.rank();
    // Rank r has r + 1 elements, the first of them twice; 1e8 shows the order of addition.
    std::vector<std::int64_t> indices{7, 7};
    std::vector<float> values{1e8F, rank == 1 ? -2e8F : 1.0F};
    for (int i = 0; i < rank; ++i) {
      indices.push_back(i);
      values.push_back(static_cast<float>(10 * rank + i));
    }
    const at::Tensor sum = group.all_reduce_sparse(coo(indices, at::tensor(values), {9}));
    CHECK(sum.is_coalesced());
    CHECK(at::equal(sum.indices(), at::tensor({0, 1, 7}, at::kLong).reshape({1, 3})));
    const float of_seven = (1e8F + 1.0F + (1e8F - 2e8F)) + (1e8F + 1.0F);
    CHECK(at::equal(sum.values(), at::tensor({10.0F + 20.0F, 21.0F, of_seven})));
    // With dense dimensions behind the sparse one, and nothing at all on one rank.
    const at::Tensor hybrid = rank == 1 ? coo({}, at::zeros({0, 2}), {5, 2}) : coo({rank}, at::ones({1, 2}), {5, 2});
    const at::Tensor expected = at::tensor({1.0F, 1.0F, 0.0F, 0.0F, 1.0F, 1.0F, 0.0F, 0.0F, 0.0F, 0.0F});
    CHECK(at::equal(group.all_reduce_sparse(hybrid).to_dense(), expected.reshape({5, 2})));
    // Of its sizes alone nobody could have the memory: an embedding is large, and a step uses few of its rows.
    constexpr std::int64_t kRows = std::int64_t{1} << 40;
    const at::Tensor few = group.all_reduce_sparse(coo({kRows - 1}, at::ones({1, 8}), {kRows, 8}));
    CHECK(at::equal(few.indices(), at::full({1, 1}, kRows - 1, at::kLong)));
    CHECK(at::equal(few.values(), at::full({1, 8}, 3.0F)));
    CHECK_ERROR(error_of([&] { group.all_reduce_sparse(coo({1}, at::ones({1}), {4 + rank})); }),
                ErrorKind::invalid_argument, "rank 0 gave Float (1, 1, 4), rank 1 gave Float (1, 1, 5)");
    CHECK_ERROR(error_of([&] { group.all_reduce_sparse(at::ones({3})); }), ErrorKind::invalid_argument,
                "all_reduce_sparse: the tensor is not sparse (COO)");
  });
}

TEST_CASE("a batch of messages: everybody sends and receives at once") {
  as_group(3, [](const ProcessGroup& group) {
    using Kind = MessageCall::Kind;
    const int rank = group.rank(), next = (rank + 1) % 3, before = (rank + 2) % 3;
    const at::Tensor from_before = at::zeros({300'000}), from_next = at::zeros({3});
    const auto works = group.batch_isend_irecv({{Kind::send, at::full({300'000}, rank, at::kFloat), next, 1},
                                                {Kind::send, at::full({3}, rank, at::kFloat), before, 2},
                                                {Kind::receive, from_before, before, 1},
                                                {Kind::receive, from_next, kAnySource, 2}});
    for (const Work& work : works) work.wait();
    CHECK(at::equal(from_before, at::full({300'000}, before, at::kFloat)));
    CHECK(at::equal(from_next, at::full({3}, next, at::kFloat)));
    CHECK(works[3].source() == next);
  });
}

TEST_CASE("float8 is moved and not reduced") {
  as_group(2, [](const ProcessGroup& group) {
    for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
      const at::Tensor mine = at::full({7}, group.rank() + 1.5).to(type);
      const auto all = group.all_gather(mine);
      CHECK(at::equal(all[1].to(at::kFloat), at::full({7}, 2.5)));
      group.broadcast(mine, 1);
      CHECK(at::equal(mine.to(at::kFloat), at::full({7}, 2.5)));
      CHECK_FALSE(group.supports(OpKind::all_reduce, ReduceOp::sum, type));
      CHECK(group.supports(OpKind::all_gather, ReduceOp::sum, type));
      CHECK_ERROR(error_of([&] { group.all_reduce(mine); }), ErrorKind::invalid_argument,
                  "can be moved but not reduced");
    }
  });
}

TEST_CASE("groups of parts are refused in words") {
  as_group(2, [](const ProcessGroup& group) {
    CHECK_ERROR(error_of([&] { group.split(0); }), ErrorKind::invalid_argument,
                "split: this group has no store, so it cannot be split");
    CHECK_ERROR(error_of([&] {
                  group.new_group({0, 0});
                }),
                ErrorKind::invalid_argument, "new_group: rank 0 is listed twice");
    CHECK_ERROR(error_of([&] {
                  group.new_group({0, 2});
                }),
                ErrorKind::invalid_argument, "new_group: 2 is not a rank of this group of 2 ranks");
    CHECK_ERROR(error_of([&] { group.new_group({-1}); }), ErrorKind::invalid_argument, "new_group: -1 is not a rank");
    group.barrier();
  });
}

TEST_CASE("what comes after a group was ended is told why") {
  as_group(2, [](const ProcessGroup& group) {
    group.barrier();
    // Rank 1 is out of the barrier as well when rank 0 ends the group.
    if (group.rank() == 1) group.send(at::ones({1}), 0);
    if (group.rank() == 0) {
      group.recv(at::ones({1}), 1);
      group.abort("the run is over");
    }
    const auto told = [](auto&& call) { CHECK_ERROR(error_of(call), ErrorKind::aborted, "the run is over"); };
    told([&] { group.all_reduce(at::ones({2})); });
    told([&] { group.all_reduce_async(at::ones({2})).wait(); });
    told([&] { group.barrier(); });
  });
}

TEST_CASE("an index outside of a sparse tensor is refused on all ranks alike") {
  as_group(3, [](const ProcessGroup& group) {
    for (const std::int64_t wrong : {std::int64_t{1} << 40, std::int64_t{9}, std::int64_t{-1}}) {
      const at::Tensor index = at::tensor({std::int64_t{3}, group.rank() == 1 ? wrong : 8}, at::kLong).reshape({1, 2});
      const at::Tensor sparse = at::_sparse_coo_tensor_unsafe(index, at::ones({2}), {9});
      CHECK_ERROR(error_of([&] { group.all_reduce_sparse(sparse); }), ErrorKind::invalid_argument,
                  "rank 1 gave index " + std::to_string(wrong) + " in dimension 0, which has size 9");
    }
    CHECK(group.all_reduce_sparse(coo({8}, at::ones({1}), {9})).to_dense()[8].item<float>() == 3);
  });
}

namespace {

// Rank 1 tells these numbers of its tensor, whatever it may be.
void tell_numbers(const ProcessGroup& group, std::vector<std::int64_t> numbers) {
  numbers.resize(kShapeNumbers);
  group.all_gather(at::tensor(numbers, at::kLong));
}

}  // namespace

TEST_CASE("what a rank tells that no tensor has is named on all ranks") {
  const auto told = [](const std::vector<std::int64_t>& numbers, const std::string& why) {
    as_group(2, [&](const ProcessGroup& group) {
      if (group.rank() == 1) {
        // Rank 0 may end the group before this rank is out of its first call.
        CHECK_ERROR(error_of([&] {
                      tell_numbers(group, numbers);
                      group.barrier();
                    }),
                    ErrorKind::aborted, "rank 1's shape", why);
        return;
      }
      const Error error = error_of([&] { group.all_gather_v(at::ones({2})); });
      CHECK_ERROR(error, ErrorKind::corrupt_data, "rank 1's shape in all_gather_v", why);
      CHECK(error.detail().peer == 1);
    });
  };
  told({6, std::int64_t{1} << 30}, "the number of dimensions is 1073741824");
  told({6, -1}, "the number of dimensions is -1");
  told({6, 1, -2}, "the shape is -2");
  told({6, 2, std::int64_t{1} << 40, std::int64_t{1} << 40}, "which takes more than");
  told({99, 1, 2}, "the type is 99");
  told({6, 1, static_cast<std::int64_t>(machine_memory_bytes() / sizeof(float) + 1)}, "which takes more than");
}

TEST_CASE("indices that were damaged on their way name the rank that they are from") {
  as_group(2, [](const ProcessGroup& group) {
    const std::string why = "rank 1's part of all_reduce_sparse: index 1099511627776 in dimension 0, which has size 9";
    if (group.rank() == 0) {
      CHECK_ERROR(error_of([&] { group.all_reduce_sparse(coo({2}, at::ones({1}), {9})); }), ErrorKind::corrupt_data,
                  why);
      return;
    }
    tell_numbers(group, {6, 3, 1, 1, 9});  // type; elements, sparse dimensions, size
    const at::Tensor index = at::full({1, 1}, std::int64_t{1} << 40, at::kLong), value = at::ones({1});
    group.all_to_all({at::empty({1, 1}, at::kLong), at::empty({1, 1}, at::kLong)}, {index, index});
    CHECK_ERROR(error_of([&] {
                  group.all_to_all({at::empty({1}), at::empty({1})}, {value, value});
                  group.barrier();
                }),
                ErrorKind::aborted, why);
  });
}

TEST_CASE("a batch with a wrong message sends none") {
  as_group(2, [](const ProcessGroup& group) {
    using Kind = MessageCall::Kind;
    if (group.rank() == 0) {
      CHECK_ERROR(error_of([&] {
                    group.batch_isend_irecv({{Kind::send, at::ones({1}), 1, 0}, {Kind::send, {}, 1, 0}});
                  }),
                  ErrorKind::invalid_argument, "batch_isend_irecv: tensor 1 is undefined");
      CHECK_ERROR(error_of([&] {
                    group.batch_isend_irecv({{Kind::send, at::ones({1}), 1, 0}, {Kind::receive, at::ones({1}), 2, 0}});
                  }),
                  ErrorKind::invalid_argument, "call 1: 2 is not a rank of this group of 2");
      group.send(at::full({1}, 5.0), 1);
    } else {
      const at::Tensor got = at::zeros({1});
      group.recv(got, 0);
      CHECK(got.item<float>() == 5);
    }
  });
}

}  // namespace derived_test
