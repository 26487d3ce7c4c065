#include "lockstep/comm/store/store_connection.h"

#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;

}  // namespace

std::vector<StoreRequest> StoreConnection::read() {
  char buffer[kReadBytes];
  frames_.append({buffer, recv_some(fd_.get(), std::as_writable_bytes(std::span(buffer)))});
  std::vector<StoreRequest> requests;
  while (const auto payload = frames_.next()) requests.push_back(decode_store_request(*payload));
  return requests;
}

void StoreConnection::send(const StoreReply& reply, std::size_t limit_bytes) {
  output_ += frame(encode(reply), kMaxStoreFrameBytes);
  flush();
  if (output_.size() - sent_ > limit_bytes) {
    throw Error(ErrorKind::aborted,
                fmt::format("the client does not read its replies: {} bytes are queued; the limit is {}",
                            output_.size() - sent_, limit_bytes));
  }
}

// A client that always leaves a few bytes unread must not make the server keep everything that was sent.
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

}  // namespace lockstep::internal
