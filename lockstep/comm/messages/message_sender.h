// The sending half of a MessageLink: frames from this rank to one other. MessageLink -> MessageSender -> Mesh.
// One thread at a time; never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/messages/link_observer.h"
#include "lockstep/comm/messages/message_frame.h"
#include "lockstep/comm/messages/operation.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

class MessageSender {
 public:
  MessageSender(Mesh& mesh, int peer, LinkObserver& observer) : mesh_(mesh), peer_(peer), observer_(observer) {}

  void post(OperationPtr send) { unsent_.push_back(std::move(send)); }
  // A frame without a message.
  void post(const FrameHeader& header, std::string body = {}) { controls_.push_back({header, std::move(body)}); }
  // Memory for unexpected messages that has become free here, which the peer may use again.
  void return_credit(std::uint64_t message_bytes) { credit_to_return_bytes_ += eager_cost_bytes(message_bytes); }
  // A heartbeat, as soon as nothing else waits; one for however many questions.
  void owe_answer() { owes_answer_ = true; }

  // As MessageLink.
  bool send();
  bool is_blocked() const { return is_blocked_; }
  bool cancel(const Operation& send);
  void close(FrameKind last, const std::string& reason);

  // What the peer's frames say. A send for which an RTS has gone, taken out; null if there is none.
  OperationPtr take_pending(std::uint64_t id);
  // Its CTS has come.
  void start_data(OperationPtr send) { cleared_.push_back(std::move(send)); }
  // False for more credit than is in use.
  bool take_credit(std::uint64_t bytes);

 private:
  struct Control {
    FrameHeader header;
    std::string body;  // what follows
  };

  bool next_frame();
  bool next_eager_frame();
  void next_data_frame();
  void stage(const FrameHeader& header);
  std::size_t send_piece();
  bool unstage();
  void end_frame();

  Mesh& mesh_;
  const int peer_;
  LinkObserver& observer_;

  // A frame is a staged head, then bytes of an operation's memory, or zeros if it is no longer there.
  std::vector<std::byte> head_;
  std::size_t head_sent_ = 0;
  OperationPtr sending_;
  std::size_t body_left_ = 0;
  bool is_blocked_ = false;
  std::deque<Control> controls_;
  std::deque<OperationPtr> unsent_;
  std::unordered_map<std::uint64_t, OperationPtr> pending_;  // wait for their CTS, by id
  std::deque<OperationPtr> cleared_;
  std::size_t credit_used_bytes_ = 0;  // what our eager messages take at the peer, as far as is known
  std::size_t credit_to_return_bytes_ = 0;
  bool owes_answer_ = false;
};

}  // namespace lockstep::internal
