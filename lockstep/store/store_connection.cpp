#include "lockstep/store/store_connection.h"

#include <algorithm>

#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kKeptBytes = std::size_t{1} << 20;  // of what has been sent

}  // namespace

StoreConnection::StoreConnection(UniqueFd fd, Handshake handshake, Deadline handshake_deadline)
    : fd_(std::move(fd)),
      peer_(describe_peer(fd_.get())),
      handshake_(std::move(handshake)),
      handshake_deadline_(handshake_deadline) {}

std::vector<StoreRequest> StoreConnection::read() {
  char buffer[kReadBytes];
  const std::size_t wanted = handshake_ ? std::min(handshake_->wanted(), sizeof buffer) : sizeof buffer;
  const std::size_t count = recv_some(fd_.get(), std::as_writable_bytes(std::span(buffer, wanted)));
  const ByteView received(buffer, count);
  std::vector<StoreRequest> requests;
  if (handshake_) {
    handshake_->feed(received);
    advance_handshake();
    return requests;
  }
  frames_.append(received);
  while (const auto payload = frames_.next()) requests.push_back(decode_store_request(*payload));
  return requests;
}

void StoreConnection::advance_handshake() {
  output_ += handshake_->take_output();
  flush();
  if (handshake_->failure()) throw Error(*handshake_->failure());
  if (handshake_->over()) handshake_.reset();
}

void StoreConnection::send(const StoreReply& reply, std::size_t limit_bytes) {
  output_ += frame(encode(reply), kMaxStoreFrameBytes);
  flush();
  if (output_.size() - sent_ > limit_bytes) {
    throw Error(ErrorKind::aborted, fmt::format("it does not read its answers: {} bytes are queued, the limit is {}",
                                                output_.size() - sent_, limit_bytes));
  }
}

void StoreConnection::flush() {
  while (has_output()) {
    const std::size_t count = send_some(fd_.get(), as_span(ByteView(output_).substr(sent_)));
    if (count == 0) break;
    sent_ += count;
  }
  // What is sent is let go, also if the client never catches up.
  if (has_output() && sent_ < kKeptBytes) return;
  output_.erase(0, sent_);
  sent_ = 0;
  if (output_.empty()) output_ = Bytes();
}

}  // namespace lockstep
