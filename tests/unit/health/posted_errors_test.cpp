// What ranks say when their group ends, and what the others make of it.
#include "lockstep/health/posted_errors.h"

#include <doctest/doctest.h>

#include "lockstep/store/memory_store.h"
#include "tests/support/expect_error.h"

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

using Words = std::vector<std::optional<Word>>;
const std::vector<std::string> kMembers{"rank 0 (host a, pid 1)", "rank 1 (host a, pid 2)", "rank 2 (host b, pid 3)"};
const Error kLate(ErrorKind::timeout, "it took too long"), kClosed(ErrorKind::peer_lost, "closed by peer");

Word word(const Error& error) { return {error.kind(), error.what()}; }

}  // namespace

TEST_CASE("words are heard by all, and silence is not waited for beyond the deadline") {
  const auto store = std::make_shared<MemoryStore>();
  PostedErrors first(store, "world", 0, 2), second(store, "world", 1, 2), elsewhere(store, "part", 0, 2);
  const Deadline soon = Deadline::after(10s);
  CHECK_FALSE(first.any(soon));
  second.say({ErrorKind::aborted, "enough"}, soon);
  CHECK(first.any(soon));
  CHECK_FALSE(elsewhere.any(soon));
  Words heard = first.hear(Deadline::after(20ms));
  CHECK_FALSE(heard[0]);
  REQUIRE(heard[1]);
  CHECK(heard[1]->kind == ErrorKind::aborted);
  CHECK(heard[1]->text == "enough");
  first.say({ErrorKind::internal, std::string(100'000, 'x')}, soon);
  heard = second.hear(soon);
  REQUIRE(heard[0]);
  CHECK(heard[0]->text.size() < 10'000);
}

TEST_CASE("abort outranks a timeout, which outranks what came of it") {
  const Error abort(ErrorKind::aborted, "rank 2 ended the group: enough");
  CHECK_ERROR(verdict(kLate, 0, {word(kLate), word(kClosed), word(abort)}, kMembers), ErrorKind::aborted, "enough");
  CHECK_ERROR(verdict(kClosed, 0, {word(kClosed), word(kLate), word(kClosed)}, kMembers), ErrorKind::timeout,
              "it took too long");
  CHECK(verdict(abort, 2, {word(abort), word(kLate), word(abort)}, kMembers).kind() == ErrorKind::aborted);
}

TEST_CASE("who is silent is named") {
  CHECK_ERROR(verdict(kLate, 0, {word(kLate), word(kLate), std::nullopt}, kMembers), ErrorKind::timeout,
              "missing: rank 2 (host b, pid 3) (it took too long)");
  const Error lost = verdict(kClosed, 2, {word(kClosed), std::nullopt, word(kClosed)}, kMembers);
  CHECK_ERROR(lost, ErrorKind::peer_lost, "rank 1 (host a, pid 2) died or left the group (closed by peer)");
  CHECK(lost.detail().peer == 1);
  // The rank that the others gave up hears what they know already.
  const Word known{ErrorKind::timeout, "missing: rank 2 (host b, pid 3)"};
  CHECK_ERROR(verdict(kClosed, 2, {known, known, std::nullopt}, kMembers), ErrorKind::timeout, known.text);
  // The late rank itself may find that its time is up, too.
  CHECK_ERROR(verdict(kLate, 2, {known, known, word(kLate)}, kMembers), ErrorKind::timeout, known.text);
}

TEST_CASE("a word that no rank has left there is corrupt, and its rank is not silent") {
  const auto store = std::make_shared<MemoryStore>();
  PostedErrors words(store, "world", 0, 3);
  const Deadline soon = Deadline::after(10s);
  words.say({ErrorKind::timeout, "late"}, soon);
  store->set("last words/world/1", "zrubbish", soon);
  store->set("last words/world/2", "", soon);
  const Words heard = words.hear(soon);
  CHECK(heard[0]->kind == ErrorKind::timeout);
  CHECK(heard[1]->kind == ErrorKind::corrupt_data);
  CHECK(contains(heard[1]->text, "rank 1's last word: the kind of error is 74"));
  CHECK(heard[2]->kind == ErrorKind::corrupt_data);
}
