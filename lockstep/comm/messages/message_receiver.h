// The receiving half of a MessageLink: frames from one other rank to this one. MessageLink -> MessageReceiver -> Mesh.
// What they say of the other direction it hands to the sending half. One thread at a time; never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/messages/link_observer.h"
#include "lockstep/comm/messages/matcher.h"
#include "lockstep/comm/messages/message_frame.h"
#include "lockstep/comm/messages/message_sender.h"
#include "lockstep/comm/messages/operation.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

class MessageReceiver {
 public:
  MessageReceiver(Mesh& mesh, int peer, Matcher& matcher, LinkObserver& observer, MessageSender& sender);

  // As MessageLink.
  void accept(const OperationPtr& receive, const Arrived& arrived);
  bool receive();
  const std::string& reason_of_peer() const { return reason_of_peer_; }
  bool said_goodbye() const { return said_goodbye_; }
  void close();

 private:
  std::size_t fetch(MutableByteSpan to);
  MutableByteSpan next_target();
  void begin_frame();
  void begin_eager();
  void begin_data();
  void read_control();
  void read_rts();
  void read_cancel();
  void end_frame();
  void end_unexpected();
  void read_answer();

  void fail_mismatch(const OperationPtr& operation, std::uint64_t other_bytes);
  Error corrupt(const std::string& what) const;

  Mesh& mesh_;
  const int peer_;
  Matcher& matcher_;
  LinkObserver& observer_;
  MessageSender& sender_;

  // What follows a header goes to a receive's memory, to body_, or nowhere.
  std::vector<std::byte> read_ahead_;
  std::size_t read_begin_ = 0;
  std::size_t read_end_ = 0;
  FrameHeader header_;
  std::size_t header_received_ = 0;
  std::size_t following_left_ = 0;
  OperationPtr receiving_;
  std::vector<std::byte> body_;
  std::size_t body_received_ = 0;
  bool is_unexpected_ = false;  // an eager message without a receive is on its way to body_
  std::vector<std::byte> discarded_;
  std::unordered_map<std::uint64_t, OperationPtr> incoming_;  // receives whose CTS has gone, by the sender's id
  std::size_t unexpected_bytes_ = 0;
  std::size_t pending_rts_ = 0;
  std::uint64_t next_rts_ = 0;  // their ids grow
  std::string reason_of_peer_;
  bool said_goodbye_ = false;
};

}  // namespace lockstep::internal
