#include "lockstep/comm/collective/collective.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collective/mismatch.h"
#include "tests/support/expect_error.h"

namespace collective_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

// The text of the Error{invalid_argument} that check_arguments throws, or "" if it throws nothing.
std::string refusal(const Collective& collective, int size = 4) {
  try {
    check_arguments(collective, 1, size);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::invalid_argument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a signature is described with what matters to its operation") {
  Signature signature{.sequence = 12, .count = 1024, .kind = OpKind::all_reduce, .dtype = DType::f32};
  CHECK(describe(signature) == "all_reduce(sum) #12 of 1024 float32");
  signature.kind = OpKind::broadcast;
  signature.root = 3;
  CHECK(describe(signature) == "broadcast #12 of 1024 float32 from rank 3");
  signature.kind = OpKind::all_gather;
  signature.name = 0xABCD;
  CHECK(describe(signature) == "all_gather #12 of 1024 float32, name 000000000000abcd");
  CHECK(describe(Signature{.sequence = 7, .kind = OpKind::barrier}) == "barrier #7");
}

TEST_CASE("a signature leaves out what does not matter to its operation") {
  Collective gather{.kind = OpKind::all_gather, .reduce = ReduceOp::max, .dtype = DType::i32, .root = 2, .count = 5};
  Collective other = gather;
  other.root = 1;
  other.reduce = ReduceOp::sum;
  CHECK(signature_of(gather, 1, 2) == signature_of(other, 1, 2));
  other.count = 6;
  CHECK(signature_of(gather, 1, 2) != signature_of(other, 1, 2));
  CHECK(signature_of(gather, 1, 2) != signature_of(gather, 2, 2));
  CHECK(signature_of(gather, 1, 2) != signature_of(gather, 1, 3));
  gather.kind = other.kind = OpKind::broadcast;
  other.count = gather.count;
  CHECK(signature_of(gather, 1, 2) != signature_of(other, 1, 2));
}

TEST_CASE("a desync error shows all sides, this rank's first") {
  const Signature mine{.sequence = 41, .count = 8, .kind = OpKind::all_reduce, .dtype = DType::f16};
  Signature theirs{.sequence = 41, .kind = OpKind::barrier};
  const auto error_of = [&] { return desync_error(0, {{2, "rank 2", theirs, {}}, {0, "rank 0", mine, {}}}); };
  const Error error = error_of();
  CHECK(error.kind() == ErrorKind::desync);
  CHECK(error.detail().rank == 0);
  CHECK(error.detail().peer == 2);
  CHECK(error.detail().sequence == 41);
  CHECK(error.detail().operation == "all_reduce");
  CHECK(std::string(error.what()) ==
        "ranks are in different collectives: rank 0 in all_reduce(sum) #41 of 8 float16; rank 2 in barrier #41 (all "
        "ranks must make the same calls in the same order)");
  CHECK(std::string(desync_error(3, {{0, "rank 0 (host a, pid 7)", mine, {.name = "loss", .failure = {}}},
                                     {1, "rank 1", theirs, {.name = {}, .failure = "backward: no memory"}},
                                     {2, "rank 2", mine, {}},
                                     {3, "rank 3", mine, {}}})
                        .what()) ==
        "ranks are in different collectives: rank 3 in all_reduce(sum) #41 of 8 float16; rank 1 in barrier #41 (with "
        "rank 3: 0, 2; all ranks must make the same calls in the same order); before that, rank 1 failed in backward: "
        "no memory");
  theirs = mine;
  theirs.generation = 3;
  CHECK(contains(error_of().what(), "rank 2 in all_reduce(sum) #41 of 8 float16, generation 3"));
  theirs = mine;
  theirs.root = 256;  // an all_reduce has none
  CHECK(contains(error_of().what(), "corrupted in transit"));
}

TEST_CASE("any bit of a signature changes its check") {
  const Signature signature{.sequence = 41, .count = 8, .name = 3, .kind = OpKind::all_reduce, .line = 12};
  for (std::size_t bit = 0; bit < 8 * sizeof(Signature); ++bit) {
    Signature damaged = signature;
    reinterpret_cast<unsigned char*>(&damaged)[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
    if (damaged.check == signature.check) CHECK(check_of(damaged) != check_of(signature));
  }
}

TEST_CASE("calls that differ by their line alone are told by it") {
  Signature mine{.sequence = 41, .count = 8, .kind = OpKind::all_reduce, .line = 12};
  Signature theirs = mine;
  theirs.line = 13;
  CHECK(mine == theirs);
  CHECK(is_other_line(theirs, mine));
  CHECK(contains(desync_error(0, {{0, "rank 0", mine, {}}, {1, "rank 1", theirs, {}}}).what(),
                 "rank 0 in all_reduce(sum) #41 of 8 uint8, called in line 12; rank 1 in all_reduce(sum) #41 of 8 "
                 "uint8, called in line 13 (all ranks must"));
  mine.kind = theirs.kind = OpKind::broadcast;  // its root may well have a branch of its own
  CHECK_FALSE(is_other_line(theirs, mine));
}

TEST_CASE("arguments that cannot work are refused with the reason") {
  alignas(8) std::byte memory[64] = {};
  const Segment whole[] = {{memory, 16}};
  Collective good{.kind = OpKind::all_reduce, .dtype = DType::f32, .count = 4, .output = whole};
  REQUIRE(refusal(good) == "");

  const auto with = [&](auto change) {
    Collective changed = good;
    change(changed);
    return refusal(changed);
  };
  CHECK(contains(with([](Collective& c) { c.count = 5; }), "output holds 4 elements of float32, but 5 are needed"));
  CHECK(contains(with([](Collective& c) { c.count = 3; }), "output holds more than 3 elements"));
  CHECK(contains(with([](Collective& c) { c.count = ~std::uint64_t{0} / 8; }), "exceed the address space"));
  CHECK(contains(with([](Collective& c) {
                   c.dtype = DType::i32;
                   c.reduce = ReduceOp::avg;
                 }),
                 "avg needs a floating-point type, not int32"));
  CHECK(contains(with([](Collective& c) { c.reduce = static_cast<ReduceOp>(9); }), "unknown reduction: 9"));
  CHECK(contains(with([](Collective& c) { c.order = static_cast<Order>(9); }), "unknown order: 9"));
  CHECK(contains(with([](Collective& c) { c.dtype = static_cast<DType>(77); }), "unknown element type: 77"));
  CHECK(contains(with([](Collective& c) {
                   c.kind = OpKind::broadcast;
                   c.root = 4;
                 }),
                 "root 4 is not a rank of this group of 4"));
  CHECK(contains(with([](Collective& c) {
                   c.kind = OpKind::broadcast;
                   c.root = -1;
                 }),
                 "root -1 is not a rank"));
  CHECK(contains(with([](Collective& c) { c.kind = OpKind::barrier; }), "barrier: it takes no data"));

  const Segment ragged[] = {{memory, 6}, {memory + 6, 10}};
  CHECK(contains(with([&](Collective& c) { c.output = ragged; }), "output segment 0 has 6 bytes"));
  const Segment odd[] = {{memory + 2, 16}};
  CHECK(contains(with([&](Collective& c) { c.output = odd; }), "not aligned to 4 bytes"));
  const Segment nowhere[] = {{nullptr, 16}};
  CHECK(contains(with([&](Collective& c) { c.output = nowhere; }), "is a null pointer"));
}

TEST_CASE("what can be reduced how") {
  CHECK(supports(ReduceOp::avg, DType::c64));
  CHECK(supports(ReduceOp::sum, DType::boolean));
  CHECK(supports(ReduceOp::bxor, DType::i16));
  CHECK_FALSE(supports(ReduceOp::avg, DType::i64));
  CHECK_FALSE(supports(ReduceOp::min, DType::c128));
  CHECK_FALSE(supports(ReduceOp::band, DType::f32));
  CHECK_FALSE(supports(ReduceOp::sum, DType::opaque));
  CHECK_FALSE(supports(OpKind::reduce, ReduceOp::max, DType::c64));
  CHECK(supports(OpKind::all_to_all, ReduceOp::max, DType::opaque));
  alignas(16) std::byte memory[16] = {};
  const Segment whole[] = {{memory, 16}};
  CHECK(contains(
      refusal({.kind = OpKind::reduce, .reduce = ReduceOp::max, .dtype = DType::c64, .count = 2, .output = whole}),
      "max is not defined for complex64"));
}

TEST_CASE("all_to_all needs the counts of all ranks, and its data to match them") {
  std::byte memory[64] = {};
  const std::uint64_t counts[] = {0, 1, 2, 3};  // this is rank 1: it sends 2 + 3 and gets 1 + 3
  const Segment five[] = {{memory, 5}}, four[] = {{memory + 10, 4}};
  Collective c{.kind = OpKind::all_to_all, .dtype = DType::u8, .input = five, .output = four, .counts = counts};
  CHECK(refusal(c, 2) == "");
  CHECK(contains(refusal(c, 3), "4 counts, but 9 are needed for 3 ranks"));
  c.input = four;
  CHECK(contains(refusal(c, 2), "input holds 4 elements of uint8, but 5 are needed"));
  c.input = five;
  c.output = five;
  CHECK(contains(refusal(c, 2), "output holds more than 4 elements"));
  const std::uint64_t huge[] = {0, 1, ~std::uint64_t{0}, 3};
  c.counts = huge;
  CHECK(contains(refusal(c, 2), "the counts exceed the address space at rank 0"));
}

TEST_CASE("gather and scatter need n times the data on one side") {
  std::vector<float> memory(100);
  const auto segment = [&](std::size_t floats) {
    return Segment{reinterpret_cast<std::byte*>(memory.data()), floats * 4};
  };
  const Segment one[] = {segment(3)};
  const Segment four[] = {segment(5), segment(0), segment(7)};
  CHECK(refusal({.kind = OpKind::all_gather, .dtype = DType::f32, .count = 3, .input = one, .output = four}) == "");
  CHECK(refusal({.kind = OpKind::reduce_scatter, .dtype = DType::f32, .count = 3, .input = four, .output = one}) == "");
  CHECK(contains(refusal({.kind = OpKind::all_gather, .dtype = DType::f32, .count = 3, .input = four, .output = four}),
                 "input holds more than 3 elements"));
  CHECK(
      contains(refusal({.kind = OpKind::reduce_scatter, .dtype = DType::f32, .count = 3, .input = one, .output = one}),
               "input holds 3 elements of float32, but 12 are needed"));
  CHECK(refusal({.kind = OpKind::barrier}) == "");
}

}  // namespace collective_test
