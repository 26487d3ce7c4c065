#include "lockstep/comm/messages/message_sender.h"

#include <algorithm>
#include <span>
#include <utility>

namespace lockstep::internal {
namespace {

constexpr std::size_t kStagedBytes = std::size_t{8} << 10;  // smaller messages go with their header in one call
constexpr std::size_t kCreditStepBytes = kUnexpectedBytes / 8;
const std::byte kZeros[4096] = {};

}  // namespace

bool MessageSender::cancel(const Operation& send) {
  if (sending_.get() == &send && !unstage()) return false;
  if (send.is_rts_sent && send.moved_bytes != 0) return false;
  if (send.is_rts_sent) post({.kind = FrameKind::cancel, .tag = send.envelope.tag, .id = send.number});
  const auto is_it = [&](const OperationPtr& each) { return each.get() == &send; };
  pending_.erase(send.number);
  std::erase_if(unsent_, is_it);
  std::erase_if(cleared_, is_it);
  return true;
}

bool MessageSender::unstage() {
  if (head_sent_ != 0) return false;
  if (!sending_->is_rts_sent) credit_used_bytes_ -= eager_cost_bytes(sending_->envelope.bytes);
  sending_ = nullptr;
  head_.clear();
  body_left_ = 0;
  return true;
}

void MessageSender::close(FrameKind last, const std::string& reason) {
  sending_ = nullptr;
  unsent_.clear();
  pending_.clear();
  cleared_.clear();
  const std::string text = reason.substr(0, kMaxReasonBytes);
  post({.kind = last, .following_bytes = text.size()}, text);
}

bool MessageSender::send() {
  is_blocked_ = false;
  std::size_t moved = 0;
  while (moved < kTurnBytes && (!head_.empty() || next_frame())) {
    const std::size_t bytes = send_piece();
    is_blocked_ = bytes == 0;
    if (is_blocked_) break;
    moved += bytes;
    if (head_sent_ == head_.size() && body_left_ == 0) end_frame();
  }
  return moved != 0;
}

std::size_t MessageSender::send_piece() {
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

void MessageSender::end_frame() {
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

void MessageSender::stage(const FrameHeader& header) {
  const auto bytes = std::as_bytes(std::span(&header, 1));
  head_.insert(head_.end(), bytes.begin(), bytes.end());
}

bool MessageSender::next_frame() {
  if (credit_to_return_bytes_ >= kCreditStepBytes) {
    post({.kind = FrameKind::credit, .bytes = std::exchange(credit_to_return_bytes_, 0)});
  }
  if (controls_.empty() && std::exchange(owes_answer_, false)) {
    const Bytes answer = observer_.answer_heartbeat();
    post({.kind = FrameKind::answer, .following_bytes = answer.size()}, answer);
  }
  while (controls_.empty() && !unsent_.empty()) {
    if (next_eager_frame()) return true;
    if (pending_.size() >= kMaxPendingRts) break;
    const OperationPtr send = std::move(unsent_.front());
    unsent_.pop_front();
    send->is_rts_sent = true;
    pending_[send->number] = send;
    post({.kind = FrameKind::rts, .tag = send->envelope.tag, .id = send->number, .bytes = send->envelope.bytes});
  }
  while (!controls_.empty() && head_.size() < kStagedBytes) {
    const Control& control = controls_.front();
    stage(control.header);
    const auto body = std::as_bytes(std::span(control.body));
    head_.insert(head_.end(), body.begin(), body.end());
    controls_.pop_front();
  }
  if (!head_.empty()) return true;
  if (cleared_.empty()) return false;
  next_data_frame();
  return true;
}

bool MessageSender::next_eager_frame() {
  const std::uint64_t bytes = unsent_.front()->envelope.bytes;
  if (bytes > kEagerBytes || credit_used_bytes_ + eager_cost_bytes(bytes) > kUnexpectedBytes) return false;
  credit_used_bytes_ += eager_cost_bytes(bytes);
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

void MessageSender::next_data_frame() {
  sending_ = std::move(cleared_.front());
  cleared_.pop_front();
  body_left_ = std::min<std::uint64_t>(sending_->left_bytes(), kDataFrameBytes);
  stage(
      {.kind = FrameKind::data, .id = sending_->number, .bytes = sending_->moved_bytes, .following_bytes = body_left_});
}

OperationPtr MessageSender::take_pending(std::uint64_t id) {
  auto node = pending_.extract(id);
  return node ? std::move(node.mapped()) : nullptr;
}

bool MessageSender::take_credit(std::uint64_t bytes) {
  if (bytes > credit_used_bytes_) return false;
  credit_used_bytes_ -= bytes;
  return true;
}

}  // namespace lockstep::internal
