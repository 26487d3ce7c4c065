#include "lockstep/store/store_connection.h"

#include <algorithm>

#include "lockstep/base/format.h"

namespace lockstep {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;

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
  if (count > 0) silent_ = false;
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

// A client that always leaves something unread must not make the server keep all that it has read.
void StoreConnection::forget_sent() {
  if (sent_ < kReadBytes || sent_ < output_.size() / 2) return;
  output_.erase(0, sent_);
  sent_ = 0;
}

void StoreConnection::flush() {
  while (has_output()) {
    const std::size_t count = send_some(fd_.get(), as_span(ByteView(output_).substr(sent_)));
    sent_ += count;
    if (count == 0) return forget_sent();
  }
  output_ = Bytes();
  sent_ = 0;
}

}  // namespace lockstep
