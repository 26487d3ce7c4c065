// Mutated inputs for one parser at a time: seeds that are right -> mutations -> parser. An input may be accepted, or
// refused with an Error of a kind that the parser may throw; anything else fails the test, and so does an input on
// which the parser takes longer than seconds, or more memory than its limit (measured under the address sanitizer).
// Everything follows from one number, so whatever fails can be had again: the failure says how.
//   LOCKSTEP_TEST_CASES=n    inputs for each parser
//   LOCKSTEP_FUZZ_SEED=n     other inputs
//   LOCKSTEP_FUZZ_CASE=n     this one input only, which is shown
//   LOCKSTEP_FUZZ_SECONDS=n  ends each parser after so long, and says how far it came
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "tests/graphs/dice.h"

namespace lockstep::fuzz {

// Every seed gives a good sequence.
class Random {
 public:
  explicit Random(std::uint64_t seed) : dice_(seed) {}
  std::uint64_t next() { return dice_.next(); }
  // Below n; 0 for 0.
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(next() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  testing::Dice dice_;
};

struct Subject {
  std::string name = {};
  std::vector<Bytes> seeds = {};
  std::vector<Bytes> words = {};  // that mean something to the parser
  // Makes a mutated input pass a check that hardly any would, such as that of a sum; called for half of them.
  std::function<void(Bytes&, Random&)> repair = {};
  std::vector<ErrorKind> kinds = {ErrorKind::corrupt_data};
  bool seeds_are_right = true;
  std::size_t most_bytes = std::size_t{16} << 10;     // of an input
  std::size_t memory_limit = std::size_t{256} << 10;  // at any one time
  std::function<void(ByteView)> parse = {};
};

// A doctest check.
void run(const Subject& subject);

// For tests of the harness.
Bytes mutated(const Subject& subject, Random& random);

}  // namespace lockstep::fuzz
