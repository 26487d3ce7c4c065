#include "lockstep/comm/messages/message_receiver.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kReadAheadBytes = std::size_t{16} << 10;  // small frames come several to a call
constexpr std::size_t kScratchBytes = 4096;

}  // namespace

MessageReceiver::MessageReceiver(Mesh& mesh, int peer, Matcher& matcher, LinkObserver& observer, MessageSender& sender)
    : mesh_(mesh), peer_(peer), matcher_(matcher), observer_(observer), sender_(sender), read_ahead_(kReadAheadBytes) {}

void MessageReceiver::accept(const OperationPtr& receive, const Arrived& arrived) {
  receive->source = peer_;
  const bool fits = receive->envelope.bytes == arrived.bytes;
  if (arrived.where == Arrived::Where::here) {
    unexpected_bytes_ -= eager_cost_bytes(arrived.bytes);
    sender_.return_credit(arrived.bytes);
    if (!fits) return fail_mismatch(receive, arrived.bytes);
    receive->copy_in(arrived.data);
    return observer_.finish(receive, nullptr);
  }
  --pending_rts_;
  if (!fits) {
    sender_.post({.kind = FrameKind::nack, .id = arrived.id, .bytes = receive->envelope.bytes});
    return fail_mismatch(receive, arrived.bytes);
  }
  sender_.post({.kind = FrameKind::cts, .id = arrived.id});
  if (arrived.bytes == 0) return observer_.finish(receive, nullptr);
  incoming_[arrived.id] = receive;
}

void MessageReceiver::close() {
  receiving_ = nullptr;
  incoming_.clear();
}

bool MessageReceiver::receive() {
  std::size_t moved = 0;
  while (moved < kTurnBytes && reason_of_peer_.empty() && !said_goodbye_) {
    std::size_t bytes = 0;
    if (header_received_ < sizeof header_) {
      bytes = fetch(std::as_writable_bytes(std::span(&header_, 1)).subspan(header_received_));
      header_received_ += bytes;
      if (header_received_ == sizeof header_) begin_frame();
    } else {
      bytes = fetch(next_target());
      following_left_ -= bytes;
      if (receiving_) {
        receiving_->advance(bytes);
      } else {
        body_received_ += bytes;
      }
    }
    if (bytes == 0) break;
    moved += bytes;
    if (header_received_ == sizeof header_ && following_left_ == 0) end_frame();
  }
  return moved != 0;
}

std::size_t MessageReceiver::fetch(MutableByteSpan to) {
  if (read_begin_ == read_end_) {
    if (to.size() >= read_ahead_.size()) return mesh_.recv_some(peer_, to);
    read_begin_ = 0;
    read_end_ = 0;
    read_end_ = mesh_.recv_some(peer_, read_ahead_);
  }
  const std::size_t bytes = std::min(to.size(), read_end_ - read_begin_);
  std::memcpy(to.data(), read_ahead_.data() + read_begin_, bytes);
  read_begin_ += bytes;
  return bytes;
}

MutableByteSpan MessageReceiver::next_target() {
  if (receiving_) {
    const MutableByteSpan run = receiving_->run();
    return run.first(std::min(run.size(), following_left_));
  }
  if (body_received_ < body_.size()) return std::span(body_).subspan(body_received_);
  discarded_.resize(kScratchBytes);
  return std::span(discarded_).first(std::min(discarded_.size(), following_left_));
}

void MessageReceiver::begin_frame() {
  if (header_.magic != FrameHeader::kMagic) throw corrupt("data that is not a message frame");
  const FrameKind kind = header_.kind;
  const bool has_body = kind == FrameKind::fail || kind == FrameKind::answer;
  const bool is_body_sound = has_body && header_.following_bytes <= kMaxReasonBytes;
  if (kind != FrameKind::eager && kind != FrameKind::data && header_.following_bytes != 0 && !is_body_sound) {
    throw corrupt(
        fmt::format("{} bytes after a frame of kind {}", header_.following_bytes, static_cast<std::uint32_t>(kind)));
  }
  following_left_ = header_.following_bytes;
  body_.clear();
  body_received_ = 0;
  if (kind == FrameKind::eager) return begin_eager();
  if (kind == FrameKind::data) return begin_data();
  if (has_body) return body_.resize(following_left_);
  read_control();
}

void MessageReceiver::begin_eager() {
  const std::uint64_t bytes = header_.bytes;
  if (bytes > kEagerBytes || header_.following_bytes != bytes) {
    throw corrupt(fmt::format("a message of {} bytes in a frame of {}", bytes, header_.following_bytes));
  }
  if (const OperationPtr receive = matcher_.take_receive(peer_, header_.tag)) {
    sender_.return_credit(bytes);
    receive->source = peer_;
    if (receive->envelope.bytes != bytes) return fail_mismatch(receive, bytes);  // what follows is discarded
    receiving_ = receive;
    return;
  }
  if (unexpected_bytes_ + eager_cost_bytes(bytes) > kUnexpectedBytes) {
    throw corrupt("more unexpected messages than its credit allows");
  }
  unexpected_bytes_ += eager_cost_bytes(bytes);
  is_unexpected_ = true;
  body_.resize(bytes);
}

void MessageReceiver::begin_data() {
  const auto found = incoming_.find(header_.id);
  if (found == incoming_.end())
    throw corrupt(fmt::format("data of message {} before it was cleared to send", header_.id));
  receiving_ = found->second;
  const std::uint64_t bytes = header_.following_bytes;
  if (header_.bytes != receiving_->moved_bytes || bytes == 0 || bytes > kDataFrameBytes ||
      bytes > receiving_->left_bytes()) {
    throw corrupt(fmt::format("{} bytes at {} of a message of {} bytes of which {} have arrived", bytes, header_.bytes,
                              receiving_->envelope.bytes, receiving_->moved_bytes));
  }
}

void MessageReceiver::read_control() {
  switch (header_.kind) {
    case FrameKind::rts: return read_rts();
    case FrameKind::cts:
      if (OperationPtr send = sender_.take_pending(header_.id)) {
        if (send->envelope.bytes == 0) return observer_.finish(send, nullptr);
        sender_.start_data(std::move(send));
      }
      return;
    case FrameKind::nack:
      if (const OperationPtr send = sender_.take_pending(header_.id)) fail_mismatch(send, header_.bytes);
      return;
    case FrameKind::cancel: return read_cancel();
    case FrameKind::credit:
      if (!sender_.take_credit(header_.bytes)) throw corrupt("credit for more than was sent");
      return;
    case FrameKind::ask: return sender_.owe_answer();
    case FrameKind::goodbye: said_goodbye_ = true; return;
    default: throw corrupt(fmt::format("a frame of the unknown kind {}", static_cast<std::uint32_t>(header_.kind)));
  }
}

void MessageReceiver::read_rts() {
  if (header_.id < next_rts_) throw corrupt(fmt::format("request {} to send twice", header_.id));
  next_rts_ = header_.id + 1;
  const Arrived arrived{Arrived::Where::at_sender, peer_, header_.tag, header_.bytes, header_.id, {}, nullptr};
  const OperationPtr receive = matcher_.take_receive(peer_, header_.tag);
  if (!receive && pending_rts_ >= kMaxPendingRts) throw corrupt("more requests to send than may be pending");
  ++pending_rts_;
  receive ? accept(receive, arrived) : matcher_.add(arrived);
}

void MessageReceiver::read_cancel() {
  const auto node = incoming_.extract(header_.id);
  if (node) {
    const OperationPtr& receive = node.mapped();
    if (receive->moved_bytes != 0) throw corrupt("a cancellation of a partly sent message");
    receive->source = -1;
    observer_.match_receive(receive);
  } else if (matcher_.remove_at_sender(peer_, header_.tag, header_.id)) {
    --pending_rts_;
  }
}

void MessageReceiver::end_frame() {
  header_received_ = 0;
  const OperationPtr received = std::exchange(receiving_, nullptr);
  if (received) {
    if (received->left_bytes() != 0) return;
    if (header_.kind == FrameKind::data) incoming_.erase(header_.id);
    observer_.finish(received, nullptr);
  } else if (header_.kind == FrameKind::answer) {
    read_answer();
  } else if (header_.kind == FrameKind::fail) {
    reason_of_peer_.assign(reinterpret_cast<const char*>(body_.data()), body_.size());
    if (reason_of_peer_.empty()) reason_of_peer_ = "no reason given";
  } else if (std::exchange(is_unexpected_, false)) {
    end_unexpected();
  }
}

void MessageReceiver::end_unexpected() {
  Arrived arrived{Arrived::Where::here, peer_, header_.tag, header_.bytes, 0, std::move(body_), nullptr};
  // A receive may have been posted since the message began to arrive.
  if (const OperationPtr receive = matcher_.take_receive(peer_, header_.tag)) return accept(receive, arrived);
  matcher_.add(std::move(arrived));
}

void MessageReceiver::read_answer() {
  const ByteView answer(reinterpret_cast<const char*>(body_.data()), body_.size());
  if (!observer_.take_heartbeat(peer_, answer)) throw corrupt("a malformed heartbeat");
}

void MessageReceiver::fail_mismatch(const OperationPtr& operation, std::uint64_t other_bytes) {
  const bool sends = operation->envelope.direction == Direction::send;
  observer_.fail(operation,
                 Error(ErrorKind::desync,
                       fmt::format("rank {} {} {} bytes with that tag", peer_, sends ? "expects" : "sent", other_bytes),
                       {.peer = peer_}));
}

Error MessageReceiver::corrupt(const std::string& what) const {
  return Error(ErrorKind::corrupt_data, fmt::format("rank {} sent {}", peer_, what),
               {.rank = mesh_.rank(), .peer = peer_});
}

}  // namespace lockstep::internal
