// A MessageLink is the messages between this rank and one other: frames over their stream of a Mesh, in both
// directions. ProgressEngine -> MessageLink -> Mesh. One thread at a time; never blocks.
#pragma once

#include <string>
#include <utility>

#include "lockstep/comm/messages/link_observer.h"
#include "lockstep/comm/messages/matcher.h"
#include "lockstep/comm/messages/message_receiver.h"
#include "lockstep/comm/messages/message_sender.h"
#include "lockstep/comm/messages/operation.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

class MessageLink {
 public:
  MessageLink(Mesh& mesh, int peer, Matcher& matcher, LinkObserver& observer)
      : sender_(mesh, peer, observer), receiver_(mesh, peer, matcher, observer, sender_) {}
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  void post_send(OperationPtr send) { sender_.post(std::move(send)); }
  void ask() { sender_.post({.kind = FrameKind::ask}); }
  // A receive was matched with a message of this peer that was in the matcher.
  void accept(const OperationPtr& receive, const Arrived& arrived) { receiver_.accept(receive, arrived); }

  // Move some bytes; whether any were moved. Throw what the Mesh throws, and Error{corrupt_data} with this peer. After
  // an Error of receive(), and after close(), there is nothing more to receive.
  bool send() { return sender_.send(); }
  bool receive() { return receiver_.receive(); }
  // What the last send() left over waits for room in the stream.
  bool is_blocked() const { return sender_.is_blocked(); }
  // What the peer gave as the reason for failing this link; empty if it has not.
  const std::string& reason_of_peer() const { return receiver_.reason_of_peer(); }
  bool said_goodbye() const { return receiver_.said_goodbye(); }

  // Takes a send out again. False if a part of the message has moved already: then the link has to be failed.
  bool cancel(const Operation& send) { return sender_.cancel(send); }
  // Forgets all operations. The frame that is under way is filled up with zeros, and `last` goes behind it.
  void close(FrameKind last, const std::string& reason) {
    receiver_.close();
    sender_.close(last, reason);
  }

 private:
  MessageSender sender_;
  MessageReceiver receiver_;
};

}  // namespace lockstep::internal
