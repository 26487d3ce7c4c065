#include "lockstep/store/reply_cache.h"

#include <doctest/doctest.h>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kStart{1000h};
using Past = ReplyCache::Past;

StoreRequest request(std::uint64_t client, std::uint64_t id, std::uint64_t ended = 0, Duration age = 0s) {
  StoreRequest request;
  request.op = StoreOp::add;
  request.client = client;
  request.id = id;
  request.ended = ended;
  request.age = age;
  request.keys = {"n"};
  return request;
}

// What a server does: the past of a request, which is done if it has none.
Past serve(ReplyCache& memory, const StoreRequest& request, TimePoint now, const Bytes& value = "v") {
  const Past past = memory.recall(request, now).past;
  if (past == Past::none) memory.remember(request, {.id = request.id, .status = StoreStatus::ok, .value = value}, now);
  return past;
}

}  // namespace

TEST_CASE("an answer is given again until its request has ended, in whatever order requests come") {
  ReplyCache memory;
  CHECK(serve(memory, request(7, 2, 1), kStart, "two") == Past::none);
  CHECK(serve(memory, request(7, 1, 1), kStart, "one") == Past::none);
  const auto again = memory.recall(request(7, 1, 1, 3s), kStart + 3s);
  CHECK(again.past == Past::answered);
  CHECK(again.answer->value == "one");
  CHECK(memory.recall(request(7, 2, 1, 3s), kStart + 3s).answer->value == "two");
  CHECK(memory.answers() == 2);

  CHECK(serve(memory, request(7, 3, 2), kStart + 4s) == Past::none);  // 1 has ended
  CHECK(memory.answers() == 2);
  CHECK(serve(memory, request(7, 1, 1, 3s), kStart + 4s) == Past::ended);
  CHECK(serve(memory, request(7, 1, 1), kStart + 4s) == Past::ended);
  CHECK(serve(memory, request(7, 2, 2, 3s), kStart + 4s) == Past::answered);
  CHECK(serve(memory, request(8, 1, 1), kStart + 4s) == Past::none);  // another client's first
}

TEST_CASE("a client that ends its requests takes no room") {
  ReplyCache memory;
  for (std::uint64_t id = 1; id < 100'000; ++id) CHECK(serve(memory, request(7, id, id), kStart) == Past::none);
  CHECK(memory.answers() == 1);
  CHECK(memory.bytes() == 1);
  CHECK(memory.clients() == 1);
}

TEST_CASE("answers are bounded in number; what was forgotten is not done again") {
  ReplyCache memory;
  const std::uint64_t more = ReplyCache::kMaxAnswers + 100;
  for (std::uint64_t id = 1; id <= more; ++id) serve(memory, request(7, id, 1), kStart);
  CHECK(memory.answers() == ReplyCache::kMaxAnswers);
  CHECK(serve(memory, request(7, 1, 1, 1s), kStart) == Past::forgotten);
  CHECK(serve(memory, request(7, 100, 1, 1s), kStart) == Past::forgotten);
  CHECK(serve(memory, request(7, 101, 1, 1s), kStart) == Past::answered);
  CHECK(serve(memory, request(7, more + 1, 1), kStart) == Past::none);
}

TEST_CASE("answers are bounded in bytes") {
  ReplyCache memory;
  for (std::uint64_t client = 1; client <= 9; ++client) {
    serve(memory, request(client, 1, 1), kStart, Bytes(kMaxStoreValueBytes, 'x'));
  }
  CHECK(memory.bytes() <= ReplyCache::kMaxBytes);
  CHECK(memory.answers() == ReplyCache::kMaxBytes / kMaxStoreValueBytes);
  CHECK(serve(memory, request(1, 1, 1, 1s), kStart) == Past::forgotten);
  CHECK(serve(memory, request(1, 2, 1), kStart) == Past::none);
  CHECK(serve(memory, request(9, 1, 1, 1s), kStart) == Past::answered);
}

TEST_CASE("silent clients are forgotten after a while, and only a request from before is in doubt") {
  ReplyCache memory;
  serve(memory, request(7, 1, 1), kStart);
  const TimePoint later = kStart + ReplyCache::kKeptFor;
  CHECK(serve(memory, request(7, 1, 1, 5min), later - 1ns) == Past::answered);
  CHECK(serve(memory, request(7, 1, 1, ReplyCache::kKeptFor), later) == Past::forgotten);
  CHECK(serve(memory, request(7, 1, 1, 24h), later + 12h) == Past::forgotten);
  CHECK(serve(memory, request(7, 1, 1, Duration::max()), later) == Past::forgotten);
  CHECK(memory.clients() == 0);
  // Sent again within seconds, after a long silence: had it been done, its client would be known.
  CHECK(serve(memory, request(7, 2, 2, 5s), later) == Past::none);
  CHECK(serve(memory, request(9, 1, 1, 5s), later) == Past::none);
}

TEST_CASE("clients are bounded in number, the longest silent is forgotten first") {
  ReplyCache memory;
  for (std::uint64_t client = 1; client <= ReplyCache::kMaxClients + 2; ++client) {
    serve(memory, request(client, 1, 1), kStart + std::chrono::milliseconds(client));
  }
  const TimePoint now = kStart + 10s;
  CHECK(serve(memory, request(1, 1, 1, 10s), now) == Past::forgotten);
  CHECK(serve(memory, request(3, 1, 1, 10s), now) == Past::answered);
  CHECK(memory.clients() <= ReplyCache::kMaxClients);
}
