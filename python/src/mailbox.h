// Messages between two ranks through torch's store, for as long as ProcessGroup has none of its own: slow, and good for
// small ones. Backend -> Mailbox -> store. Thread-safe. send() blocks while the store takes the message, receive()
// does not. A message waits for its receiver; those of one sender with one tag arrive in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"
#include "work.h"

namespace lockstep::python {

inline constexpr int kAnyRank = -1;

class Mailbox {
 public:
  Mailbox(std::shared_ptr<Store> store, int rank, int size);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  Started send(const at::Tensor& tensor, int peer, int tag, Deadline deadline);
  // From `peer`, or kAnyRank. The Work fails with Error{timeout} at the deadline, {aborted} when the mailbox goes.
  Started receive(const at::Tensor& tensor, int peer, int tag, Deadline deadline);

 private:
  using Stream = std::pair<int, int>;  // peer, tag
  struct Waiting {
    at::Tensor tensor;
    int peer;
    int tag;
    Deadline deadline;
    Work work;
    std::shared_ptr<int> source;
  };

  void serve(const std::stop_token& stop);
  void look_through();
  bool take(Waiting& waiting, std::map<Stream, bool>& empty);

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  std::mutex mutex_;
  std::condition_variable_any added_;
  // State below is protected by mutex_.
  std::list<Waiting> waiting_;
  std::map<Stream, std::uint64_t> sent_;
  std::map<Stream, std::uint64_t> received_;
  std::jthread thread_;  // made with the first receive()
};

}  // namespace lockstep::python
