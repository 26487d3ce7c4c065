#include "lockstep/comm/net/framing.h"

#include <sys/resource.h>
#include <zlib.h>

#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/net/wire.h"
#include "tests/support/expect_error.h"
#include "tests/support/socket_pair.h"

namespace framing_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {
Deadline soon() { return Deadline::after(5s); }

// The head of a frame of which no more comes.
Bytes head(std::uint32_t length) {
  Bytes bytes;
  put_u32(bytes, length);
  put_u32(bytes, 0);
  put_u32(bytes, static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), 8)));
  return bytes;
}
}  // namespace

TEST_CASE("a frame arrives as it was sent, also an empty one") {
  auto [left, right] = make_socket_pair();
  for (const Bytes& payload : {Bytes("hello"), Bytes(), Bytes(1000, 'x')}) {
    send_frame(left.get(), payload, 1000, soon());
    CHECK(recv_frame(right.get(), 1000, soon()) == payload);
  }
}

TEST_CASE("a length over the limit is refused on both sides with the limit in the text") {
  auto [left, right] = make_socket_pair();
  CHECK_ERROR(error_of([&] { send_frame(left.get(), Bytes(11, 'x'), 10, soon()); }), ErrorKind::invalid_argument, "11",
              "10");
  send_all(left.get(), as_span(ByteView(head(0xffffffff))), soon());
  CHECK_ERROR(error_of([&] { recv_frame(right.get(), 10, soon()); }), ErrorKind::corrupt_data, "4294967295",
              "limit is 10");
}

TEST_CASE("a promised length takes no memory before bytes have come") {
  auto [left, right] = make_socket_pair();
  send_all(left.get(), as_span(ByteView(head(1 << 30))), soon());
  rusage before{};
  ::getrusage(RUSAGE_SELF, &before);
  CHECK(error_of([&] { recv_frame(right.get(), 1 << 30, Deadline::after(20ms)); }).kind() == ErrorKind::timeout);
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 64 << 10);  // KiB
}

TEST_CASE("frames are cut from pieces of any size") {
  const Bytes stream = frame("one", 100) + frame("", 100) + frame(Bytes(100, 'y'), 100);
  for (std::size_t step = 1; step <= stream.size(); ++step) {
    FrameBuffer buffer(100);
    std::vector<Bytes> seen;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      buffer.append(ByteView(stream).substr(at, step));
      while (auto payload = buffer.next()) seen.push_back(*payload);
    }
    CHECK(seen == std::vector<Bytes>{"one", "", Bytes(100, 'y')});
  }
  FrameBuffer buffer(2);
  buffer.append(frame("abc", 3).substr(0, 4));
  CHECK_ERROR(error_of([&] { buffer.next(); }), ErrorKind::corrupt_data, "3 bytes", "limit is 2");
}

TEST_CASE("any flipped bit of a frame is noticed") {
  const Bytes sent = frame("some message", 100);
  for (std::size_t bit = 0; bit < sent.size() * 8; ++bit) {
    CAPTURE(bit);
    Bytes damaged = sent;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    FrameBuffer buffer(100);
    buffer.append(damaged);
    CHECK(error_of([&] { buffer.next(); }).kind() == ErrorKind::corrupt_data);
    auto [left, right] = make_socket_pair();
    send_all(left.get(), as_span(ByteView(damaged)), soon());
    CHECK(error_of([&] { recv_frame(right.get(), 100, soon()); }).kind() == ErrorKind::corrupt_data);
  }
  FrameBuffer buffer(100);
  Bytes damaged = sent;
  damaged.back() = 'E';
  buffer.append(damaged);
  CHECK_ERROR(error_of([&] { buffer.next(); }), ErrorKind::corrupt_data, "12 bytes", "is damaged", "checksum");
}

// feature: B-03
TEST_CASE("wire integers are little-endian, and a short message is corrupt") {
  Bytes out;
  put_u16(out, 0x0102);
  put_u32(out, 0x03040506);
  put_u64(out, 0x1122334455667788);
  put_bytes(out, "abc");
  CHECK(out.substr(0, 3) == std::string("\x02\x01\x06"));
  WireReader reader(out, "a test");
  CHECK(reader.u16() == 0x0102);
  CHECK(reader.u32() == 0x03040506);
  CHECK(reader.u64() == 0x1122334455667788);
  CHECK(reader.bytes() == "abc");
  reader.expect_end();
  for (std::size_t cut = 0; cut < out.size(); ++cut) {
    WireReader shorter(ByteView(out).substr(0, cut), "a test");
    const auto error = error_of([&] {
      shorter.u16();
      shorter.u32();
      shorter.u64();
      shorter.bytes();
    });
    CHECK_ERROR(error, ErrorKind::corrupt_data, "a test is truncated");
  }
  CHECK_ERROR(error_of([] { WireReader("xy", "a test").expect_end(); }), ErrorKind::corrupt_data, "2 trailing bytes");
}

}  // namespace framing_test
