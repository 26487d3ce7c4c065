#include <doctest/doctest.h>

#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/net/wire.h"
#include "lockstep/comm/store/store_machine.h"
#include "lockstep/comm/store/store_protocol.h"
#include "tests/fuzz/fuzz.h"

namespace store_frames_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

std::vector<Bytes> requests() {
  std::vector<Bytes> seeds;
  StoreRequest request;
  request.client = 7;
  request.id = 9;
  request.ended = 8;
  request.keys = {"claim/1"};
  request.value = Bytes("a value");
  for (const StoreOp op : {StoreOp::set, StoreOp::get, StoreOp::add, StoreOp::compare_set, StoreOp::remove}) {
    request.op = op;
    seeds.push_back(encode(request));
  }
  request.keys = {"a", "b"};
  request.timeout = Duration(5);
  for (const StoreOp op : {StoreOp::wait, StoreOp::check}) {
    request.op = op;
    seeds.push_back(encode(request));
  }
  return seeds;
}

}  // namespace

TEST_CASE("store requests") {
  // One server hears them all.
  StoreMachine machine;
  TimePoint now;
  fuzz::run({.name = "store requests",
             .seeds = requests(),
             .memory_limit = std::size_t{16} << 20,  // its tables grow, from input to input
             .parse = [&](ByteView bytes) {
               const StoreRequest request = decode_store_request(bytes);
               machine.handle(1, request, now += Duration(1'000'000'000));
               machine.expire(now);
             }});
}

TEST_CASE("store replies") {
  fuzz::run({.name = "store replies",
             .seeds = {encode(StoreReply{.id = 3, .value = "value"}),
                       encode(StoreReply{.id = 3, .status = StoreStatus::missing, .keys = {"a", "b"}}),
                       encode(StoreReply{.id = 4, .status = StoreStatus::error, .value = "why"})},
             .parse = [](ByteView bytes) { decode_store_reply(bytes); }});
}

TEST_CASE("frames of a stream") {
  constexpr std::size_t kLimit = 4096;
  Bytes stream;
  for (const std::size_t length : {0, 1, 40, 300}) stream += frame(Bytes(length, 'x'), kLimit);
  fuzz::run({.name = "frames of a stream",
             .seeds = {frame("hello", kLimit), stream},
             .repair =
                 [](Bytes& bytes, fuzz::Random& random) {
                   // The first frame is whole again, whatever its length says.
                   const Bytes payload = bytes.substr(0, random.below(bytes.size() + 1));
                   bytes = frame(payload.substr(0, kLimit), kLimit) + bytes;
                 },
             .parse =
                 [](ByteView bytes) {
                   FrameBuffer frames(kLimit);
                   for (std::size_t at = 0; at < bytes.size(); at += 7) {
                     frames.append(bytes.substr(at, 7));
                     while (frames.next()) continue;
                   }
                 }});
}

}  // namespace store_frames_test
