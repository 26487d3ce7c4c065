#include "lockstep/comm/collective/announced_calls.h"

#include <doctest/doctest.h>

#include "lockstep/comm/transport/mesh.h"
#include "tests/support/expect_error.h"

namespace announced_calls_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

CallSide call_of(int rank, CallReport report = {}) {
  CallSide call{.rank = rank, .who = {}, .signature = {.sequence = 41, .count = 8}, .account = std::move(report)};
  call.signature.check = check_of(call.signature);
  return call;
}

}  // namespace

TEST_CASE("announced calls arrive as they were, with texts of any length and with control characters") {
  const CallSide own = call_of(2, {.name = "loss", .failure = "backward: no memory"});
  const std::vector<CallSide> alone = decode_calls(encode_calls(std::vector{own}), 2, 4);
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].rank == 2);
  CHECK(alone[0].signature == own.signature);
  CHECK(alone[0].account.name == "loss");
  CHECK(alone[0].account.failure == "backward: no memory");

  const CallSide other = call_of(3, {.name = std::string(5000, 'n'), .failure = "a\nb" + std::string(5000, 'f')});
  const Bytes bytes = encode_calls(std::vector{call_of(0), other});
  CHECK(bytes.size() <= kMaxAnnouncementBytes);
  const std::vector<CallSide> both = decode_calls(bytes, 0, 4);
  REQUIRE(both.size() == 2);
  CHECK(both[0].account.name.empty());
  CHECK(both[1].rank == 3);
  CHECK(both[1].account.name == std::string(255, 'n'));
  CHECK(both[1].account.failure.starts_with("a?bfff"));
}

TEST_CASE("an announcement that no rank makes is refused, and names its sender") {
  const auto error = [](const Bytes& bytes) { return error_of([&] { decode_calls(bytes, 1, 3); }); };
  const Bytes good = encode_calls(std::vector{call_of(1), call_of(2)});
  CHECK_ERROR(error(""), ErrorKind::corrupt_data, "rank 1's announcement");
  CHECK_ERROR(error(good.substr(0, good.size() - 1)), ErrorKind::corrupt_data, "rank 1's announcement");
  CHECK_ERROR(error(good + good), ErrorKind::corrupt_data, "trailing bytes");
  CHECK_ERROR(error(encode_calls(std::vector{call_of(3)})), ErrorKind::corrupt_data, "the rank is 3");
  Bytes damaged = good;
  damaged[10] ^= 1;
  CHECK_ERROR(error(damaged), ErrorKind::corrupt_data, "the signature was damaged");
}

}  // namespace announced_calls_test
