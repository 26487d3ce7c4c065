// The one error that says what became of a rank.
#include "lockstep/comm/health/peer_failure.h"

#include <doctest/doctest.h>

#include "tests/support/expect_error.h"

namespace peer_failure_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

const std::string kName = "rank 5 (host b, pid 71)";

}  // namespace

TEST_CASE("a rank that is gone is named, with what it did last, why it is gone and who waits for it") {
  const Error error = peer_lost({.peer = 5,
                                 .name = kName,
                                 .how = Departure::died,
                                 .when = "after 46 collectives",
                                 .why = "its process ended",
                                 .consequence = "rank 0 waits for it in barrier #47"},
                                0);
  CHECK(
      std::string(error.what()) ==
      "rank 5 (host b, pid 71) has ended after 46 collectives: its process ended; rank 0 waits for it in barrier #47");
  CHECK(error.kind() == ErrorKind::peer_lost);
  CHECK(error.detail().rank == 0);
  CHECK(error.detail().peer == 5);
  CHECK(describe({.peer = 5, .name = kName, .how = Departure::lost, .why = "reset"}) == kName + " was lost: reset");
  CHECK(describe({.peer = 5, .name = kName, .how = Departure::gone}) == kName + " died or left the group");
}

TEST_CASE("a plain departure is told from all other errors") {
  CHECK(is_plain_departure(peer_lost({.peer = 5, .name = kName, .how = Departure::left}, 0)));
  CHECK_FALSE(is_plain_departure(peer_lost({.peer = 5, .name = kName, .how = Departure::lost}, 0)));
  CHECK_FALSE(is_plain_departure(peer_lost({.peer = 5, .name = kName, .how = Departure::left, .when = "early"}, 0)));
  CHECK_FALSE(is_plain_departure(Error(ErrorKind::timeout, "it has left the group", {.peer = 5})));
}

TEST_CASE("a missing rank is shown with what is known of it") {
  CHECK(describe_missing(kName, "", {}) == kName);
  CHECK(describe_missing(kName, "has not entered it", {}) == kName + " has not entered it");
  const PeerHealth alive{.state = "alive", .place = "last seen in barrier #1"};
  CHECK(describe_missing(kName, "", alive) == kName + ": alive, last seen in barrier #1");
  CHECK(describe_missing(kName, "has not entered it", alive) ==
        kName + " has not entered it: alive, last seen in barrier #1");
  CHECK(describe_missing(kName, "", {.departure = Departure::died}) == kName + " has ended");
}

TEST_CASE("an error about another rank is told as it is, any other as one of the rank that leaves") {
  const Error lost = peer_lost({.peer = 5, .name = kName}, 0);
  CHECK_ERROR(error_for_peers("rank 0", 0, lost), ErrorKind::peer_lost, kName + " has ended");
  const Error own = error_for_peers("rank 0", 0, Error(ErrorKind::internal, "no memory", {.rank = 0}));
  CHECK_ERROR(own, ErrorKind::aborted, "rank 0 has given up: no memory");
  CHECK(own.detail().peer == 0);
  CHECK(error_for_peers("rank 0", 0, Error(ErrorKind::invalid_argument, "no")).kind() == ErrorKind::invalid_argument);
}

}  // namespace peer_failure_test
