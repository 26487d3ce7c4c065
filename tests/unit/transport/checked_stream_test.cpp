// Blocks with checksums over a connection: what arrives is what was sent, or an error.
#include "lockstep/comm/transport/checked_stream.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/comm/net/socket.h"
#include "tests/support/expect_error.h"
#include "tests/support/socket_pair.h"

namespace checked_stream_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

using Buffer = std::vector<std::byte>;

Buffer random_bytes(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  Buffer bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

constexpr GroupId kGroup = 0x1234'5678'9abc'def0;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

// What a sender puts on the wire for these pieces, each a block of its own.
Buffer wire_of(const std::vector<Buffer>& pieces, Checksums checksums = Checksums::on) {
  auto [sending, receiving] = make_socket_pair();
  const int roomy = 1 << 20;
  ::setsockopt(sending.get(), SOL_SOCKET, SO_SNDBUF, &roomy, sizeof roomy);
  CheckedSender sender(checksums);
  Buffer wire;
  for (const Buffer& piece : pieces) {
    REQUIRE(sender.send(sending.get(), kGroup, piece) == static_cast<ssize_t>(piece.size()));
    const std::size_t before = wire.size();
    wire.resize(before + sizeof(BlockHead) + piece.size());
    recv_all(receiving.get(), std::span(wire).subspan(before), soon());
  }
  return wire;
}

// What a receiver makes of it, asked for `step` bytes at a time, until there is no more. Throws as it does.
Buffer read_back(const Buffer& wire, std::size_t step, Checksums checksums = Checksums::on) {
  auto [sending, receiving] = make_socket_pair();
  std::jthread feeding([&, fd = std::move(sending)] { send_all(fd.get(), wire, soon()); });
  CheckedReceiver receiver(checksums);
  Buffer received, space(step);
  for (;;) {
    const ssize_t count = receiver.receive(receiving.get(), kGroup, space).count;
    if (count == 0) return received;
    if (count > 0) received.insert(received.end(), space.begin(), space.begin() + count);
    if (count < 0) {
      REQUIRE(errno == EAGAIN);
      std::this_thread::yield();
    }
  }
}

Buffer joined(const std::vector<Buffer>& pieces) {
  Buffer all;
  for (const Buffer& each : pieces) all.insert(all.end(), each.begin(), each.end());
  return all;
}

}  // namespace

TEST_CASE("what was sent arrives, whatever the sizes of pieces and of the room for them") {
  const std::vector<Buffer> pieces{random_bytes(1, 1),       random_bytes(44, 2),      random_bytes(8180, 3),
                                   random_bytes(70'000, 4),  random_bytes(131'072, 5), random_bytes(3, 6),
                                   random_bytes(131'072, 7), random_bytes(20'000, 8)};
  const Buffer wire = wire_of(pieces);
  for (const std::size_t step : {1UL, 100UL, 8192UL, 65'536UL, 131'072UL, 1'000'000UL}) {
    CAPTURE(step);
    CHECK(read_back(wire, step) == joined(pieces));
    CHECK(read_back(wire_of(pieces, Checksums::off), step, Checksums::off) == joined(pieces));
  }
}

TEST_CASE("blocks that the connection takes in parts arrive whole, also where room is scarce on both sides") {
  for (unsigned seed = 1; seed < 9; ++seed) {
    const Checksums checksums = seed % 2 == 0 ? Checksums::on : Checksums::off;
    auto [sending, receiving] = make_socket_pair();
    const int small = 4096;
    ::setsockopt(sending.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    const Buffer data = random_bytes(1'500'000, seed);
    std::jthread feeding([&] {
      CheckedSender sender(checksums);
      std::mt19937 random(seed);
      for (std::size_t at = 0; at < data.size();) {
        const std::size_t most = random() % 2 == 0 ? 300'000 : 1 + random() % 2000;
        // What was begun is to be shown again; more may come behind it.
        const ssize_t count =
            sender.send(sending.get(), kGroup, ByteSpan(data).subspan(at, std::min(most, data.size() - at)));
        if (count > 0) at += static_cast<std::size_t>(count);
        if (count < 0) std::this_thread::yield();
      }
      sending.reset();
    });
    CheckedReceiver receiver(checksums);
    std::mt19937 random(seed + 100);
    Buffer received, space(200'000);
    for (ssize_t count = -1; count != 0;) {
      const std::size_t room = random() % 3 == 0 ? space.size() : 1 + random() % 3000;
      count = receiver.receive(receiving.get(), kGroup, std::span(space).first(room)).count;
      if (count > 0) received.insert(received.end(), space.begin(), space.begin() + count);
      if (count < 0) std::this_thread::yield();
    }
    CHECK(received == data);
  }
}

// fault: 20
TEST_CASE("no flipped bit is ever delivered, wherever it is") {
  const std::vector<Buffer> pieces{random_bytes(40, 1), random_bytes(20, 2)};
  const Buffer wire = wire_of(pieces);
  for (std::size_t bit = 0; bit < 8 * wire.size(); ++bit) {
    Buffer damaged = wire;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const std::size_t step = bit % 2 == 0 ? 1000 : 7;
    CHECK_ERROR(error_of([&] { read_back(damaged, step); }), ErrorKind::corrupt_data, "is wrong");
  }
  Buffer large = wire_of({random_bytes(131'072, 3)});
  for (std::size_t at = 0; at < large.size(); at += 9973) {
    large[at] ^= std::byte{16};
    for (const std::size_t step : {131'072UL, 100UL}) {
      CHECK_ERROR(error_of([&] { read_back(large, step); }), ErrorKind::corrupt_data, "is wrong");
    }
    large[at] ^= std::byte{16};
  }
}

TEST_CASE("a block that is missing or comes twice is noticed, and one that is cut off is not delivered") {
  const std::vector<Buffer> pieces{random_bytes(100, 1), random_bytes(100, 2)};
  const Buffer wire = wire_of(pieces);
  const auto half = wire.begin() + static_cast<std::ptrdiff_t>(wire.size() / 2);
  CHECK_ERROR(error_of([&] { read_back({half, wire.end()}, 50); }), ErrorKind::corrupt_data, "head");
  Buffer twice(wire.begin(), half);
  twice.insert(twice.end(), wire.begin(), half);
  CHECK_ERROR(error_of([&] { read_back(twice, 50); }), ErrorKind::corrupt_data, "head");
  for (const std::ptrdiff_t cut : {1, 100, 101, 123})
    CHECK(read_back({wire.begin(), wire.end() - cut}, 500) == pieces[0]);
}

TEST_CASE("whoever receives gets the bytes of its own group in place, and those of others apart") {
  auto [sending, receiving] = make_socket_pair();
  CheckedSender sender(Checksums::on);
  CheckedReceiver receiver(Checksums::on);
  const Buffer mine = random_bytes(300, 1), theirs = random_bytes(200, 2);
  sender.send(sending.get(), 1, mine);
  sender.send(sending.get(), 2, theirs);
  Buffer space(100);
  CHECK(receiver.receive(receiving.get(), 1, space).count == 100);
  CHECK(std::equal(space.begin(), space.end(), mine.begin()));
  // Group 2 receives now: what is left of the first block is of another group for it.
  CheckedReceiver::Found found = receiver.receive(receiving.get(), 2, space);
  CHECK(found.group == 1);
  CHECK(found.count == 200);
  CHECK(std::equal(found.elsewhere.begin(), found.elsewhere.end(), mine.begin() + 100, mine.end()));
  found = receiver.receive(receiving.get(), 2, space);
  CHECK(found.group == 2);
  CHECK(found.elsewhere.empty());
  CHECK(std::equal(space.begin(), space.end(), theirs.begin()));
}

TEST_CASE("what one group has begun another one can bring to its end") {
  auto [sending, receiving] = make_socket_pair();
  const int small = 4096;
  ::setsockopt(sending.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  CheckedSender sender(Checksums::on);
  CheckedReceiver receiver(Checksums::on);
  const Buffer data = random_bytes(kMostBlockBytes);
  Buffer sent(data.begin(), data.begin() + sender.send(sending.get(), 1, data));
  REQUIRE(sender.is_within_block());
  CHECK(sender.group() == 1);
  Buffer received, space(10'000);
  while (received.size() < data.size()) {
    const Buffer rest(sender.rest().begin(), sender.rest().end());
    const ssize_t count = sender.is_within_block() ? sender.flush(sending.get()) : 0;
    if (count > 0) sent.insert(sent.end(), rest.begin(), rest.begin() + count);
    const ssize_t came = receiver.receive(receiving.get(), 1, space).count;
    if (came > 0) received.insert(received.end(), space.begin(), space.begin() + came);
  }
  CHECK(sent == data);
  CHECK(received == data);
  CHECK_FALSE(sender.is_within_block());
}

TEST_CASE("it knows what it holds") {
  auto [sending, receiving] = make_socket_pair();
  CheckedSender sender(Checksums::on);
  CheckedReceiver receiver(Checksums::on);
  CHECK_FALSE(receiver.has_data());
  const Buffer data = random_bytes(20);
  sender.send(sending.get(), kGroup, data);
  sender.send(sending.get(), kGroup, data);
  std::array<std::byte, 15> space{};
  CHECK(receiver.receive(receiving.get(), kGroup, space).count == 15);
  CHECK(receiver.has_data());
  CHECK(receiver.receive(receiving.get(), kGroup, space).count == 5);
  CHECK(receiver.has_data());  // the second block came with the first
  CHECK(receiver.receive(receiving.get(), kGroup, space).count == 15);
  CHECK(receiver.receive(receiving.get(), kGroup, space).count == 5);
  CHECK_FALSE(receiver.has_data());
  CHECK(receiver.receive(receiving.get(), kGroup, space).count == -1);
  CHECK(errno == EAGAIN);
}

}  // namespace checked_stream_test
