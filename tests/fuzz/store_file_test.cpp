#include <doctest/doctest.h>

#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/store/key_map.h"
#include "lockstep/comm/store/log_record.h"
#include "tests/fuzz/fuzz.h"

namespace store_file_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

LogFile file_of(ByteView bytes) {
  return {.read =
              [bytes](std::uint64_t offset, std::size_t count) {
                return Bytes(bytes.substr(std::min<std::size_t>(offset, bytes.size()), count));
              },
          .size = bytes.size(),
          .path = "/a/store"};
}

}  // namespace

TEST_CASE("store files") {
  Bytes file = encode(LogHeader{.pid = 17, .boot_id = "boot", .run_id = "run"});
  const Bytes set = make_log_record(encode_set("claim/1", "value"));
  file += set + make_log_record(encode_remove("claim/1")) + set;
  fuzz::run({.name = "store files",
             .seeds = {file, file + set.substr(0, 9)},
             .repair =
                 [&](Bytes& bytes, fuzz::Random& random) {
                   // A record of mutated bytes that is whole.
                   const std::size_t begin = random.below(bytes.size() + 1);
                   bytes = file + make_log_record(ByteView(bytes).substr(begin, random.below(200))) + set;
                 },
             .memory_limit = std::size_t{1} << 20,
             .parse =
                 [](ByteView bytes) {
                   const LogFile log = file_of(bytes);
                   const auto header = read_log_header(log);
                   if (!header || header->end == 0) return;
                   KeyMap map;
                   for (std::uint64_t at = header->end; at < bytes.size();) {
                     const auto payload = read_log_record(log, at);
                     if (!payload) return;
                     replay(*payload, map);
                     at += kFrameHeaderBytes + payload->size();
                   }
                 }});
}

TEST_CASE("changes in a store file") {
  KeyMap map;
  fuzz::run({.name = "changes in a store file",
             .seeds = {encode_set("claim/1", "value"), encode_remove("claim/1")},
             .memory_limit = std::size_t{16} << 20,  // the map grows, from input to input
             .parse = [&](ByteView bytes) { replay(bytes, map); }});
}

}  // namespace store_file_test
