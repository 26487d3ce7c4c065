// What ranks post when their group ends, and what the others make of it.
#include "lockstep/comm/health/posted_errors.h"

#include <doctest/doctest.h>

#include "lockstep/comm/store/memory_store.h"
#include "tests/support/expect_error.h"

namespace posted_errors_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kMembers{"rank 0 (host a, pid 1)", "rank 1 (host a, pid 2)", "rank 2 (host b, pid 3)"};
const Error kLate(ErrorKind::timeout, "it took too long"), kClosed(ErrorKind::peer_lost, "closed by peer");

}  // namespace

TEST_CASE("an error travels with its kind, the rank that it is about, and its text") {
  const Origin origin("an error", 1);
  const Error error = decode_error(encode_error(Error(ErrorKind::aborted, "why", {.rank = 3, .peer = 1})), origin, 0);
  CHECK_ERROR(error, ErrorKind::aborted, "why");
  CHECK(error.detail().rank == 0);
  CHECK(error.detail().peer == 1);
  const auto decode = [&](const Error& wrong) {
    return error_of([&] { decode_error(encode_error(wrong), origin, 0, 4); });
  };
  CHECK_ERROR(decode(Error(ErrorKind{99}, "why")), ErrorKind::corrupt_data,
              "rank 1's an error: the kind of error is 99");
  CHECK_ERROR(decode(Error(ErrorKind::aborted, "why", {.peer = -2})), ErrorKind::corrupt_data, "the rank is -2");
  CHECK_ERROR(decode(Error(ErrorKind::aborted, "why", {.peer = 4})), ErrorKind::corrupt_data, "the rank is 4");
  CHECK_ERROR(decode(Error(ErrorKind::aborted, "why", {.rank = 4})), ErrorKind::corrupt_data, "the rank is 4");
}

TEST_CASE("for a rank that another one has lost, the error is about that other one") {
  const Error lost(ErrorKind::peer_lost, "rank 2 was lost", {.rank = 1, .peer = 2});
  const Error own = decode_error(encode_error(lost), "an error", 2);
  CHECK_ERROR(own, ErrorKind::peer_lost, "rank 1 considers this rank lost: rank 2 was lost");
  CHECK(own.detail().rank == 2);
  CHECK(own.detail().peer == 1);
  CHECK(decode_error(encode_error(lost), "an error", 0).detail().peer == 2);
  // What a store says of a rank whose connection has ended, and a rank of itself.
  CHECK(decode_error(encode_error(Error(ErrorKind::peer_lost, "it has ended", {.peer = 2})), "an error", 2)
            .detail()
            .peer == 2);
  CHECK(decode_error(encode_error(Error(ErrorKind::peer_lost, "me", {.rank = 2, .peer = 2})), "an error", 2)
            .detail()
            .peer == 2);
  // It lives and does not take part.
  CHECK(decode_error(encode_error(Error(ErrorKind::timeout, "late", {.rank = 1, .peer = 2})), "an error", 2)
            .detail()
            .peer == 2);
}

TEST_CASE("all ranks read what one has posted, and missing ranks are not waited for beyond the deadline") {
  const auto store = std::make_shared<MemoryStore>();
  PostedErrors first(store, "world", 0, 2), second(store, "world", 1, 2), elsewhere(store, "part", 0, 2);
  const Deadline soon = Deadline::after(10s);
  CHECK_FALSE(first.any(soon));
  second.post(Error(ErrorKind::aborted, "enough"), soon);
  CHECK(first.any(soon));
  CHECK_FALSE(elsewhere.any(soon));
  PostedErrors::All posted = first.read(Deadline::after(20ms));
  CHECK_FALSE(posted[0]);
  REQUIRE(posted[1]);
  CHECK_ERROR(*posted[1], ErrorKind::aborted, "enough");
  first.post(Error(ErrorKind::internal, std::string(100'000, 'x')), soon);
  posted = second.read(soon);
  REQUIRE(posted[0]);
  CHECK(std::string(posted[0]->what()) == std::string(kMaxErrorTextBytes, 'x'));
}

TEST_CASE("abort outranks a timeout, which outranks what came of it") {
  const Error abort(ErrorKind::aborted, "rank 2 ended the group: enough");
  CHECK_ERROR(root_cause(kLate, 0, {kLate, kClosed, abort}, kMembers), ErrorKind::aborted, "enough");
  CHECK_ERROR(root_cause(kClosed, 0, {kClosed, kLate, kClosed}, kMembers), ErrorKind::timeout, "it took too long");
  CHECK(root_cause(abort, 2, {abort, kLate, abort}, kMembers).kind() == ErrorKind::aborted);
}

TEST_CASE("a rank that has posted nothing is named") {
  CHECK_ERROR(root_cause(kLate, 0, {kLate, kLate, std::nullopt}, kMembers), ErrorKind::timeout,
              "missing: rank 2 (host b, pid 3) (it took too long)");
  const Error lost = root_cause(kClosed, 2, {kClosed, std::nullopt, kClosed}, kMembers);
  CHECK_ERROR(lost, ErrorKind::peer_lost, "rank 1 (host a, pid 2) died or left the group: closed by peer");
  CHECK(lost.detail().peer == 1);
  // The rank that the others gave up reads what they know already.
  const Error known(ErrorKind::timeout, "missing: rank 2 (host b, pid 3)");
  CHECK_ERROR(root_cause(kClosed, 2, {known, known, std::nullopt}, kMembers), ErrorKind::timeout, known.what());
  // The late rank itself may find that its time is up, too.
  CHECK_ERROR(root_cause(kLate, 2, {known, known, kLate}, kMembers), ErrorKind::timeout, known.what());
}

TEST_CASE("what no rank can have posted is corrupt, and its rank is not missing") {
  const auto store = std::make_shared<MemoryStore>();
  PostedErrors errors(store, "world", 0, 3);
  const Deadline soon = Deadline::after(10s);
  errors.post(Error(ErrorKind::timeout, "late"), soon);
  store->set("errors/world/1", "zrubbish", soon);
  store->set("errors/world/2", "", soon);
  const PostedErrors::All posted = errors.read(soon);
  CHECK(posted[0]->kind() == ErrorKind::timeout);
  CHECK_ERROR(*posted[1], ErrorKind::corrupt_data, "rank 1's posted error: the kind of error is 122");
  CHECK(posted[2]->kind() == ErrorKind::corrupt_data);
}

}  // namespace posted_errors_test
