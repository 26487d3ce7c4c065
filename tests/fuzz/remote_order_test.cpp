#include "lockstep/job/launch/remote_order.h"

#include <doctest/doctest.h>

#include <string>

#include "lockstep/job/launch/agent_marks.h"
#include "tests/fuzz/fuzz.h"

namespace remote_order_test {

using namespace lockstep;
using namespace lockstep::internal;

TEST_CASE("orders to a host of `lockstep run --hosts`") {
  const RemoteOrder order{.version = "0.1.0",
                          .host = "b",
                          .directory = "/home/me",
                          .token = Bytes(32, 't'),
                          .secret = "0123456789abcdef",
                          .environment = {{"LOCKSTEP_LOG", "debug"}, {"A", ""}},
                          .arguments = {"run", "--nnodes=2", "--", "./train"}};
  RemoteOrder shortest = order;
  shortest.environment.clear();
  shortest.arguments.clear();
  fuzz::run({.name = "order",
             .seeds = {encode(order), encode(shortest), encode(order) + "\x0f\x02"},
             .words = {"lockstep order 2\n", Bytes(4, '\0'), Bytes(4, '\xff')},
             .memory_limit = std::size_t{1} << 20,
             .parse = [](ByteView bytes) { decode_order(bytes); }});
}

TEST_CASE("marks among what an agent of `lockstep run --hosts` says") {
  const std::string secret = "0123456789abcdef";
  const Bytes joined = stage_mark(secret, AgentStage::joined);
  const Bytes ended = end_mark(secret, {.stage = AgentStage::joined, .status = {.code = 0, .signal = 9}});
  fuzz::run({.name = "marks",
             .seeds = {joined + "a line\n" + ended, "a\x1e line\n", ended},
             .words = {joined, ended, "\x1e", "\n", " ", "-1", "99999999999"},
             .memory_limit = std::size_t{1} << 20,
             .parse = [&](ByteView bytes) {
               MarkReader reader(secret);
               const std::string first = reader.take(bytes.substr(0, bytes.size() / 2));
               const std::string second = reader.take(bytes.substr(bytes.size() / 2));
               CHECK(first.size() + second.size() + reader.rest().size() <= bytes.size());
             }});
}

}  // namespace remote_order_test
