#include "mailbox.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::python {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(500);
constexpr std::size_t kPartBytes = std::size_t{4} << 20;

std::string key_of(int from, int to, int tag, std::uint64_t number) {
  return "message/" + std::to_string(from) + "/" + std::to_string(to) + "/" + std::to_string(tag) + "/" +
         std::to_string(number);
}

}  // namespace

Mailbox::Mailbox(std::shared_ptr<Store> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

Mailbox::~Mailbox() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
  for (Waiting& waiting : waiting_) {
    waiting.work.complete(std::make_exception_ptr(Error(ErrorKind::aborted, "recv: the group was destroyed")));
  }
}

Started Mailbox::send(const at::Tensor& tensor, int peer, int tag, Deadline deadline) {
  const at::Tensor row = tensor.detach().contiguous();
  const ByteView bytes(static_cast<const char*>(row.const_data_ptr()), row.nbytes());
  const std::lock_guard lock(mutex_);
  const std::string key = key_of(rank_, peer, tag, sent_[{peer, tag}]++);
  for (std::size_t begin = kPartBytes; begin < bytes.size(); begin += kPartBytes) {
    store_->set(key + "/" + std::to_string(begin), bytes.substr(begin, kPartBytes), deadline);
  }
  // The first part comes last: it says that all are there.
  store_->set(key, std::to_string(bytes.size()) + " " + std::string(bytes.substr(0, kPartBytes)), deadline);
  Started started;
  started.work.complete(nullptr);
  return started;
}

Started Mailbox::receive(const at::Tensor& tensor, int peer, int tag, Deadline deadline) {
  Started started;
  const auto source = std::make_shared<int>(peer);
  started.source = [source] { return *source; };
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({tensor.detach(), peer, tag, deadline, started.work, source});
    if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  added_.notify_one();
  return started;
}

void Mailbox::serve(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (added_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    look_through();
    if (!waiting_.empty()) added_.wait_for(lock, stop, kPollInterval, [] { return false; });
  }
}

void Mailbox::look_through() {
  std::map<Stream, bool> empty;  // an earlier receive() has the first claim on a message
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    bool done = false;
    std::exception_ptr error;
    try {
      done = take(*waiting, empty);
      if (!done && waiting->deadline.expired()) {
        throw Error(ErrorKind::timeout, "recv: no message came from " +
                                            (waiting->peer == kAnyRank ? std::string("any rank")
                                                                       : "rank " + std::to_string(waiting->peer)) +
                                            " with tag " + std::to_string(waiting->tag));
      }
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    if (done || error) {
      waiting->work.complete(error);
      waiting = waiting_.erase(waiting);
    } else {
      ++waiting;
    }
  }
}

bool Mailbox::take(Waiting& waiting, std::map<Stream, bool>& empty) {
  const int first = waiting.peer == kAnyRank ? 0 : waiting.peer;
  const int last = waiting.peer == kAnyRank ? size_ - 1 : waiting.peer;
  for (int peer = first; peer <= last; ++peer) {
    const Stream stream{peer, waiting.tag};
    if (empty[stream]) continue;
    const std::string key = key_of(peer, rank_, waiting.tag, received_[stream]);
    if (!store_->check({key}, waiting.deadline)) {
      empty[stream] = true;
      continue;
    }
    ++received_[stream];
    *waiting.source = peer;
    Bytes message = store_->get(key, waiting.deadline);
    store_->remove(key, waiting.deadline);
    const std::size_t size = std::stoull(message);
    message.erase(0, message.find(' ') + 1);
    for (std::size_t begin = kPartBytes; begin < size; begin += kPartBytes) {
      const std::string part = key + "/" + std::to_string(begin);
      message += store_->get(part, waiting.deadline);
      store_->remove(part, waiting.deadline);
    }
    if (size != waiting.tensor.nbytes()) {
      throw Error(ErrorKind::invalid_argument, "recv: rank " + std::to_string(peer) + " sent " + std::to_string(size) +
                                                   " bytes, and the tensor here has " +
                                                   std::to_string(waiting.tensor.nbytes()));
    }
    const at::Tensor row = at::empty(waiting.tensor.sizes(), waiting.tensor.options());
    std::memcpy(row.mutable_data_ptr(), message.data(), size);
    waiting.tensor.copy_(row);
    return true;
  }
  return false;
}

}  // namespace lockstep::python
