// The messages between TcpStore and StoreServer, one per frame. request -> bytes -> request -> reply -> bytes -> reply.
// Pure. Decoding anything malformed is Error{corrupt_data}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::internal {

// The largest request compares one full value with another; a reply holds one value.
inline constexpr std::size_t kMaxStoreFrameBytes = 2 * kMaxStoreValueBytes + (std::size_t{1} << 20);

enum class StoreOp : std::uint8_t { set = 1, get, add, compare_set, wait, check, remove, last_will };
std::string_view to_string(StoreOp op);
// Whether executing it twice differs from executing it once.
constexpr bool changes_state(StoreOp op) {
  return op == StoreOp::set || op == StoreOp::add || op == StoreOp::compare_set || op == StoreOp::remove;
}

struct StoreRequest {
  StoreOp op = StoreOp::get;
  // A client's random number, and the number of its request: a request that is repeated after a lost connection carries
  // the same numbers, and is not executed twice.
  std::uint64_t client = 0;
  std::uint64_t id = 0;
  std::uint64_t ended = 0;             // the client needs no reply to changing requests with smaller ids
  Duration age = Duration::zero();     // since it was first sent, if it is a repetition
  Duration timeout = Duration::max();  // get and wait
  std::vector<std::string> keys;       // one, except for wait and check
  Bytes value;                         // set, last_will; compare_set's desired
  Bytes expected;                      // compare_set
  std::int64_t delta = 0;              // add
};

enum class StoreStatus : std::uint8_t { ok = 0, missing = 1, error = 2 };

struct StoreReply {
  std::uint64_t id = 0;
  StoreStatus status = StoreStatus::ok;
  ErrorKind kind = ErrorKind::internal;  // of an error
  Bytes value = {};                      // the result (add: decimal; check, remove: "0" or "1"), or the error's text
  std::vector<std::string> keys = {};    // missing: the keys that are not set
};

Bytes encode(const StoreRequest& request);
Bytes encode(const StoreReply& reply);
StoreRequest decode_store_request(ByteView encoded);
StoreReply decode_store_reply(ByteView encoded);

}  // namespace lockstep::internal
