// What every Messenger does, over every kind of mesh.
#include "lockstep/comm/messages/messenger.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/unit/messages/messenger_fixture.h"

namespace messenger_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kBig = std::size_t{1} << 20;

template <class Body>
void for_all_kinds(int size, Body&& body) {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    Messengers messengers = make_messengers(kind.make(size));
    body(messengers);
  }
}

double cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

}  // namespace

TEST_CASE("messages with one tag arrive in the order in which they were sent, small and large ones mixed") {
  for_all_kinds(2, [](Messengers& messengers) {
    std::vector<Buffer> sent, received;
    std::vector<Request> transfers;
    for (std::size_t i = 0; i < 12; ++i) {
      sent.push_back(content(i % 3 == 1 ? 200'000 + i : i * 10, i));
      received.emplace_back(sent.back().size());
    }
    for (const Buffer& each : sent) transfers.push_back(messengers[0]->send(1, 5, each, soon()));
    for (Buffer& each : received) transfers.push_back(messengers[1]->receive(0, 5, each, soon()));
    for (const Request& each : transfers) each.wait(soon());
    CHECK(received == sent);
    CHECK(transfers.front().source() == 0);
    CHECK(transfers.back().source() == 0);
  });
}

TEST_CASE("large messages may be received in any order of their tags, in both directions at once") {
  for_all_kinds(2, [](Messengers& messengers) {
    constexpr std::uint64_t kCount = 8;
    run_ranks_or_throw(2, [&](int rank) {
      Messenger& mine = *messengers[static_cast<std::size_t>(rank)];
      const int other = 1 - rank;
      std::vector<Buffer> sent;
      std::vector<Request> transfers;
      for (std::uint64_t tag = 0; tag < kCount; ++tag) {
        sent.push_back(content(kBig + tag, tag + static_cast<std::uint64_t>(rank) * 100));
      }
      for (std::uint64_t tag = 0; tag < kCount; ++tag) transfers.push_back(mine.send(other, tag, sent[tag], soon()));
      for (std::uint64_t tag = kCount; tag-- > 0;) {
        Buffer received(kBig + tag);
        mine.receive(other, tag, received, soon()).wait();
        if (received != content(kBig + tag, tag + static_cast<std::uint64_t>(other) * 100)) {
          throw std::runtime_error("wrong bytes");
        }
      }
      for (const Request& each : transfers) each.wait();
    });
  });
}

TEST_CASE("a receive from any rank takes what arrived first, and tells from whom") {
  for_all_kinds(4, [](Messengers& messengers) {
    std::array<bool, 4> seen{};
    for (int round = 0; round < 3; ++round) {
      const int sender = 3 - round;
      Buffer sent = content(round == 2 ? kBig : 100, static_cast<std::uint64_t>(sender));
      Buffer received(sent.size());
      const Request receive = messengers[0]->receive(kAnySource, 9, received, soon());
      CHECK(receive.source() == -1);
      const Request send = messengers[static_cast<std::size_t>(sender)]->send(0, 9, sent, soon());
      receive.wait();
      send.wait();
      CHECK(receive.source() == sender);
      CHECK(received == sent);
      seen[static_cast<std::size_t>(sender)] = true;
    }
    CHECK(seen == std::array{false, true, true, true});
    // The tag-1 message behind it shows that the first one has arrived.
    const std::array<std::byte, 1> sent{};
    std::array<std::byte, 1> one{}, two{}, three{};
    messengers[2]->send(0, 9, sent, soon());
    messengers[2]->send(0, 1, sent, soon());
    messengers[0]->receive(2, 1, one, soon()).wait();
    const Request last = messengers[1]->send(0, 9, sent, soon());
    const Request first = messengers[0]->receive(kAnySource, 9, two, soon());
    const Request second = messengers[0]->receive(kAnySource, 9, three, soon());
    last.wait();
    second.wait();
    CHECK(first.source() == 2);
    CHECK(second.source() == 1);
  });
}

TEST_CASE("a rank sends to itself, before or after the receive, small and large") {
  for_all_kinds(1, [](Messengers& messengers) {
    Messenger& self = *messengers[0];
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1000}, kBig}) {
      const Buffer sent = content(bytes, bytes);
      Buffer early(bytes), late(bytes);
      const Request receive = self.receive(0, 1, early, soon());
      self.send(0, 1, sent, soon()).wait();
      receive.wait();
      const Request send = self.send(0, 1, sent, soon());
      if (bytes <= 1000) send.wait();
      const Request any = self.receive(kAnySource, 1, late, soon());
      any.wait();
      send.wait();
      CHECK(early == sent);
      CHECK(late == sent);
      CHECK(any.source() == 0);
    }
  });
}

TEST_CASE("messages of no bytes, and messages in pieces") {
  for_all_kinds(2, [](Messengers& messengers) {
    const Request receive = messengers[1]->receive(0, 3, MutableByteSpan(), soon());
    messengers[0]->send(1, 3, ByteSpan(), soon()).wait();
    receive.wait();
    for (const std::size_t bytes : {std::size_t{1000}, kBig}) {
      const Buffer sent = content(bytes, 1);
      Buffer received(bytes);
      const ByteSpan all(sent);
      const MutableByteSpan to(received);
      const Request send = messengers[0]->send(
          1, 3, std::vector<ByteSpan>{all.first(1), all.subspan(1, 0), all.subspan(1, 500), all.subspan(501)}, soon());
      messengers[1]->receive(0, 3, std::vector<MutableByteSpan>{to.first(700), to.subspan(700)}, soon()).wait();
      send.wait();
      CHECK(received == sent);
    }
  });
}

TEST_CASE("random messages between all pairs, all in flight at once, arrive whole and where they belong") {
  for_all_kinds(4, [](Messengers& messengers) {
    constexpr std::uint64_t kMessages = 120;
    const auto size_of = [](int from, int to, std::uint64_t i) -> std::size_t {
      std::mt19937_64 random(i * 16 + static_cast<std::uint64_t>(from * 4 + to));
      const std::uint64_t kind = random() % 10;
      return kind < 6 ? random() % 300 : kind < 9 ? random() % 70'000 : random() % 600'000;
    };
    run_ranks_or_throw(4, [&](int rank) {
      Messenger& mine = *messengers[static_cast<std::size_t>(rank)];
      struct Post {
        int peer;
        std::uint64_t i;
        bool sends;
        Buffer buffer;
      };
      std::vector<Post> posts;
      for (int peer = 0; peer < 4; ++peer) {
        for (std::uint64_t i = 0; i < kMessages / 4; ++i) {
          posts.push_back({peer, i, true, content(size_of(rank, peer, i), i)});
          posts.push_back({peer, i, false, Buffer(size_of(peer, rank, i))});
        }
      }
      std::shuffle(posts.begin(), posts.end(), std::mt19937(static_cast<unsigned>(rank)));
      std::vector<Request> transfers;
      for (Post& post : posts) {
        transfers.push_back(post.sends ? mine.send(post.peer, post.i, post.buffer, soon())
                                       : mine.receive(post.peer, post.i, post.buffer, soon()));
      }
      for (const Request& each : transfers) each.wait();
      for (const Post& post : posts) {
        if (post.buffer != content(post.buffer.size(), post.i)) throw std::runtime_error("wrong bytes");
      }
    });
  });
}

TEST_CASE("several threads share a messenger") {
  for_all_kinds(2, [](Messengers& messengers) {
    run_ranks_or_throw(8, [&](int index) {
      Messenger& mine = *messengers[static_cast<std::size_t>(index % 2)];
      const auto tag = static_cast<std::uint64_t>(index / 2);
      for (std::uint64_t i = 0; i < 50; ++i) {
        Buffer buffer = index % 2 == 0 ? content(300, i + tag) : Buffer(300);
        if (index % 2 == 0) {
          mine.send(1, tag, buffer, soon()).wait();
        } else {
          mine.receive(0, tag, buffer, soon()).wait();
          if (buffer != content(300, i + tag)) throw std::runtime_error("wrong bytes");
        }
      }
    });
  });
}

TEST_CASE("callbacks are called once, before or after completion, and may post further messages") {
  for_all_kinds(2, [](Messengers& messengers) {
    const std::array<std::byte, 4> ping{}, pong{std::byte{1}, std::byte{2}};
    std::array<std::byte, 4> heard{}, answer{};
    std::promise<void> done;
    const Request receive = messengers[1]->receive(0, 1, heard, soon());
    receive.on_done([&](std::exception_ptr error) {
      CHECK(error == nullptr);
      messengers[1]->send(0, 2, pong, soon());
      throw std::runtime_error("is logged");
    });
    const Request back = messengers[0]->receive(1, 2, answer, soon());
    back.on_done([&](std::exception_ptr) { done.set_value(); });
    messengers[0]->send(1, 1, ping, soon());
    REQUIRE(done.get_future().wait_for(20s) == std::future_status::ready);
    CHECK(answer == pong);
    CHECK(back.is_completed());
    int calls = 0;
    back.on_done([&](std::exception_ptr error) { calls += error == nullptr ? 1 : 100; });
    CHECK(calls == 1);
  });
}

TEST_CASE("what nobody receives takes a limited amount of memory, and still arrives in order") {
  for_all_kinds(2, [](Messengers& messengers) {
    constexpr std::size_t kBytes = 60'000;
    constexpr std::uint64_t kCount = 300;  // twice kUnexpectedBytes
    std::vector<Buffer> sent;
    std::vector<Request> transfers;
    for (std::uint64_t i = 0; i < kCount; ++i) sent.push_back(content(kBytes, i));
    for (const Buffer& each : sent) transfers.push_back(messengers[0]->send(1, 4, each, soon()));
    const std::array<std::byte, 1> end{};
    std::array<std::byte, 1> byte{};
    const Request last = messengers[0]->send(1, 5, end, soon());
    messengers[1]->receive(0, 5, byte, soon()).wait();  // everything before it has come, or its RTS has
    last.wait();
    std::size_t completed = 0;
    while (completed < kCount && transfers[completed].is_completed()) ++completed;
    CHECK(completed > 100);
    CHECK(completed * kBytes <= (std::size_t{8} << 20));
    for (const Buffer& each : sent) {
      Buffer received(kBytes);
      messengers[1]->receive(0, 4, received, soon()).wait();
      CHECK(received == each);
    }
    for (const Request& each : transfers) each.wait();
    // Its room is free again.
    for (std::uint64_t i = 0; i < kCount / 2; ++i) {
      const Request send = messengers[0]->send(1, 4, sent[i], soon());
      Buffer received(kBytes);
      messengers[1]->receive(0, 4, received, soon()).wait();
      send.wait();
    }
    messengers[0]->send(1, 4, sent[0], soon()).wait();
  });
}

TEST_CASE("messengers without messages use no processor time") {
  for_all_kinds(3, [](Messengers& messengers) {
    const std::array<std::byte, 1> sent{};
    std::array<std::byte, 1> received{};
    const Request pending = messengers[0]->receive(1, 1, received, soon());
    messengers[1]->send(0, 1, sent, soon()).wait();
    pending.wait();
    const double before = cpu_seconds();
    std::this_thread::sleep_for(200ms);  // the time in which nothing happens is what is measured
    CHECK(cpu_seconds() - before < 0.1);
  });
}

}  // namespace messenger_test
