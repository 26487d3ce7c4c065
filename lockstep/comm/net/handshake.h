// Handshake proves to both ends of a new connection that the other holds the job's token, and exchanges their
// identities. connected fd -> hello, hello, proof + identity, verdict + identity -> a stream that belongs to the job.
//   client -> server  hello:   magic, version, channel, nonce                               (44 bytes)
//   server -> client  hello:   the same
//   client -> server  proof:   HMAC("client", both hellos, identity), length, identity        (at most 191 bytes)
//   server -> client  verdict: HMAC("server", both hellos, client's identity, body), length, body
// Only the bytes of the handshake are taken from the stream, and nothing is parsed before its proof was checked.
// It authenticates the start of a connection; later bytes are neither signed nor encrypted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/net/handshake_crypto.h"
#include "lockstep/comm/net/token.h"

namespace lockstep::internal {

inline constexpr std::uint16_t kProtocolVersion = 10;
inline constexpr std::size_t kMaxIdentityTextBytes = 64;
inline constexpr std::size_t kMaxRefusalBytes = 512;
// What a server gives a client to finish; the client's side is bounded by its own deadline.
inline constexpr Duration kHandshakeTimeout = std::chrono::seconds(2);

// What a connection is for. Each has its own key, so a proof for one is worthless on another.
enum class Channel : std::uint8_t { store = 1, link = 2, control = 3 };
std::string_view to_string(Channel channel);

// The identity that one end advertises; trusted after the proof. Texts are cut to kMaxIdentityTextBytes.
struct PeerIdentity {
  std::int32_t rank = -1;
  std::int32_t world_size = 0;
  std::uint64_t generation = 0;
  std::uint32_t pid = 0;
  std::uint64_t number = 0;  // free for the channel: a connection index, a group id
  std::string host = {};
  std::string text = {};  // free for the channel

  friend bool operator==(const PeerIdentity&, const PeerIdentity&) = default;
};
// PeerIdentity of this process: pid and host name filled in.
PeerIdentity local_identity(int rank, int world_size, std::uint64_t generation);
// "rank 2 (host n1, pid 811)"; without the rank if it is -1.
std::string to_string(const PeerIdentity& identity);

struct HandshakeSettings {
  Token token = {};
  std::string job_id = {};
  Channel channel = Channel::store;
  PeerIdentity mine = {};
  std::string token_origin =
      {};  // for messages, where the job's id says nothing; as of Token::origin_for_this_process()
};

// Why a server refuses a client whose identity is proven. The client throws it as Error{kind} with this text. One of
// kind `aborted` is nobody's mistake, and not reported in the log.
struct Refusal {
  ErrorKind kind = ErrorKind::invalid_argument;
  std::string reason;
};
// Called on the server once the client's identity are proven; an empty result admits it. May not block.
using Admission = std::function<std::optional<Refusal>(const PeerIdentity&)>;

// One end without I/O: feed() what was received, at most wanted() bytes a time, and send take_output(). Not
// thread-safe.
class Handshake {
 public:
  static Handshake client(const HandshakeSettings& settings);
  static Handshake server(const HandshakeSettings& settings, Admission admission);

  // Bytes to read next, so that nothing after the handshake is consumed; 0 once it is over.
  std::size_t wanted() const { return stage_ == Stage::over ? 0 : wanted_ - input_.size(); }
  void feed(ByteView received);
  // To be sent, also after a failure: it names the error to the other end.
  Bytes take_output() { return std::exchange(output_, {}); }

  bool over() const { return stage_ == Stage::over; }
  const std::optional<Error>& failure() const { return failure_; }
  const PeerIdentity& peer() const { return peer_; }  // REQUIRES: over() without failure()

 private:
  enum class Role { client, server };
  enum class Stage { hello, head, body, over };

  Handshake(Role role, const HandshakeSettings& settings, Admission admission);
  void check_hello_prefix();
  void advance();
  void take_hello();
  void take_head();
  void take_proof(const Bytes& identity);
  void take_verdict(const Bytes& body);
  void fail(ErrorKind kind, const std::string& message);
  std::string wrong_token() const;
  const Bytes& client_hello() const { return role_ == Role::client ? my_hello_ : peer_hello_; }
  const Bytes& server_hello() const { return role_ == Role::client ? peer_hello_ : my_hello_; }

  Role role_;
  Stage stage_ = Stage::hello;
  Channel channel_;
  std::string job_id_;
  std::string token_origin_;
  HandshakeKey key_;
  Bytes my_identity_;
  Admission admission_;
  Bytes my_hello_, peer_hello_, head_;
  Bytes input_, output_;
  std::size_t wanted_;
  PeerIdentity peer_;
  std::optional<Error> failure_;
};

// The rest of a handshake over a connected, non-blocking descriptor of any stream family. Returns the peer's identity.
// Errors: unauthorized (other token or job; the text says what to copy where), invalid_argument (other protocol version
// or channel), the server's Refusal, corrupt_data (not this protocol), peer_lost, timeout.
PeerIdentity complete_handshake(int fd, Handshake handshake, Deadline deadline);
inline PeerIdentity handshake_as_client(int fd, const HandshakeSettings& settings, Deadline deadline) {
  return complete_handshake(fd, Handshake::client(settings), deadline);
}

}  // namespace lockstep::internal
