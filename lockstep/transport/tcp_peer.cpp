#include "lockstep/transport/tcp_peer.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/format.h"

namespace lockstep {

void TcpPeer::send_control(ByteView message) const noexcept {
  // Nothing of any size travels there, so there is room.
  if (control) ::send(control.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpPeer::note_death(const std::string& reason) {
  if (state != State::alive) return;
  state = State::dead;
  why = reason;
}

std::optional<Error> TcpPeer::read_control(int rank, int self, int ranks) {
  std::optional<Error> abort;
  char buffer[512];
  for (;;) {
    const ssize_t count = ::recv(control.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count == 0) {
      note_death("its process ended");
      return abort;
    }
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return abort;
      const bool is_silent = errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH;
      note_death(is_silent ? fmt::format("its host has not answered for {} s", seconds(kPeerTimeout))
                           : std::strerror(errno));
      return abort;
    }
    try {
      frames_.append({buffer, static_cast<std::size_t>(count)});
      while (const auto bytes = frames_.next()) {
        const ControlMessage message = decode_control(*bytes, rank, self, ranks);
        if (message.kind == ControlKind::goodbye && state == State::alive) state = State::left;
        if (message.error && !abort) abort = message.error;
      }
    } catch (const Error&) {  // nothing that comes behind it can be read
      frames_ = FrameBuffer(kMaxControlBytes);
      if (abort) return abort;
      throw;
    }
  }
}

}  // namespace lockstep
