#include "lockstep/comm/store/reply_cache.h"

#include <doctest/doctest.h>

namespace reply_cache_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kStart{1000h};
using State = ReplyCache::State;

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
State serve(ReplyCache& cache, const StoreRequest& request, TimePoint now, const Bytes& value = "v") {
  const State past = cache.find(request, now).state;
  if (past == State::unseen) cache.insert(request, {.id = request.id, .status = StoreStatus::ok, .value = value}, now);
  return past;
}

}  // namespace

TEST_CASE("an answer is given again until its request has ended, in whatever order requests come") {
  ReplyCache cache;
  CHECK(serve(cache, request(7, 2, 1), kStart, "two") == State::unseen);
  CHECK(serve(cache, request(7, 1, 1), kStart, "one") == State::unseen);
  const auto again = cache.find(request(7, 1, 1, 3s), kStart + 3s);
  CHECK(again.state == State::replied);
  CHECK(again.reply->value == "one");
  CHECK(cache.find(request(7, 2, 1, 3s), kStart + 3s).reply->value == "two");
  CHECK(cache.replies() == 2);

  CHECK(serve(cache, request(7, 3, 2), kStart + 4s) == State::unseen);  // 1 has ended
  CHECK(cache.replies() == 2);
  CHECK(serve(cache, request(7, 1, 1, 3s), kStart + 4s) == State::ended);
  CHECK(serve(cache, request(7, 1, 1), kStart + 4s) == State::ended);
  CHECK(serve(cache, request(7, 2, 2, 3s), kStart + 4s) == State::replied);
  CHECK(serve(cache, request(8, 1, 1), kStart + 4s) == State::unseen);  // another client's first
}

TEST_CASE("a client that ends its requests takes no room") {
  ReplyCache cache;
  for (std::uint64_t id = 1; id < 100'000; ++id) CHECK(serve(cache, request(7, id, id), kStart) == State::unseen);
  CHECK(cache.replies() == 1);
  CHECK(cache.bytes() == 1);
  CHECK(cache.clients() == 1);
}

TEST_CASE("answers are bounded in number; what was forgotten is not done again") {
  ReplyCache cache;
  const std::uint64_t more = ReplyCache::kMaxReplies + 100;
  for (std::uint64_t id = 1; id <= more; ++id) serve(cache, request(7, id, 1), kStart);
  CHECK(cache.replies() == ReplyCache::kMaxReplies);
  CHECK(serve(cache, request(7, 1, 1, 1s), kStart) == State::forgotten);
  CHECK(serve(cache, request(7, 100, 1, 1s), kStart) == State::forgotten);
  CHECK(serve(cache, request(7, 101, 1, 1s), kStart) == State::replied);
  CHECK(serve(cache, request(7, more + 1, 1), kStart) == State::unseen);
}

TEST_CASE("answers are bounded in bytes") {
  ReplyCache cache;
  for (std::uint64_t client = 1; client <= 9; ++client) {
    serve(cache, request(client, 1, 1), kStart, Bytes(kMaxStoreValueBytes, 'x'));
  }
  CHECK(cache.bytes() <= ReplyCache::kMaxBytes);
  CHECK(cache.replies() == ReplyCache::kMaxBytes / kMaxStoreValueBytes);
  CHECK(serve(cache, request(1, 1, 1, 1s), kStart) == State::forgotten);
  CHECK(serve(cache, request(1, 2, 1), kStart) == State::unseen);
  CHECK(serve(cache, request(9, 1, 1, 1s), kStart) == State::replied);
}

TEST_CASE("silent clients are forgotten after a while, and only a request from before is in doubt") {
  ReplyCache cache;
  serve(cache, request(7, 1, 1), kStart);
  const TimePoint later = kStart + ReplyCache::kKeptFor;
  CHECK(serve(cache, request(7, 1, 1, 5min), later - 1ns) == State::replied);
  CHECK(serve(cache, request(7, 1, 1, ReplyCache::kKeptFor), later) == State::forgotten);
  CHECK(serve(cache, request(7, 1, 1, 24h), later + 12h) == State::forgotten);
  CHECK(serve(cache, request(7, 1, 1, Duration::max()), later) == State::forgotten);
  CHECK(cache.clients() == 0);
  // Sent again within seconds, after a long silence: had it been done, its client would be known.
  CHECK(serve(cache, request(7, 2, 2, 5s), later) == State::unseen);
  CHECK(serve(cache, request(9, 1, 1, 5s), later) == State::unseen);
}

TEST_CASE("clients are bounded in number, the longest silent is forgotten first") {
  ReplyCache cache;
  for (std::uint64_t client = 1; client <= ReplyCache::kMaxClients + 2; ++client) {
    serve(cache, request(client, 1, 1), kStart + std::chrono::milliseconds(client));
  }
  const TimePoint now = kStart + 10s;
  CHECK(serve(cache, request(1, 1, 1, 10s), now) == State::forgotten);
  CHECK(serve(cache, request(3, 1, 1, 10s), now) == State::replied);
  CHECK(cache.clients() <= ReplyCache::kMaxClients);
}

}  // namespace reply_cache_test
