#include "lockstep/comm/messages/message_frame.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>

#include "lockstep/comm/health/heartbeat.h"
#include "lockstep/comm/messages/matcher.h"
#include "lockstep/comm/messages/message_link.h"
#include "tests/fuzz/fuzz.h"

namespace message_frames_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::size_t kLarge = 100'000;  // not eager

// The stream of one peer: what it has sent, in pieces.
class Recording final : public Mesh {
 public:
  explicit Recording(ByteView bytes) : bytes_(bytes) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string_view name() const override { return "recorded"; }
  std::size_t send_some(int, ByteSpan data) override { return data.size(); }
  std::size_t recv_some(int, MutableByteSpan data) override {
    const std::size_t count = std::min({data.size(), bytes_.size(), std::size_t{61}});
    std::memcpy(data.data(), bytes_.data(), count);
    bytes_.remove_prefix(count);
    return count;
  }
  void wait(std::span<const Interest>, Deadline) override {}
  void wake() noexcept override {}
  void announce(ByteView) noexcept override {}
  std::optional<Announcement> take_announcement() override { return std::nullopt; }
  void abort(const Error&) noexcept override {}

 private:
  ByteView bytes_;
};

class Rank final : public LinkObserver {
 public:
  explicit Rank(ByteView bytes) : mesh_(bytes), link_(mesh_, 1, matcher_, *this) {
    for (const std::size_t bytes_of_message : {std::size_t{0}, std::size_t{100}, kLarge}) {
      matcher_.add(operation(Direction::receive, bytes_of_message));
      link_.post_send(operation(Direction::send, bytes_of_message));
    }
  }

  void run() {
    while (link_.send() || link_.receive()) continue;
  }
  std::string state_of_peer() const { return heartbeat_.health(1).text(); }

  void finish(const OperationPtr& operation, std::exception_ptr error) override {
    if (!error && operation->left_bytes() != 0) throw std::logic_error("done too early");
  }
  void fail(const OperationPtr&, const Error&) override {}
  void match_receive(const OperationPtr& receive) override {
    if (const auto arrived = matcher_.take_arrived(receive->envelope)) return link_.accept(receive, *arrived);
    matcher_.add(receive);
  }
  Bytes answer_heartbeat() override { return heartbeat_.answer(); }
  bool take_heartbeat(int peer, ByteView answer) override { return heartbeat_.take_answer(peer, answer); }

 private:
  OperationPtr operation(Direction direction, std::size_t bytes) {
    static std::vector<std::byte> memory(kLarge);
    auto made = std::make_shared<Operation>();
    made->envelope = {direction, 1, bytes, bytes};  // its size is its tag
    made->memory = {std::span(memory).first(bytes)};
    made->number = ++number_;
    return made;
  }

  Recording mesh_;
  Heartbeat heartbeat_{2, FlightLog()};
  Matcher matcher_;
  std::uint64_t number_ = 0;
  MessageLink link_;
};

Bytes frame_of(FrameHeader header, const Bytes& body = {}) {
  header.following_bytes = body.size();
  return Bytes(reinterpret_cast<const char*>(&header), sizeof header) + body;
}

Bytes eager(std::size_t bytes) {
  return frame_of({.kind = FrameKind::eager, .tag = bytes, .bytes = bytes}, Bytes(bytes, 'e'));
}

// Announced, and sent in parts, though it could be eager.
Bytes rendezvous_message() {
  Bytes frames = frame_of({.kind = FrameKind::rts, .tag = 100, .id = 7, .bytes = 100});
  for (std::size_t at = 0; at < 100; at += 25) {
    frames += frame_of({.kind = FrameKind::data, .id = 7, .bytes = at}, Bytes(25, 'd'));
  }
  return frames;
}

}  // namespace

TEST_CASE("frames of messages") {
  const Bytes sign = Heartbeat(2, FlightLog()).answer();
  const Bytes rts = frame_of({.kind = FrameKind::rts, .tag = 5, .id = 9, .bytes = 1 << 20});
  fuzz::run({.name = "frames of messages",
             .seeds = {eager(100) + eager(0) + eager(3), rendezvous_message(),
                       rts + frame_of({.kind = FrameKind::cancel, .tag = 5, .id = 9}) + eager(100),
                       frame_of({.kind = FrameKind::cts, .id = 6}) + frame_of({.kind = FrameKind::ask}),
                       frame_of({.kind = FrameKind::nack, .id = 6, .bytes = 3}) + eager(8),
                       frame_of({.kind = FrameKind::credit, .bytes = 256}),
                       frame_of({.kind = FrameKind::answer}, sign) + frame_of({.kind = FrameKind::goodbye}),
                       frame_of({.kind = FrameKind::fail}, "it was given up"),
                       frame_of({.kind = FrameKind::rts, .tag = kLarge, .id = 7, .bytes = kLarge}) +
                           frame_of({.kind = FrameKind::data, .id = 7}, Bytes(500, 'd'))},
             .memory_limit = std::size_t{1} << 20,
             .parse = [](ByteView bytes) {
               Rank rank(bytes);
               rank.run();
               rank.state_of_peer();
             }});
}

}  // namespace message_frames_test
