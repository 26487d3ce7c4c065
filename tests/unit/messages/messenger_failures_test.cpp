// How messages fail, what the errors say, and what goes on afterwards.
#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <thread>

#include "lockstep/comm/messages/message_frame.h"
#include "lockstep/comm/messages/messenger.h"
#include "tests/support/expect_error.h"
#include "tests/support/shared_meshes.h"
#include "tests/unit/messages/messenger_fixture.h"

namespace messenger_failures_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace lockstep::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kBig = std::size_t{1} << 20;

Error failure_of(const Request& transfer) {
  return error_of([&] { transfer.wait(soon()); });
}

// One small message from rank 0 to rank 1 shows that they still get on.
void check_usable(Messengers& messengers) {
  const Buffer sent = content(100, 42);
  Buffer received(100);
  const Request send = messengers[0]->send(1, 99, sent, soon());
  messengers[1]->receive(0, 99, received, soon()).wait();
  send.wait();
  CHECK(received == sent);
}

// Rank 0 has a messenger; rank 1 is played by the test, byte by byte.
struct MessengerAndPuppet {
  MessengerAndPuppet() {
    auto meshes = make_arena_meshes(2);
    messenger = std::make_unique<Messenger>(std::move(meshes[0]));
    puppet = std::move(meshes[1]);
  }
  void send(ByteSpan data) {
    while (!data.empty()) {
      const std::size_t bytes = puppet->send_some(0, data);
      data = data.subspan(bytes);
      if (bytes == 0) puppet->wait(std::array{Mesh::Interest{0, false, true}}, soon());
    }
  }
  void send(const FrameHeader& header) { send(std::as_bytes(std::span(&header, 1))); }
  void receive(MutableByteSpan data) {
    while (!data.empty()) {
      const std::size_t bytes = puppet->recv_some(0, data);
      data = data.subspan(bytes);
      if (bytes == 0) puppet->wait(std::array{Mesh::Interest{0, true, false}}, soon());
    }
  }
  // The next one that is no question how this rank fares.
  FrameHeader receive_header() {
    FrameHeader header;
    do {
      receive(std::as_writable_bytes(std::span(&header, 1)));
    } while (header.kind == FrameKind::ask);
    return header;
  }
  std::string receive_reason() {
    const FrameHeader header = receive_header();
    CHECK(header.kind == FrameKind::fail);
    std::string reason(header.following_bytes, '\0');
    receive(std::as_writable_bytes(std::span(reason)));
    return reason;
  }

  std::unique_ptr<Messenger> messenger;
  std::unique_ptr<Mesh> puppet;
};

// Whether the message was half way when the deadline passed.
bool receive_half(int ms) {
  MessengerAndPuppet both;
  Buffer thousand(1000);
  std::array<std::byte, 4> four{};
  const Request half = both.messenger->receive(1, 7, thousand, after_ms(ms));
  const Request other = both.messenger->receive(1, 8, four, soon());
  both.send({.kind = FrameKind::eager, .tag = 7, .bytes = 1000, .following_bytes = 1000});
  both.send(std::span(thousand).first(10));
  const Error error = failure_of(half);
  if (contains(error.what(), "no message")) return false;
  CHECK_ERROR(error, ErrorKind::timeout, "receive of 1000 bytes with tag 7 from rank 1",
              "10 of 1000 bytes have arrived from rank 1");
  CHECK_ERROR(failure_of(other), ErrorKind::peer_lost, "receive of 4 bytes with tag 8",
              "the link between ranks 0 and 1 has failed", "10 of 1000 bytes");
  CHECK_ERROR(failure_of(both.messenger->send(1, 8, four, soon())), ErrorKind::peer_lost, "has failed");
  CHECK(contains(both.receive_reason(), "10 of 1000 bytes"));
  return true;
}

}  // namespace

TEST_CASE("ranks that do not exist are refused at once") {
  Messengers messengers = make_messengers(make_arena_meshes(2));
  std::array<std::byte, 4> buffer{};
  CHECK_ERROR(error_of([&] { messengers[0]->send(2, 7, buffer, soon()); }), ErrorKind::invalid_argument,
              "send of 4 bytes with tag 7 to rank 2", "group of 2");
  CHECK_ERROR(error_of([&] { messengers[0]->receive(-2, 7, buffer, soon()); }), ErrorKind::invalid_argument, "rank -2");
  CHECK_ERROR(error_of([&] { messengers[0]->send(kAnySource, 7, buffer, soon()); }), ErrorKind::invalid_argument,
              "any rank");
}

TEST_CASE("a message of another size than expected fails alone, with both sizes, peer and tag") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    Messengers messengers = make_messengers(kind.make(2));
    for (const bool receive_first : {true, false}) {
      for (const auto& [sent, expected] : {std::pair<std::size_t, std::size_t>{0, 4}, {4, 0}, {100, 10}, {kBig, 8}}) {
        const Buffer from(sent);
        Buffer to(expected);
        std::optional<Request> receive;
        if (receive_first) receive = messengers[1]->receive(0, 7, to, soon());
        const Request send = messengers[0]->send(1, 7, from, soon());
        if (!receive) receive = messengers[1]->receive(0, 7, to, soon());
        const Error error = failure_of(*receive);
        CHECK_ERROR(error, ErrorKind::desync,
                    "receive of " + std::to_string(expected) + " bytes with tag 7 from rank 0 failed",
                    "rank 0 sent " + std::to_string(sent) + " bytes");
        CHECK(error.detail().peer == 0);
        CHECK(receive->source() == -1);
        if (sent == kBig) {
          CHECK_ERROR(failure_of(send), ErrorKind::desync, "send of 1048576 bytes with tag 7 to rank 1",
                      "rank 1 expects 8 bytes");
        } else {
          send.wait();
        }
        check_usable(messengers);
      }
    }
    Messenger& self = *messengers[0];
    std::array<std::byte, 4> four{};
    const Buffer large(kBig);
    const Request receive = self.receive(0, 1, four, soon());
    const Request send = self.send(0, 1, large, soon());
    CHECK_ERROR(failure_of(receive), ErrorKind::desync, "sent 1048576 bytes", "expects 4");
    CHECK_ERROR(failure_of(send), ErrorKind::desync, "sent 1048576 bytes", "expects 4");
  }
}

TEST_CASE("deadlines of messages nobody came for say so and leave the messenger usable") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    Messengers messengers = make_messengers(kind.make(2));
    Buffer large = content(kBig, 1);
    std::array<std::byte, 4> four{};
    const Error receive = failure_of(messengers[0]->receive(1, 7, four, after_ms(30)));
    CHECK_ERROR(receive, ErrorKind::timeout, "receive of 4 bytes with tag 7 from rank 1 timed out after ",
                "no message with that tag has arrived; rank 1");
    CHECK(receive.detail().peer == 1);
    CHECK_ERROR(failure_of(messengers[0]->receive(kAnySource, 7, four, after_ms(10))), ErrorKind::timeout,
                "from any rank timed out");
    CHECK_ERROR(failure_of(messengers[0]->send(1, 8, large, after_ms(30))), ErrorKind::timeout,
                "send of 1048576 bytes with tag 8 to rank 1 timed out", "0 of 1048576 bytes were sent", "; rank 1");
    CHECK_ERROR(failure_of(messengers[0]->send(0, 8, large, after_ms(10))), ErrorKind::timeout, "to rank 0",
                "has not posted a receive for them");
    CHECK_ERROR(failure_of(messengers[0]->send(1, 8, large, after_ms(-1))), ErrorKind::timeout, "to rank 1");
    // The ones that were cancelled do not come; this one does.
    Buffer received(kBig);
    const Request late = messengers[1]->receive(0, 8, received, soon());
    const Request send = messengers[0]->send(1, 8, large, soon());
    late.wait();
    send.wait();
    CHECK(received == large);
    check_usable(messengers);
    const Request pending = messengers[0]->receive(1, 7, four, soon());
    CHECK_ERROR(error_of([&] { pending.wait(after_ms(5)); }), ErrorKind::timeout,
                "receive of 4 bytes with tag 7 from rank 1 did not complete before the deadline; it continues in the "
                "background");
    CHECK_FALSE(pending.is_completed());
    const std::array<std::byte, 4> sent{};
    const Request answer = messengers[1]->send(0, 7, sent, soon());
    pending.wait();
    answer.wait();
  }
}

TEST_CASE("a deadline tells how the other rank fares") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    const Messengers messengers = make_messengers(kind.make(2));
    const std::string alive = messengers[0]->peer_name(1) + ": alive, seen in no collective yet";
    std::array<std::byte, 4> four{};
    for (int ms = 60;; ms *= 4) {  // a busy machine may need longer to answer
      REQUIRE(ms < 20'000);
      const Error error = failure_of(messengers[0]->receive(1, 7, four, after_ms(ms)));
      REQUIRE(contains(error.what(), "no message with that tag has arrived; " + messengers[0]->peer_name(1)));
      if (contains(error.what(), alive)) break;
    }
  }
  const MessengerAndPuppet both;  // the puppet does not answer
  std::array<std::byte, 4> four{};
  CHECK_ERROR(failure_of(both.messenger->receive(1, 7, four, after_ms(600))), ErrorKind::timeout,
              "rank 1: silent for 0.", "s: it is stopped, or its host is down or overloaded");
}

TEST_CASE("a receive that ran into its deadline half way takes the link with it, and the peer is told") {
  for (int ms = 60;; ms *= 4) {  // a busy machine may need longer to get half way
    REQUIRE(ms < 20'000);
    if (receive_half(ms)) break;
  }
}

TEST_CASE("a send that ran into its deadline half way fills up its frame, so that the peer can read why") {
  MessengerAndPuppet both;
  const Buffer large = content(kBig, 3);
  const Request send = both.messenger->send(1, 7, large, after_ms(700));
  const FrameHeader rts = both.receive_header();
  CHECK(rts.kind == FrameKind::rts);
  CHECK(rts.bytes == kBig);
  both.send({.kind = FrameKind::cts, .id = rts.id});
  const FrameHeader data = both.receive_header();
  CHECK(data.kind == FrameKind::data);
  CHECK_ERROR(failure_of(send), ErrorKind::timeout, "of 1048576 bytes were sent");
  Buffer frame(data.following_bytes);
  both.receive(frame);
  CHECK(std::equal(frame.begin(), frame.begin() + 1000, large.begin()));
  CHECK(frame.back() == std::byte{0});
  CHECK(contains(both.receive_reason(), "send of 1048576 bytes with tag 7 to rank 1 timed out"));
}

TEST_CASE("a receive whose message is cancelled waits for the next one") {
  MessengerAndPuppet both;
  Buffer received(100'000);
  const Buffer sent = content(100'000, 1);
  const Request receive = both.messenger->receive(1, 7, received, soon());
  both.send({.kind = FrameKind::rts, .tag = 7, .id = 5, .bytes = 100'000});
  CHECK(both.receive_header().kind == FrameKind::cts);
  both.send({.kind = FrameKind::rts, .tag = 7, .id = 6, .bytes = 100'000});
  both.send({.kind = FrameKind::cancel, .tag = 7, .id = 5});
  const FrameHeader cts = both.receive_header();
  CHECK(cts.kind == FrameKind::cts);
  CHECK(cts.id == 6);
  both.send({.kind = FrameKind::data, .id = 6, .bytes = 0, .following_bytes = 100'000});
  both.send(sent);
  receive.wait(soon());
  CHECK(received == sent);
}

TEST_CASE("frames that break the rules fail the link, before anything is allocated for them") {
  const auto refused = [](auto&& play) {
    MessengerAndPuppet both;
    std::array<std::byte, 4> four{};
    const Request receive = both.messenger->receive(1, 7, four, soon());
    const Request any = both.messenger->receive(kAnySource, 7, four, soon());
    play(both);
    const Error error = failure_of(receive);
    CHECK_ERROR(error, ErrorKind::corrupt_data, "receive of 4 bytes with tag 7 from rank 1 failed: rank 1 sent");
    CHECK_ERROR(failure_of(any), ErrorKind::corrupt_data, "rank 1 sent");
    CHECK(contains(error.what(), both.receive_reason()));
    return std::string(error.what());
  };
  const auto one = [&](const FrameHeader& header) { return refused([&](auto& both) { both.send(header); }); };
  const std::uint64_t huge = ~std::uint64_t{0};
  CHECK(contains(one({.magic = 1}), "data that is not a message frame"));
  CHECK(contains(one({.kind = FrameKind{77}}), "kind 77"));
  CHECK(contains(one({.kind = FrameKind::eager, .bytes = huge, .following_bytes = huge}), "bytes in a frame of"));
  CHECK(contains(one({.kind = FrameKind::eager, .bytes = 8, .following_bytes = 9}), "8 bytes in a frame of 9"));
  CHECK(contains(one({.kind = FrameKind::data, .id = 3, .following_bytes = 9}), "before it was cleared to send"));
  CHECK(contains(one({.kind = FrameKind::cts, .following_bytes = 9}), "9 bytes after"));
  CHECK(contains(one({.kind = FrameKind::fail, .following_bytes = 4000}), "4000 bytes after"));
  CHECK(contains(one({.kind = FrameKind::credit, .bytes = 1}), "credit"));
  CHECK(contains(refused([](auto& both) {
                   const Buffer block(60'000);
                   for (int i = 0; i < 140; ++i) {
                     both.send({.kind = FrameKind::eager, .tag = 1, .bytes = 60'000, .following_bytes = 60'000});
                     if (i < 139) both.send(block);
                   }
                 }),
                 "more unexpected messages than its credit allows"));
  CHECK(contains(refused([](auto& both) {
                   for (std::uint64_t i = 0; i <= kMaxPendingRts; ++i) {
                     both.send({.kind = FrameKind::rts, .tag = 1, .id = i, .bytes = huge});
                   }
                 }),
                 "more requests to send than may be pending"));
  MessengerAndPuppet both;
  Buffer large(100'000);
  const Request receive = both.messenger->receive(1, 7, large, soon());
  both.send({.kind = FrameKind::rts, .tag = 7, .id = 5, .bytes = 100'000});
  CHECK(both.receive_header().kind == FrameKind::cts);
  both.send({.kind = FrameKind::data, .id = 5, .bytes = 10, .following_bytes = 10});
  CHECK_ERROR(failure_of(receive), ErrorKind::corrupt_data, "10 bytes at 10 of a message of 100000 bytes");
}

TEST_CASE("however often a peer asks how this rank fares, what waits to be sent to it does not grow") {
  MessengerAndPuppet both;
  // More than the stream holds, so that the messenger cannot answer one by one.
  constexpr int kQuestions = 3000;
  const std::vector<FrameHeader> questions(kQuestions, FrameHeader{.kind = FrameKind::ask});
  both.send(std::as_bytes(std::span(questions)));
  const std::array<std::byte, 4> four{};
  const Request last = both.messenger->send(1, 7, four, soon());
  int answers = 0;
  FrameHeader header;
  for (header = both.receive_header(); header.kind == FrameKind::answer; header = both.receive_header()) {
    Buffer answer(header.following_bytes);
    both.receive(answer);
    ++answers;
  }
  CHECK(header.kind == FrameKind::eager);
  CHECK(answers >= 1);
  CHECK(answers < kQuestions / 2);
  last.wait(soon());
}

TEST_CASE("a peer that is gone fails what needs it and nothing else; what it sent whole still arrives") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    Messengers messengers = make_messengers(kind.make(3));
    std::array<std::byte, 4> four{}, last{};
    const Buffer large(kBig);
    const std::array words{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
    const Request any = messengers[0]->receive(kAnySource, 1, four, soon());
    const Request send = messengers[0]->send(2, 7, large, soon());
    messengers[2]->send(0, 5, words, soon()).wait();
    messengers[2].reset();
    const Error error = failure_of(send);
    CHECK_ERROR(error, ErrorKind::peer_lost, "send of 1048576 bytes with tag 7 to rank 2 failed", "has left");
    CHECK(error.detail().peer == 2);
    CHECK_ERROR(failure_of(messengers[0]->receive(2, 6, last, soon())), ErrorKind::peer_lost, "from rank 2", "left");
    messengers[0]->receive(2, 5, last, soon()).wait();
    CHECK(last == words);
    check_usable(messengers);
    messengers[1]->send(0, 1, words, soon());
    any.wait();  // one that left on purpose is not missed
    CHECK(any.source() == 1);
    const Request nobody = messengers[0]->receive(kAnySource, 1, four, soon());
    messengers[1].reset();
    CHECK_ERROR(failure_of(nobody), ErrorKind::peer_lost, "from any rank failed");
    CHECK_ERROR(failure_of(messengers[0]->receive(kAnySource, 1, four, soon())), ErrorKind::peer_lost, "any rank");
    messengers[0]->send(0, 3, words, soon()).wait();
    messengers[0]->receive(0, 3, four, soon()).wait();
    CHECK(four == words);
  }
}

TEST_CASE("a peer that vanishes without a goodbye fails receives from any rank") {
  auto meshes = make_arena_meshes(3);
  Messengers messengers;
  messengers.push_back(std::make_unique<Messenger>(std::move(meshes[0])));
  messengers.push_back(std::make_unique<Messenger>(std::move(meshes[1])));
  std::array<std::byte, 4> four{};
  const Request any = messengers[0]->receive(kAnySource, 1, four, soon());
  meshes[2].reset();
  const Error error = failure_of(any);
  CHECK_ERROR(error, ErrorKind::peer_lost, "receive of 4 bytes with tag 1 from any rank failed: rank 2");
  CHECK(error.detail().peer == 2);
  check_usable(messengers);
}

TEST_CASE("a messenger that is destroyed ends its transfers and does not wait for anybody") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    auto meshes = kind.make(2);
    auto messenger = std::make_unique<Messenger>(std::move(meshes[0]));  // rank 1 never reads
    std::array<std::byte, 4> four{};
    const Buffer large(kBig), small(50'000);
    std::vector<Request> sends;
    for (int i = 0; i < 20; ++i) sends.push_back(messenger->send(1, 2, small, soon()));
    const Request receive = messenger->receive(kAnySource, 1, four, soon());
    const Request send = messenger->send(1, 1, large, soon());
    const Request self = messenger->send(0, 3, large, soon());
    const TimePoint start = steady_clock().now();
    messenger.reset();
    CHECK(seconds(steady_clock().now() - start) < 5);
    CHECK(receive.is_completed());
    for (const Request& each : {receive, send, self}) {
      CHECK_ERROR(failure_of(each), ErrorKind::aborted, "the messenger was destroyed before the transfer completed");
    }
    for (const Request& each : sends) CHECK(each.is_completed());
  }
}

TEST_CASE("what a callback posts while its messenger ends fails at once") {
  auto meshes = make_arena_meshes(2);
  std::optional<Request> second;
  std::array<std::byte, 4> four{};
  {
    Messenger messenger(std::move(meshes[0]));
    messenger.receive(1, 1, four, soon()).on_done([&](std::exception_ptr) {
      second = messenger.receive(1, 2, four, soon());
    });
  }
  REQUIRE(second);
  CHECK_ERROR(failure_of(*second), ErrorKind::aborted, "receive of 4 bytes with tag 2", "was destroyed");
}

TEST_CASE("abort ends all transfers of all ranks, now and later, with its reason") {
  for (const MeshKind& kind : kMeshKinds) {
    CAPTURE(std::string(kind.name));
    Messengers messengers = make_messengers(kind.make(3));
    std::array<std::byte, 4> four{};
    const Buffer large(kBig);
    std::vector<Request> transfers;
    for (const int rank : {0, 1, 2}) {
      Messenger& mine = *messengers[static_cast<std::size_t>(rank)];
      transfers.push_back(mine.receive((rank + 1) % 3, 1, four, soon()));
      transfers.push_back(mine.send((rank + 1) % 3, 2, large, soon()));
    }
    messengers[1]->abort("loss is NaN");
    for (const Request& each : transfers) {
      CHECK_ERROR(failure_of(each), ErrorKind::aborted, "rank 1 ended the group: loss is NaN");
    }
    for (const auto& messenger : messengers) {
      CHECK_ERROR(failure_of(messenger->send(messenger->rank(), 1, four, soon())), ErrorKind::aborted, "loss is NaN");
    }
  }
}

TEST_CASE("an RTS that comes twice is damage") {
  MessengerAndPuppet both;
  Buffer received(kBig);
  const Request receive = both.messenger->receive(1, 7, received, soon());
  for (int i = 0; i < 2; ++i) both.send({.kind = FrameKind::rts, .tag = 7, .id = 3, .bytes = kBig});
  CHECK_ERROR(failure_of(receive), ErrorKind::corrupt_data, "rank 1 sent request 3 to send twice");
}

TEST_CASE("a receive from any rank fails if a rank has died before it was connected for data") {
  SharedRanks links = connect_ranks_of_test(4, 1, Checksums::on, kWhenNeeded);
  Messenger messenger(open_group(links, "messages", {0, 1, 2, 3}, 0));
  const auto other = open_group(links, "messages", {0, 1, 2, 3}, 2);
  links[1].reset();  // says no goodbye to a group that it has not opened
  Buffer space(1);
  CHECK_ERROR(failure_of(messenger.receive(kAnySource, 1, space, soon())), ErrorKind::peer_lost, "from any rank",
              "rank 1 was lost");
}

TEST_CASE("a receive from any rank goes on if a rank leaves while they connect") {
  for (int i = 0; i < 20; ++i) {
    Messengers all = make_messengers(make_tcp_meshes(8, 1, 0, Checksums::on, kWhenNeeded));
    Buffer space(1);
    const Buffer sent = content(1, 1);
    const Request receive = all[0]->receive(kAnySource, 1, space, soon());
    for (int turn = 0; turn < 50 * i; ++turn) std::this_thread::yield();
    all[3].reset();
    all[2]->send(0, 1, sent, soon()).wait();
    receive.wait();
    CHECK(space == sent);
  }
}

}  // namespace messenger_failures_test
