// What a TCP mesh knows of one peer: its connections, and whether it is still there. TcpMesh -> TcpPeer -> connections.
// One thread at a time; nothing here blocks.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/net/framing.h"
#include "lockstep/transport/control_message.h"
#include "lockstep/transport/tcp_streams.h"

namespace lockstep {

struct TcpPeer {
  // `dead` becomes `reported` when Mesh::wait() has thrown it.
  enum class State { alive, left, dead, reported };

  std::string name;  // "rank 2 (host n1, pid 811)"
  UniqueFd control;
  TcpStreams streams;  // of a peer on another node
  int place = -1;      // of a peer whose data goes through memory: among those who share it
  State state = State::alive;
  std::string why;  // it is dead

  bool is_over() const { return state != State::alive; }
  bool is_dead() const { return state == State::dead || state == State::reported; }

  // On the control connection, as far as it goes without waiting.
  void send_control(ByteView message) const noexcept;
  // Takes in what has come, and sees whether the peer has left or died. Returns the first abort among it. `self` is
  // this rank's number, of `ranks`, and `rank` the peer's. Error{corrupt_data} for what cannot be a message.
  std::optional<Error> read_control(int rank, int self, int ranks);

 private:
  void note_death(const std::string& reason);

  FrameBuffer frames_{kMaxControlBytes};
};

}  // namespace lockstep
