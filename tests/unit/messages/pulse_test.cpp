#include "lockstep/messages/pulse.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "messenger_fixture.h"
#include "tests/support/expect_error.h"

namespace {

using namespace lockstep;
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
Sighting sighting_of(Messenger& messenger, int rank) {
  for (const Deadline deadline = soon(); !deadline.expired(); std::this_thread::sleep_for(1ms)) {
    messenger.ask(rank);
    const Sighting sighting = messenger.sighting(rank);
    if (sighting.silent == 0ns && !sighting.place.empty()) return sighting;
  }
  return {};
}

}  // namespace

TEST_CASE("an answer tells the last collective, and ages until it is used") {
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 1, 2);
  const Pulse mine(2, log);
  Pulse theirs(2, {});
  const TimePoint now = steady_clock().now();
  CHECK(theirs.sighting(1, now).text() == "");
  CHECK(theirs.ask(1, now));
  CHECK_FALSE(theirs.ask(1, now));  // it owes an answer
  REQUIRE(theirs.take_answer(1, mine.answer(), now));
  CHECK(theirs.sighting(1, now).text() == "alive, seen in no collective yet");

  FlightTicket ticket = log.start(record_of(41));
  REQUIRE(theirs.take_answer(1, mine.answer(steady_clock().now() + 2s), now));
  CHECK(theirs.sighting(1, now + 1s).text() == "alive, inside all_reduce(sum) #41 of 1024 float32 for 3.0 s");
  CHECK(theirs.sighting(1, now).inside == 41);
  log.finish(ticket);
  REQUIRE(theirs.take_answer(1, mine.answer(steady_clock().now() + 2s), now));
  const Sighting left = theirs.sighting(1, now + 1200ms);
  CHECK(left.text() == "alive, last seen in all_reduce(sum) #41 of 1024 float32, left it 3.2 s ago");
  CHECK(left.silent == 0ns);
  CHECK(left.inside == 0);
}

TEST_CASE("who leaves is known to have left, and since when") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    Messengers messengers = make_messengers(kind.make(2));
    CHECK(messengers[0]->sighting(1).departure == Departure::none);
    const TimePoint before = steady_clock().now();
    messengers[1].reset();
    Sighting sighting;
    for (const Deadline deadline = soon(); sighting.departure == Departure::none && !deadline.expired();
         std::this_thread::sleep_for(1ms)) {
      sighting = messengers[0]->sighting(1);
    }
    CHECK(sighting.departure == Departure::left);
    CHECK(sighting.departed >= before);
  }
}

TEST_CASE("a rank that owes an answer for long is silent, and the last one tells where it was") {
  Pulse pulse(3, {});
  const TimePoint now = steady_clock().now();
  REQUIRE(pulse.ask(2, now));
  CHECK(pulse.sighting(2, now + 100ms).silent == 0ns);
  const Sighting silent = pulse.sighting(2, now + 3400ms);
  CHECK(silent.silent == 3400ms);
  CHECK(silent.text() == "silent for 3.4 s: stopped, or its host is down or overloaded");
  REQUIRE(pulse.take_answer(2, Pulse(3, {}).answer(now), now + 3500ms));
  CHECK(pulse.sighting(2, now + 3600ms).state == "alive");
  REQUIRE(pulse.ask(2, now + 4s));
  CHECK(contains(pulse.sighting(2, now + 6s).text(), "silent for 2.0 s"));
  CHECK(
      contains(pulse.sighting(2, now + 6s).text(), "overloaded, seen in no collective yet, as it answered 2.5 s ago"));
}

TEST_CASE("what is no answer is refused") {
  Pulse pulse(2, {});
  CHECK_FALSE(pulse.take_answer(1, ""));
  Bytes answer = Pulse(2, {}).answer();
  CHECK(pulse.take_answer(1, answer));
  CHECK_FALSE(pulse.take_answer(1, answer + "x"));
  // A record without a number, of a collective that is said to have begun.
  FlightRecorder recorder = private_recorder();
  const FlightLog log(recorder, "world", 0, 2);
  log.start(record_of(1));
  answer = Pulse(2, log).answer();
  CHECK(pulse.take_answer(1, answer));
  answer.replace(0, sizeof(std::uint64_t), sizeof(std::uint64_t), '\0');
  CHECK_FALSE(pulse.take_answer(1, answer));
}

TEST_CASE("messengers answer for ranks that do nothing, over every mesh") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(kind.name);
    FlightRecorder recorder = private_recorder();
    const FlightLog log(recorder, "world", 1, 3);
    auto meshes = kind.make(3);
    Messengers messengers;
    for (auto& mesh : meshes) messengers.push_back(std::make_unique<Messenger>(std::move(mesh), log));
    CHECK(sighting_of(*messengers[0], 1).text() == "alive, seen in no collective yet");
    FlightTicket ticket = log.start(record_of(5));
    messengers[2]->ask(2);  // oneself: nothing
    CHECK(contains(sighting_of(*messengers[2], 0).text(), "inside all_reduce(sum) #5"));
    log.finish(ticket);
    CHECK(contains(sighting_of(*messengers[1], 2).text(), "last seen in all_reduce(sum) #5"));
    // Messages are not disturbed.
    Buffer sent = content(300'000, 1), received(sent.size());
    const Request receive = messengers[1]->receive(0, 7, received, soon());
    messengers[1]->ask(0);
    messengers[0]->send(1, 7, sent, soon()).wait();
    receive.wait();
    CHECK(sent == received);
  }
}
