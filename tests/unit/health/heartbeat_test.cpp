#include "lockstep/comm/health/heartbeat.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "lockstep/base/observe/process_recorder.h"
#include "tests/support/expect_error.h"
#include "tests/unit/messages/messenger_fixture.h"

namespace heartbeat_test {

namespace {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

FlightRecorder private_recorder() { return FlightRecorder(FlightMemory::make_private({})); }

FlightRecord record_of(std::uint64_t sequence) {
  FlightRecord record;
  record.set_operation("all_reduce");
  record.set_reduction("sum");
  record.dtype = DType::f32;
  record.count = 1024;
  record.sequence = sequence;
  return record;
}

// Asks until the answer is there.
PeerHealth health_of(Messenger& messenger, int rank) {
  for (const Deadline deadline = soon(); !deadline.expired(); std::this_thread::sleep_for(1ms)) {
    messenger.ask(rank);
    const PeerHealth health = messenger.health(rank);
    if (health.silent == 0ns && !health.place.empty()) return health;
  }
  return {};
}

}  // namespace

TEST_CASE("an answer tells the last collective, and ages until it is used") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 1, 2);
  const Heartbeat mine(2, log);
  Heartbeat theirs(2, {});
  const TimePoint now = steady_clock().now();
  CHECK(theirs.health(1, now).text() == "");
  CHECK(theirs.ask(1, now));
  CHECK_FALSE(theirs.ask(1, now));  // it owes an answer
  REQUIRE(theirs.take_answer(1, mine.answer(), now));
  CHECK(theirs.health(1, now).text() == "alive, seen in no collective yet");

  FlightTicket ticket = log.start(record_of(41));
  REQUIRE(theirs.take_answer(1, mine.answer(steady_clock().now() + 2s), now));
  CHECK(theirs.health(1, now + 1s).text() == "alive, inside all_reduce(sum) #41 of 1024 float32 for 3.0 s");
  CHECK(theirs.health(1, now).inside == 41);
  log.finish(ticket);
  REQUIRE(theirs.take_answer(1, mine.answer(steady_clock().now() + 2s), now));
  const PeerHealth left = theirs.health(1, now + 1200ms);
  CHECK(left.text() == "alive, last seen in all_reduce(sum) #41 of 1024 float32, left it 3.2 s ago");
  CHECK(left.silent == 0ns);
  CHECK(left.inside == 0);
}

// feature: K-02
TEST_CASE("an answer tells the name of the collective to a rank that has never heard it") {
  const std::string bucket = "gradient bucket 1 (fc.weight, fc.bias) of backward";
  FlightRecord record = record_of(7);
  record.name = note_name(bucket) + 17;
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 1, 2);
  log.start(record);
  Heartbeat theirs(2, {});
  Bytes answer = Heartbeat(2, log).answer();
  const std::size_t at = answer.find(bucket + " 17");
  REQUIRE(at != Bytes::npos);
  answer[at] = 'G';  // so that it is no name which this process has noted
  REQUIRE(theirs.take_answer(1, answer));
  CHECK(contains(theirs.health(1).text(),
                 "inside all_reduce(sum) #7 of 1024 float32, Gradient bucket 1 (fc.weight, "
                 "fc.bias) of backward 17 for "));
  answer[at] = '\n';
  CHECK_FALSE(theirs.take_answer(1, answer));
  answer[at] = 'g';
  answer.replace(at, Heartbeat::kNameBytes, Heartbeat::kNameBytes, 'x');  // without an end
  CHECK_FALSE(theirs.take_answer(1, answer));
}

TEST_CASE("who leaves is known to have left, and since when") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    Messengers messengers = make_messengers(kind.make(2));
    CHECK(messengers[0]->health(1).departure == Departure::none);
    const TimePoint before = steady_clock().now();
    messengers[1].reset();
    PeerHealth health;
    for (const Deadline deadline = soon(); health.departure == Departure::none && !deadline.expired();
         std::this_thread::sleep_for(1ms)) {
      health = messengers[0]->health(1);
    }
    CHECK(health.departure == Departure::left);
    CHECK(health.departed >= before);
  }
}

TEST_CASE("a rank that owes an answer for long is silent, and the last one tells where it was") {
  Heartbeat heartbeat(3, {});
  const TimePoint now = steady_clock().now();
  REQUIRE(heartbeat.ask(2, now));
  CHECK(heartbeat.health(2, now + 100ms).silent == 0ns);
  const PeerHealth silent = heartbeat.health(2, now + 3400ms);
  CHECK(silent.silent == 3400ms);
  CHECK(silent.text() == "silent for 3.4 s: it is stopped, or its host is down or overloaded");
  REQUIRE(heartbeat.take_answer(2, Heartbeat(3, {}).answer(now), now + 3500ms));
  CHECK(heartbeat.health(2, now + 3600ms).state == "alive");
  REQUIRE(heartbeat.ask(2, now + 4s));
  CHECK(contains(heartbeat.health(2, now + 6s).text(), "silent for 2.0 s"));
  CHECK(contains(heartbeat.health(2, now + 6s).text(),
                 "overloaded, seen in no collective yet, according to its answer 2.5 s ago"));
}

TEST_CASE("what is no answer is refused") {
  Heartbeat heartbeat(2, {});
  CHECK_FALSE(heartbeat.take_answer(1, ""));
  Bytes answer = Heartbeat(2, {}).answer();
  CHECK(heartbeat.take_answer(1, answer));
  CHECK_FALSE(heartbeat.take_answer(1, answer + "x"));
  // A record without a number, of a collective that is said to have begun.
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  log.start(record_of(1));
  answer = Heartbeat(2, log).answer();
  CHECK(heartbeat.take_answer(1, answer));
  answer.replace(0, sizeof(std::uint64_t), sizeof(std::uint64_t), '\0');
  CHECK_FALSE(heartbeat.take_answer(1, answer));
}

TEST_CASE("messengers answer for ranks that do nothing, over every mesh") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    FlightRecorder recorder = private_recorder();
    const FlightLog log(recorder, "world", 1, 3);
    auto meshes = kind.make(3);
    Messengers messengers;
    for (auto& mesh : meshes) messengers.push_back(std::make_unique<Messenger>(std::move(mesh), log));
    CHECK(health_of(*messengers[0], 1).text() == "alive, seen in no collective yet");
    FlightTicket ticket = log.start(record_of(5));
    messengers[2]->ask(2);  // oneself: nothing
    CHECK(contains(health_of(*messengers[2], 0).text(), "inside all_reduce(sum) #5"));
    log.finish(ticket);
    CHECK(contains(health_of(*messengers[1], 2).text(), "last seen in all_reduce(sum) #5"));
    // Messages are not disturbed.
    Buffer sent = content(300'000, 1), received(sent.size());
    const Request receive = messengers[1]->receive(0, 7, received, soon());
    messengers[1]->ask(0);
    messengers[0]->send(1, 7, sent, soon()).wait();
    receive.wait();
    CHECK(sent == received);
  }
}

}  // namespace heartbeat_test
