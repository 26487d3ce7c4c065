#include "lockstep/train/checkpoint/state_digest.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>

namespace state_digest_test {

using namespace lockstep;

TEST_CASE("the SHA-256 of a state is over names, types, shapes and contents, in the order of names") {
  Checkpoint state;
  state.tensors["b"] = at::tensor({1.0F, -2.0F});
  state.tensors["a"] = at::arange(6, at::kLong).reshape({2, 3});
  state.metadata.emplace("step", "7");
  // What Python's hashlib gives for "1 a [2,3] Long\n" + the six integers + "1 b [2] Float\n" + the two numbers.
  const std::string expected = "2e00a6814f24eb87e14bf3588fda048e2f4e224decc54992142e858f73848e60";
  CHECK(sha256_of(state) == expected);
  state.metadata.clear();
  CHECK(sha256_of(state) == expected);

  Checkpoint other = state;
  other.tensors["a"] = at::arange(6, at::kLong).reshape({3, 2});
  CHECK(sha256_of(other) != expected);
  // The same numbers in another place of memory.
  other.tensors["a"] = at::tensor({0, 3, 1, 4, 2, 5}, at::kLong).reshape({3, 2}).t();
  CHECK(sha256_of(other) == expected);
  other.tensors["c"] = at::tensor({0.0F});
  CHECK(sha256_of(other) != expected);
}

TEST_CASE("a zero and a negative zero are different bits") {
  Checkpoint positive, negative;
  positive.tensors["x"] = at::tensor({0.0F});
  negative.tensors["x"] = at::tensor({-0.0F});
  CHECK(sha256_of(positive) != sha256_of(negative));
}

}  // namespace state_digest_test
