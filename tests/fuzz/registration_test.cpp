#include <doctest/doctest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/comm/health/posted_errors.h"
#include "lockstep/comm/rendezvous/registration_record.h"
#include "lockstep/comm/transport/arena_handle.h"
#include "lockstep/comm/transport/control_message.h"
#include "tests/fuzz/fuzz.h"

namespace registration_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr int kRanks = 4;

Registration registration(int rank) {
  Registration made;
  made.member.rank = rank;
  made.member.host = "host";
  made.member.node_id = "node 1";
  made.member.address = "10.0.0.1";
  made.member.pid = 811;
  made.member.process_start = 171;
  made.member.gpu = "1b4f";
  made.member.interfaces = {{"eth0", "10.0.0.1"}, {"eth1", "10.1.0.1"}};
  made.size = kRanks;
  made.process = "12345678";
  return made;
}

}  // namespace

TEST_CASE("registrations") {
  fuzz::run({.name = "registrations", .seeds = {encode(registration(2))}, .parse = [](ByteView bytes) {
               if (decode_registration(bytes, 2).member.rank != 2) throw std::logic_error("the rank of another");
             }});
  fuzz::run({.name = "registrations of any rank",
             .seeds = {encode(registration(0)), encode(registration(3))},
             .parse = [](ByteView bytes) {
               const Registration told = decode_registration(bytes, -1);
               if (told.member.rank < 0 || told.member.rank >= told.size) throw std::logic_error("no rank");
             }});
}

TEST_CASE("members of a world that has met") {
  std::vector<Registration> all;
  for (int rank = 0; rank < kRanks; ++rank) all.push_back(registration(rank));
  fuzz::run({.name = "members of a world", .seeds = {encode_members(all)}, .parse = [](ByteView bytes) {
               const std::vector<Registration> told = decode_members(bytes);
               for (std::size_t i = 0; i < told.size(); ++i) {
                 if (std::cmp_not_equal(told[i].member.rank, i)) throw std::logic_error("a rank out of place");
                 if (std::cmp_not_equal(told[i].size, told.size())) throw std::logic_error("a world of another size");
               }
             }});
}

TEST_CASE("errors that ranks post") {
  fuzz::run({.name = "errors that ranks post",
             .seeds = {encode_error(Error(ErrorKind::aborted, "rank 0 has given up", {.peer = 0})),
                       encode_error(Error(ErrorKind::peer_lost, "a rank has died"))},
             .parse = [](ByteView bytes) {
               const Error error = decode_error(bytes, "an error", 2);
               checked_error_kind(static_cast<int>(error.kind()), "the test");
               checked_rank_or_none(error.detail().peer, kMostRanks, "the test");
             }});
}

TEST_CASE("handles of shared memory") {
  fuzz::run({.name = "handles of shared memory",
             .seeds = {to_string(ArenaHandle{811, 5, 1 << 26, 0x1234567890abcdef}),
                       to_string(ArenaHandle{811, 17, 1 << 26, ~std::uint64_t{0}})},
             .words = {" ", "-1", "99999999999999999999"},
             .parse = [](ByteView bytes) { parse_arena_handle(bytes, 811); }});
}

TEST_CASE("control messages") {
  const Error error(ErrorKind::timeout, "rank 2 did not come", {.peer = 2});
  fuzz::run({.name = "control messages",
             .seeds = {encode(ControlKind::goodbye, 7, 4096), encode(ControlKind::bell, 7), encode_abort(7, error),
                       encode_announcement(7, {2, 5, "a call"})},
             .parse = [](ByteView bytes) {
               const ControlMessage message = decode_control(bytes, 1);
               if (message.kind == ControlKind::announcement) {
                 const int said_by = decode_announcement(message.body, 1, kRanks).rank;
                 checked_rank_or_none(said_by, kRanks, "the test");
               }
               if (message.kind != ControlKind::abort) return;
               const Error told = decode_abort(message, 1, 0, kRanks);
               checked_rank_or_none(told.detail().peer, kRanks, "the test");
               checked_error_kind(static_cast<int>(told.kind()), "the test");
             }});
}

}  // namespace registration_test
