#include "lockstep/job/elastic/agent_message.h"

#include <doctest/doctest.h>

#include "lockstep/base/error.h"

namespace agent_message_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

template <class Message>
Message through_wire(const Message& message) {
  const AgentMessage read = decode_agent_message(encode(message));
  REQUIRE(std::holds_alternative<Message>(read));
  return std::get<Message>(read);
}

}  // namespace

TEST_CASE("messages of agents are read as they were written") {
  const Hello hello = through_wire(Hello{"1.0", "job", "n1", 811, 8, 1, 4, 2, {"--max-restarts 3"}, "train", 4711});
  CHECK(hello.host == "n1");
  CHECK(hello.ranks == 8);
  CHECK(hello.node_rank == 2);
  CHECK(hello.program == "train");
  CHECK(hello.master_port == 4711);
  const StartRanks start =
      through_wire(StartRanks{3, 2, 1, 2, 8, 16, "10.0.0.1:4711", "10.0.0.2", 4712, 500, "rank 1 was killed"});
  CHECK(start.restart_reason == "rank 1 was killed");
  CHECK(start.first_rank == 8);
  CHECK(start.store == "10.0.0.1:4711");
  RankEnded ended{.generation = 3};
  ended.end.rank = 9;
  ended.end.status.signal = 9;
  ended.end.failure = {.text = "was killed", .fault = Fault::consequence, .blamed = 2, .lateness_ns = 350};
  ended.end.after_start = std::chrono::milliseconds(1500);
  ended.end.last_error_lines = {"one", "two"};
  ended.end.last_operation = "barrier #3";
  ended.end.failure.out_of_memory = true;
  ended.end.failure.limits = LimitUse{.limits = {.memory_bytes = 60 << 20, .cpus = 0.5},
                                      .memory_reached = true,
                                      .peak_bytes = 50 << 20,
                                      .periods = 9,
                                      .throttled = 8,
                                      .throttled_us = 7};
  const RankEnded read = through_wire(ended);
  CHECK(read.end.failure.fault == Fault::consequence);
  CHECK(read.end.failure.blamed == 2);
  CHECK(read.end.failure.lateness_ns == 350);
  CHECK(read.end.after_start == ended.end.after_start);
  CHECK(read.end.last_error_lines == ended.end.last_error_lines);
  CHECK(read.end.last_operation == "barrier #3");
  CHECK(read.end.failure.out_of_memory == true);
  REQUIRE(read.end.failure.limits);
  const LimitUse& use = *read.end.failure.limits;
  CHECK((use.limits.memory_bytes == 60 << 20 && use.limits.cpus == 0.5 && use.memory_reached));
  CHECK((use.peak_bytes == 50 << 20 && use.periods == 9 && use.throttled == 8 && use.throttled_us == 7));
  CHECK(through_wire(Output{RankStream::standard_error, "line\n"}).lines == "line\n");
  through_wire(EndRanks{});
  CHECK(through_wire(Farewell{137, "why"}).exit_code == 137);
}

TEST_CASE("questions from outside are read as they were written") {
  CHECK(through_wire(AskStatus{"night"}).rdzv_id == "night");
  CHECK(through_wire(StopJob{"night"}).rdzv_id == "night");
  through_wire(TellStatus{});
  const HostStatus status = through_wire(HostStatus{"n1", "[]"});
  CHECK(status.host == "n1");
  CHECK(status.ranks == "[]");
  const StatusDone done = through_wire(StatusDone{"a785", 16});
  CHECK(done.job_id == "a785");
  CHECK(done.world_size == 16);
}

TEST_CASE("what ranks count is read as it was written") {
  CHECK(through_wire(StartRanks{.wants_counts = true}).wants_counts);
  RankCounts counts{.generation = 2, .status = {.rank = 5, .state = RankState::running, .lateness_ns = 7}};
  counts.status.numbers = {.operations = 1,
                           .steps = 2,
                           .samples = 3,
                           .phase_ns = {4, 5, 6, 7, 8},
                           .waiting_ns = 9,
                           .communicating_ns = 10,
                           .hidden_ns = 11,
                           .checkpoints = 12,
                           .checkpoint_wall_ns = 13,
                           .values = {{"loss", -0.5}, {"lr", 1e-9}}};
  const RankCounts read = through_wire(counts);
  CHECK(read.generation == 2);
  CHECK(read.status.rank == 5);
  CHECK(read.status.state == RankState::running);
  CHECK(read.status.lateness_ns == 7);
  const RankNumbers& numbers = read.status.numbers;
  CHECK(numbers.operations == 1);
  CHECK(numbers.steps == 2);
  CHECK(numbers.samples == 3);
  CHECK(numbers.phase_ns == counts.status.numbers.phase_ns);
  CHECK(numbers.waiting_ns == 9);
  CHECK(numbers.communicating_ns == 10);
  CHECK(numbers.hidden_ns == 11);
  CHECK(numbers.checkpoints == 12);
  CHECK(numbers.checkpoint_wall_ns == 13);
  CHECK(numbers.values == counts.status.numbers.values);
  counts.status.numbers.values = {{"a b", 1}};
  const Bytes damaged = encode(counts);
  CHECK_THROWS_AS(decode_agent_message(damaged), Error);
}

TEST_CASE("what ranks do while nothing moves is read as it was written") {
  FlightRecord record;
  record.number = 7;
  record.sequence = 4;
  record.started_ns = 5'000'000;
  record.state = FlightState::running;
  RankStands stands{.generation = 2, .now_ns = 9'000'000};
  stands.sight.place = {.rank = 3, .is_stopped = true, .message_text = "recv from rank 1"};
  stands.sight.place.groups = {{.group = "world", .size = 4, .last = record, .text = "barrier #4"}, {.group = "part"}};
  stands.sight.place.message = record;
  stands.sight.pid = 811;
  stands.sight.state = 'T';
  stands.sight.cpu = 0.25;
  stands.sight.is_progress = true;
  const RankStands read = through_wire(stands);
  CHECK(read.now_ns == 9'000'000);
  REQUIRE(read.sight.place.groups.size() == 2);
  CHECK(read.sight.place.groups[0].is_inside());
  CHECK(read.sight.place.groups[0].sequence() == 4);
  CHECK(read.sight.place.groups[0].text == "barrier #4");
  CHECK_FALSE(read.sight.place.groups[1].last.has_value());
  CHECK(read.sight.place.message->started_ns == 5'000'000);
  CHECK(read.sight.place.message_text == "recv from rank 1");
  CHECK(read.sight.cpu == doctest::Approx(0.25));
  CHECK(read.sight.state == 'T');
  CHECK(read.sight.is_progress);
  CHECK(through_wire(HostStands{2, true, 1500, 7}).now_ns == 1500);
  CHECK(through_wire(HostStands{2, true, 1500, 7}).last_event_ns == 7);
  CHECK(through_wire(TellStacks{{3, 1}}).first == std::vector<int>{3, 1});
  CHECK(through_wire(RankStack{2, 3, {"SIGSEGV in its main thread:", "  #0 f()"}}).lines.size() == 2);
}

TEST_CASE("messages of agents that are damaged are refused") {
  const Bytes good = encode(StopRanks{15});
  CHECK_THROWS_AS(decode_agent_message({}), Error);
  CHECK_THROWS_AS(decode_agent_message(good + "x"), Error);
  CHECK_THROWS_AS(decode_agent_message(good.substr(0, good.size() - 1)), Error);
  CHECK_THROWS_AS(decode_agent_message("\xff"), Error);
  CHECK_THROWS_AS(decode_agent_message(encode(StopRanks{1000})), Error);
  CHECK_THROWS_AS(decode_agent_message(encode(StartRanks{0, 0, 0, 2, 9, 4, "", "", 0})), Error);
}

}  // namespace agent_message_test
