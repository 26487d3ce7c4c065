#include "lockstep/launch/remote_order.h"

#include <doctest/doctest.h>

#include "tests/fuzz/fuzz.h"

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
