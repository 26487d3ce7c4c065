#include <doctest/doctest.h>

#include <stdexcept>

#include "lockstep/job/elastic/agent_message.h"
#include "tests/fuzz/fuzz.h"

namespace agent_messages_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("messages of agents") {
  RankEnded ended{.generation = 1};
  ended.end.failure.text = "exited with code 3";
  ended.end.last_error_lines = {"one", "two"};
  ended.end.failure.lateness_ns = 350'000'000;
  RankStands stands{.generation = 2, .now_ns = 9'000'000};
  stands.sight.place.rank = 3;
  stands.sight.place.groups = {{.group = "world", .size = 4, .last = FlightRecord{.number = 1}, .text = "barrier #4"}};
  stands.sight.place.message = FlightRecord{.number = 2};
  stands.sight.cpu = 0.25;
  fuzz::run(
      {.name = "messages of agents",
       .seeds = {encode(Hello{"1.0", "job", "n1", 811, 8, 1, 4, 2, {"an option", "another"}, "train", 4711}),
                 encode(Welcome{1, "job"}), encode(StartRanks{3, 2, 1, 2, 8, 16, "10.0.0.1:4711", "10.0.0.2", 4712}),
                 encode(ended), encode(Output{RankStream::standard_error, "a line\n"}), encode(Farewell{3, "why"}),
                 encode(HostAlive{}), encode(KeepOut{"c", "10.0.0.3"}), encode(Reached{}),
                 encode(MeetAnew{{"1f", 3, 1, 2}}), encode(stands), encode(HostStands{2, true, 1500, 7}),
                 encode(TellStacks{{1, 3}}), encode(RankStack{2, 3, {"SIGSEGV", "  #0 f()"}}),
                 encode(RankCounts{1,
                                   {.rank = 2,
                                    .state = RankState::running,
                                    .numbers = {.steps = 5, .values = {{"loss", 0.5}}},
                                    .lateness_ns = 3}}),
                 encode(StopRanks{15}), encode(HostDone{1, 4711})},
       .parse = [](ByteView bytes) {
         const AgentMessage message = decode_agent_message(bytes);
         if (encode(message) != bytes) throw std::logic_error("another message");
       }});
}

}  // namespace agent_messages_test
