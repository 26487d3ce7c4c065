#include <doctest/doctest.h>

#include <stdexcept>

#include "lockstep/elastic/agent_message.h"
#include "tests/fuzz/fuzz.h"

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("messages of agents") {
  RankEnded ended{.generation = 1};
  ended.end.failure.text = "exited with code 3";
  ended.end.last_error_lines = {"one", "two"};
  fuzz::run({.name = "messages of agents",
             .seeds = {encode(Hello{"1.0", "job", "n1", 811, 8, 1, 4, 2, "options", 4711}), encode(Welcome{1, "job"}),
                       encode(StartRanks{3, 2, 1, 2, 8, 16, "10.0.0.1:4711", "10.0.0.2", 4712}), encode(ended),
                       encode(Output{RankStream::standard_error, "a line\n"}), encode(Farewell{3, "why"}),
                       encode(Heartbeat{2500}), encode(StopRanks{15}), encode(HostDone{1, 4711})},
             .parse = [](ByteView bytes) {
               const AgentMessage message = decode_agent_message(bytes);
               if (encode(message) != bytes) throw std::logic_error("another message");
             }});
}
