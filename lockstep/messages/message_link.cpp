#include "lockstep/messages/message_link.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::size_t kTurnBytes = std::size_t{1} << 20;        // then other links get their turn
constexpr std::size_t kReadAheadBytes = std::size_t{16} << 10;  // small frames come several to a call
constexpr std::size_t kStagedBytes = std::size_t{8} << 10;      // smaller messages go with their header in one call
constexpr std::size_t kCreditStepBytes = kUnexpectedBytes / 8;
constexpr std::size_t kScratchBytes = 4096;
const std::byte kZeros[kScratchBytes] = {};

}  // namespace

MessageLink::MessageLink(Mesh& mesh, int peer, Matcher& matcher, LinkObserver& observer)
    : mesh_(mesh), peer_(peer), matcher_(matcher), observer_(observer), read_ahead_(kReadAheadBytes) {}

void MessageLink::accept(const OperationPtr& receive, const Arrived& arrived) {
  receive->source = peer_;
  const bool fits = receive->envelope.bytes == arrived.bytes;
  if (arrived.where == Arrived::Where::here) {
    unexpected_bytes_ -= eager_cost_bytes(arrived.bytes);
    owe_credit(arrived.bytes);
    if (!fits) return finish_mismatch(receive, arrived.bytes);
    receive->copy_in(arrived.data);
    return observer_.finish(receive, nullptr);
  }
  --announcements_;
  if (!fits) {
    controls_.push_back({{.kind = FrameKind::reject, .id = arrived.id, .bytes = receive->envelope.bytes}, {}});
    return finish_mismatch(receive, arrived.bytes);
  }
  controls_.push_back({{.kind = FrameKind::clear, .id = arrived.id}, {}});
  if (arrived.bytes == 0) return observer_.finish(receive, nullptr);
  incoming_[arrived.id] = receive;
}

bool MessageLink::withdraw(const Operation& operation) {
  if (operation.envelope.direction == Direction::receive) return false;
  if (sending_.get() == &operation && !unstage()) return false;
  if (operation.announced && operation.moved_bytes != 0) return false;
  if (operation.announced) {
    controls_.push_back({{.kind = FrameKind::withdraw, .tag = operation.envelope.tag, .id = operation.number}, {}});
  }
  const auto is_it = [&](const OperationPtr& each) { return each.get() == &operation; };
  announced_.erase(operation.number);
  std::erase_if(unsent_, is_it);
  std::erase_if(cleared_, is_it);
  return true;
}

bool MessageLink::unstage() {
  if (head_sent_ != 0) return false;
  if (!sending_->announced) eager_debt_bytes_ -= eager_cost_bytes(sending_->envelope.bytes);
  sending_ = nullptr;
  head_.clear();
  body_left_ = 0;
  return true;
}

void MessageLink::close(FrameKind last, const std::string& reason) {
  sending_ = receiving_ = nullptr;
  unsent_.clear();
  announced_.clear();
  cleared_.clear();
  incoming_.clear();
  const std::string text = reason.substr(0, kMaxReasonBytes);
  controls_.push_back({{.kind = last, .following_bytes = text.size()}, text});
}

bool MessageLink::send() {
  is_blocked_ = false;
  std::size_t moved = 0;
  while (moved < kTurnBytes && (!head_.empty() || next_frame())) {
    const std::size_t bytes = send_piece();
    is_blocked_ = bytes == 0;
    if (is_blocked_) break;
    moved += bytes;
    if (head_sent_ == head_.size() && body_left_ == 0) end_sent_frame();
  }
  return moved != 0;
}

std::size_t MessageLink::send_piece() {
  if (head_sent_ < head_.size()) {
    const std::size_t bytes = mesh_.send_some(peer_, std::span(head_).subspan(head_sent_));
    head_sent_ += bytes;
    return bytes;
  }
  const ByteSpan piece = sending_ ? ByteSpan(sending_->run()) : ByteSpan(kZeros);
  const std::size_t bytes = mesh_.send_some(peer_, piece.first(std::min(piece.size(), body_left_)));
  if (sending_) sending_->advance(bytes);
  body_left_ -= bytes;
  return bytes;
}

void MessageLink::end_sent_frame() {
  head_.clear();
  head_sent_ = 0;
  const OperationPtr sent = std::exchange(sending_, nullptr);
  if (!sent) return;
  if (sent->left_bytes() == 0) {
    observer_.finish(sent, nullptr);
  } else {
    cleared_.push_back(sent);
  }
}

void MessageLink::stage(const FrameHeader& header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  head_.insert(head_.end(), bytes.begin(), bytes.end());
}

bool MessageLink::next_frame() {
  if (credit_owed_bytes_ >= kCreditStepBytes) {
    controls_.push_back({{.kind = FrameKind::credit, .bytes = std::exchange(credit_owed_bytes_, 0)}, {}});
  }
  if (controls_.empty() && std::exchange(owes_answer_, false)) {
    const Bytes answer = observer_.answer_heartbeat();
    controls_.push_back({{.kind = FrameKind::answer, .following_bytes = answer.size()}, answer});
  }
  while (controls_.empty() && !unsent_.empty()) {
    if (next_eager_frame()) return true;
    if (announced_.size() >= kMaxPendingRts) break;
    const OperationPtr send = std::move(unsent_.front());
    unsent_.pop_front();
    send->announced = true;
    announced_[send->number] = send;
    const Envelope& envelope = send->envelope;
    controls_.push_back(
        {{.kind = FrameKind::announce, .tag = envelope.tag, .id = send->number, .bytes = envelope.bytes}, {}});
  }
  while (!controls_.empty() && head_.size() < kStagedBytes) {
    const Control& control = controls_.front();
    stage(control.header);
    const auto reason = std::as_bytes(std::span(control.reason));
    head_.insert(head_.end(), reason.begin(), reason.end());
    controls_.pop_front();
  }
  if (!head_.empty()) return true;
  if (cleared_.empty()) return false;
  next_data_frame();
  return true;
}

bool MessageLink::next_eager_frame() {
  const std::uint64_t bytes = unsent_.front()->envelope.bytes;
  if (bytes > kEagerBytes || eager_debt_bytes_ + eager_cost_bytes(bytes) > kUnexpectedBytes) return false;
  eager_debt_bytes_ += eager_cost_bytes(bytes);
  sending_ = std::move(unsent_.front());
  unsent_.pop_front();
  stage({.kind = FrameKind::eager, .tag = sending_->envelope.tag, .bytes = bytes, .following_bytes = bytes});
  body_left_ = bytes;
  if (bytes <= kStagedBytes) {
    const std::size_t at = head_.size();
    head_.resize(at + bytes);
    sending_->copy_out(std::span(head_).subspan(at));
    body_left_ = 0;
  }
  return true;
}

void MessageLink::next_data_frame() {
  sending_ = std::move(cleared_.front());
  cleared_.pop_front();
  body_left_ = std::min<std::uint64_t>(sending_->left_bytes(), kDataFrameBytes);
  stage(
      {.kind = FrameKind::data, .id = sending_->number, .bytes = sending_->moved_bytes, .following_bytes = body_left_});
}

bool MessageLink::receive() {
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
    if (header_received_ == sizeof header_ && following_left_ == 0) end_received_frame();
  }
  return moved != 0;
}

std::size_t MessageLink::fetch(MutableByteSpan to) {
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

MutableByteSpan MessageLink::next_target() {
  if (receiving_) {
    const MutableByteSpan run = receiving_->run();
    return run.first(std::min(run.size(), following_left_));
  }
  if (body_received_ < body_.size()) return std::span(body_).subspan(body_received_);
  discarded_.resize(kScratchBytes);
  return std::span(discarded_).first(std::min(discarded_.size(), following_left_));
}

void MessageLink::begin_frame() {
  if (header_.magic != FrameHeader::kMagic) throw corrupt("bytes that are not a frame");
  const FrameKind kind = header_.kind;
  const bool has_body = kind == FrameKind::fail || kind == FrameKind::answer;
  const bool is_reason = has_body && header_.following_bytes <= kMaxReasonBytes;
  if (kind != FrameKind::eager && kind != FrameKind::data && header_.following_bytes != 0 && !is_reason) {
    throw corrupt(
        fmt::format("{} bytes behind a frame of kind {}", header_.following_bytes, static_cast<std::uint32_t>(kind)));
  }
  following_left_ = header_.following_bytes;
  body_.clear();
  body_received_ = 0;
  if (kind == FrameKind::eager) return begin_eager();
  if (kind == FrameKind::data) return begin_data();
  if (has_body) return body_.resize(following_left_);
  read_control();
}

void MessageLink::begin_eager() {
  const std::uint64_t bytes = header_.bytes;
  if (bytes > kEagerBytes || header_.following_bytes != bytes) {
    throw corrupt(fmt::format("a message of {} bytes in a frame of {}", bytes, header_.following_bytes));
  }
  if (const OperationPtr receive = matcher_.take_receive(peer_, header_.tag)) {
    owe_credit(bytes);
    receive->source = peer_;
    if (receive->envelope.bytes != bytes) return finish_mismatch(receive, bytes);  // what follows is discarded
    receiving_ = receive;
    return;
  }
  if (unexpected_bytes_ + eager_cost_bytes(bytes) > kUnexpectedBytes) {
    throw corrupt("more messages that nobody receives than were agreed on");
  }
  unexpected_bytes_ += eager_cost_bytes(bytes);
  is_unexpected_ = true;
  body_.resize(bytes);
}

void MessageLink::begin_data() {
  const auto found = incoming_.find(header_.id);
  if (found == incoming_.end()) throw corrupt(fmt::format("a part of a message {} that nobody asked for", header_.id));
  receiving_ = found->second;
  const std::uint64_t bytes = header_.following_bytes;
  if (header_.bytes != receiving_->moved_bytes || bytes == 0 || bytes > kDataFrameBytes ||
      bytes > receiving_->left_bytes()) {
    throw corrupt(fmt::format("{} bytes at {} of a message of {} bytes of which {} have come", bytes, header_.bytes,
                              receiving_->envelope.bytes, receiving_->moved_bytes));
  }
}

void MessageLink::read_control() {
  switch (header_.kind) {
    case FrameKind::announce:
      if (header_.id < next_announced_) throw corrupt(fmt::format("the announcement {} again", header_.id));
      next_announced_ = header_.id + 1;
      if (const OperationPtr receive = matcher_.take_receive(peer_, header_.tag)) {
        ++announcements_;
        return accept(receive, {Arrived::Where::announced, peer_, header_.tag, header_.bytes, header_.id, {}, nullptr});
      }
      if (announcements_ >= kMaxPendingRts) throw corrupt("more announcements than were agreed on");
      ++announcements_;
      return matcher_.add(
          Arrived{Arrived::Where::announced, peer_, header_.tag, header_.bytes, header_.id, {}, nullptr});
    case FrameKind::clear:
      if (const OperationPtr send = take(announced_, header_.id)) {
        if (send->envelope.bytes == 0) return observer_.finish(send, nullptr);
        cleared_.push_back(send);
      }
      return;
    case FrameKind::reject:
      if (const OperationPtr send = take(announced_, header_.id)) finish_mismatch(send, header_.bytes);
      return;
    case FrameKind::withdraw: return read_withdrawal();
    case FrameKind::credit:
      if (header_.bytes > eager_debt_bytes_) throw corrupt("credit for more than was sent");
      eager_debt_bytes_ -= header_.bytes;
      return;
    case FrameKind::ask: owes_answer_ = true; return;  // one for however many questions
    case FrameKind::goodbye: said_goodbye_ = true; return;
    default: throw corrupt(fmt::format("a frame of kind {}", static_cast<std::uint32_t>(header_.kind)));
  }
}

void MessageLink::read_withdrawal() {
  if (const OperationPtr receive = take(incoming_, header_.id)) {
    if (receive->moved_bytes != 0) throw corrupt("a withdrawal of half a message");
    receive->source = -1;
    observer_.match_receive(receive);
  } else if (matcher_.remove_announced(peer_, header_.tag, header_.id)) {
    --announcements_;
  }
}

void MessageLink::end_received_frame() {
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

void MessageLink::read_answer() {
  const ByteView answer(reinterpret_cast<const char*>(body_.data()), body_.size());
  if (!observer_.take_heartbeat(peer_, answer)) throw corrupt("a malformed heartbeat");
}

void MessageLink::end_unexpected() {
  Arrived arrived{Arrived::Where::here, peer_, header_.tag, header_.bytes, 0, std::move(body_), nullptr};
  // A receive may have been posted since the message began to arrive.
  if (const OperationPtr receive = matcher_.take_receive(peer_, header_.tag)) return accept(receive, arrived);
  matcher_.add(std::move(arrived));
}

void MessageLink::finish_mismatch(const OperationPtr& operation, std::uint64_t other_bytes) {
  const Envelope& mine = operation->envelope;
  const bool sends = mine.direction == Direction::send;
  const std::string text = fmt::format("{} failed: rank {} {} {} bytes with that tag", describe(mine), peer_,
                                       sends ? "expects" : "sent", other_bytes);
  auto error = std::make_exception_ptr(
      Error(ErrorKind::desync, text, {.rank = mesh_.rank(), .peer = peer_, .operation = sends ? "send" : "receive"}));
  observer_.finish(operation, std::move(error));
}

void MessageLink::owe_credit(std::uint64_t message_bytes) { credit_owed_bytes_ += eager_cost_bytes(message_bytes); }

OperationPtr MessageLink::take(std::unordered_map<std::uint64_t, OperationPtr>& from, std::uint64_t id) {
  auto node = from.extract(id);
  return node ? std::move(node.mapped()) : nullptr;
}

Error MessageLink::corrupt(const std::string& what) const {
  return Error(ErrorKind::corrupt_data, fmt::format("rank {} sent {}", peer_, what),
               {.rank = mesh_.rank(), .peer = peer_});
}

}  // namespace lockstep
