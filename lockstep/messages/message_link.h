// A MessageLink is the messages between this rank and one other: frames over their stream of a Mesh, in both
// directions. ProgressEngine -> MessageLink -> Mesh. One thread at a time; never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/messages/matcher.h"
#include "lockstep/messages/message_frame.h"
#include "lockstep/messages/operation.h"
#include "lockstep/transport/mesh.h"

namespace lockstep {

// Whom a link tells what becomes of operations.
class LinkObserver {
 public:
  virtual ~LinkObserver() = default;
  // Ends an operation; `error` is null on success.
  virtual void finish(const OperationPtr& operation, std::exception_ptr error) = 0;
  // A receive whose message was withdrawn is to be matched anew.
  virtual void match_receive(const OperationPtr& receive) = 0;
  // A peer's question for a heartbeat, and its answer to one; false if that is malformed.
  virtual Bytes answer_heartbeat() = 0;
  virtual bool take_heartbeat(int peer, ByteView answer) = 0;
};

class MessageLink {
 public:
  MessageLink(Mesh& mesh, int peer, Matcher& matcher, LinkObserver& observer);

  void post_send(OperationPtr send) { unsent_.push_back(std::move(send)); }
  void ask() { controls_.push_back({{.kind = FrameKind::ask}, {}}); }
  // A receive was matched with a message of this peer that was in the matcher.
  void accept(const OperationPtr& receive, const Arrived& arrived);

  // Move some bytes; whether any were moved. Throw what the Mesh throws, and Error{corrupt_data} with this peer. After
  // an Error of receive(), and after close(), there is nothing more to receive.
  bool send();
  bool receive();
  // What the last send() left over waits for room in the stream.
  bool is_blocked() const { return is_blocked_; }
  // What the peer gave as the reason for failing this link; empty if it has not.
  const std::string& reason_of_peer() const { return reason_of_peer_; }
  bool said_goodbye() const { return said_goodbye_; }

  // Takes a send out again, or the memory of a receive. False if a part of the message has moved already: then the link
  // has to be failed.
  bool withdraw(const Operation& operation);
  // Forgets all operations. The frame that is under way is filled up with zeros, and `last` goes behind it.
  void close(FrameKind last, const std::string& reason);

 private:
  struct Control {
    FrameHeader header;
    std::string reason;  // what follows
  };

  bool next_frame();
  bool next_eager_frame();
  void next_data_frame();
  void stage(const FrameHeader& header);
  std::size_t send_piece();
  bool unstage();
  void end_sent_frame();

  std::size_t fetch(MutableByteSpan to);
  void begin_frame();
  void begin_eager();
  void begin_data();
  void read_control();
  void read_withdrawal();
  void read_answer();
  MutableByteSpan next_target();
  void end_received_frame();
  void end_unexpected();

  void finish_mismatch(const OperationPtr& operation, std::uint64_t other_bytes);
  void owe_credit(std::uint64_t message_bytes);
  OperationPtr take(std::unordered_map<std::uint64_t, OperationPtr>& from, std::uint64_t id);
  Error corrupt(const std::string& what) const;

  Mesh& mesh_;
  const int peer_;
  Matcher& matcher_;
  LinkObserver& observer_;

  // Sending. A frame is a staged head, then bytes of an operation's memory, or zeros if it is no longer there.
  std::vector<std::byte> head_;
  std::size_t head_sent_ = 0;
  OperationPtr sending_;
  std::size_t body_left_ = 0;
  bool is_blocked_ = false;
  std::deque<Control> controls_;
  std::deque<OperationPtr> unsent_;
  std::unordered_map<std::uint64_t, OperationPtr> announced_;
  std::deque<OperationPtr> cleared_;
  std::size_t eager_debt_bytes_ = 0;  // what our eager messages take at the peer, as far as is known

  // Receiving. What follows a header goes to a receive's memory, to body_, or nowhere.
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
  std::unordered_map<std::uint64_t, OperationPtr> incoming_;  // cleared receives, by the sender's id
  std::size_t unexpected_bytes_ = 0;
  std::size_t announcements_ = 0;
  std::uint64_t next_announced_ = 0;  // their ids grow
  std::size_t credit_owed_bytes_ = 0;
  std::string reason_of_peer_;
  bool said_goodbye_ = false;
  bool owes_answer_ = false;  // to a question for a heartbeat
};

}  // namespace lockstep
