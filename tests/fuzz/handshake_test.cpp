#include "lockstep/comm/net/handshake.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/comm/net/wire.h"
#include "tests/fuzz/fuzz.h"

namespace handshake_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr std::size_t kHelloBytes = 44;

HandshakeSettings settings(const Token& token, int rank) {
  HandshakeSettings settings{.token = token, .job_id = "job", .channel = Channel::link};
  settings.mine = {.rank = rank, .world_size = 4, .generation = 3, .pid = 17, .number = 9, .host = "n", .text = "mesh"};
  return settings;
}

// The bytes in pieces, as they come from a socket. What follows the handshake is left.
void feed(Handshake& handshake, ByteView bytes, std::size_t most = 256) {
  while (!handshake.over() && !bytes.empty()) {
    const ByteView piece = bytes.substr(0, std::min(handshake.wanted(), most));
    handshake.feed(piece);
    bytes.remove_prefix(piece.size());
  }
}

// Error if the handshake failed.
void end(const Handshake& handshake) {
  if (handshake.failure()) throw Error(*handshake.failure());
  if (!handshake.over()) throw Error(ErrorKind::peer_lost, "the bytes end here");
  if (handshake.peer().rank < -1) throw std::logic_error("no rank");
}

const std::vector<ErrorKind> kKinds = {ErrorKind::corrupt_data, ErrorKind::invalid_argument, ErrorKind::unauthorized,
                                       ErrorKind::peer_lost};

HandshakeKey key_of(const Token& token) { return derive_handshake_key(token, "job", to_string(Channel::link)); }

// A proof of `parts`, the length of the last of them, and that.
Bytes proven(const Token& token, std::initializer_list<ByteView> parts) {
  Bytes message = make_proof(key_of(token), parts);
  const ByteView last = *(parts.end() - 1);
  put_u16(message, static_cast<std::uint16_t>(last.size()));
  return message.append(last);
}

// What a client and a server say to each other, without the hellos and proofs.
struct Transcript {
  Bytes identity, body;
};

Transcript transcript(const Token& token, const Admission& admission) {
  Handshake client = Handshake::client(settings(token, 2));
  Handshake server = Handshake::server(settings(token, 0), admission);
  feed(server, client.take_output());
  feed(client, server.take_output());
  const Bytes proof = client.take_output();
  feed(server, proof);
  return {proof.substr(kProofBytes + 2), server.take_output().substr(kProofBytes + 2)};
}

}  // namespace

TEST_CASE("strangers of a handshake") {
  const Token token = Token::generate();
  const Bytes hello = Handshake::client(settings(token, 2)).take_output();
  Bytes whole = hello + Bytes(kProofBytes, 'p');
  put_u16(whole, 40);
  whole += Bytes(40, 'c');
  fuzz::Subject subject{.name = "strangers of a handshake, at the server",
                        .seeds = {whole, hello},
                        .words = {"GET / HTTP/1.1\r\n", "\x16\x03\x01"},
                        .kinds = kKinds,
                        .seeds_are_right = false,
                        .parse = [&](ByteView bytes) {
                          Handshake server = Handshake::server(settings(token, 0), {});
                          feed(server, bytes, 1 + bytes.size() % 7);
                          end(server);
                        }};
  fuzz::run(subject);
  subject.name = "strangers of a handshake, at the client";
  subject.parse = [&](ByteView bytes) {
    Handshake client = Handshake::client(settings(token, 2));
    feed(client, bytes, 1 + bytes.size() % 7);
    end(client);
  };
  fuzz::run(subject);
}

// They hold the token: what they say is read.
TEST_CASE("identity in a handshake") {
  const Token token = Token::generate();
  const Transcript told = transcript(token, {});
  fuzz::run(
      {.name = "identity in a handshake", .seeds = {told.identity}, .kinds = kKinds, .parse = [&](ByteView identity) {
         Handshake server = Handshake::server(settings(token, 0), {});
         const Bytes hello = Handshake::client(settings(token, 2)).take_output();
         feed(server, hello);
         const Bytes server_hello = server.take_output().substr(0, kHelloBytes);
         feed(server, proven(token, {"client", hello, server_hello, identity.substr(0, 0xffff)}));
         end(server);
       }});
}

TEST_CASE("verdicts of a handshake") {
  const Token token = Token::generate();
  const Admission refuse = [](const PeerIdentity&) { return Refusal{ErrorKind::invalid_argument, "not this one"}; };
  const Transcript admitted = transcript(token, {}), refused = transcript(token, refuse);
  const Bytes server_hello = Handshake::client(settings(token, 0)).take_output();
  std::vector<ErrorKind> kinds = kKinds;  // and whatever the server says
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::internal); ++kind) kinds.push_back(ErrorKind{kind});
  fuzz::run({.name = "verdicts of a handshake",
             .seeds = {admitted.body},
             .words = {refused.body},
             .kinds = kinds,
             .parse = [&](ByteView body) {
               Handshake client = Handshake::client(settings(token, 2));
               const Bytes hello = client.take_output();
               feed(client, server_hello);
               const Bytes identity = client.take_output().substr(kProofBytes + 2);
               feed(client, proven(token, {"server", hello, server_hello, identity, body.substr(0, 0xffff)}));
               end(client);
             }});
}

}  // namespace handshake_test
