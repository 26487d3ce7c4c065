#include "lockstep/comm/net/handshake.h"

#include <future>
#include <string>

#include "lockstep/comm/net/socket.h"
#include "lockstep/comm/net/wire.h"
#include "tests/support/expect_error.h"
#include "tests/support/socket_pair.h"

namespace handshake_test {

using namespace lockstep;
using namespace lockstep::internal;
using namespace std::chrono_literals;

namespace {

Deadline soon() { return Deadline::after(5s); }
constexpr std::size_t kHelloBytes = 44;

HandshakeSettings settings_of(const Token& token, int rank) {
  HandshakeSettings settings{
      .token = token, .job_id = "job", .channel = Channel::link, .mine = local_identity(rank, 4, 7)};
  settings.mine.number = 42;
  settings.mine.text = "10.0.0.1:99";
  return settings;
}

struct Outcome {
  std::optional<PeerIdentity> client, server;
  std::optional<Error> client_error, server_error;
};

Outcome shake(const HandshakeSettings& client, const HandshakeSettings& server, const Admission& admission = {}) {
  auto [left, right] = make_socket_pair();
  Outcome outcome;
  auto serving = std::async(std::launch::async, [&, fd = std::move(right)] {
    try {
      outcome.server = complete_handshake(fd.get(), Handshake::server(server, admission), soon());
    } catch (const Error& error) {
      outcome.server_error = error;
    }
  });
  try {
    outcome.client = handshake_as_client(left.get(), client, soon());
  } catch (const Error& error) {
    outcome.client_error = error;
  }
  serving.get();
  return outcome;
}

// Carries bytes between two ends until neither has more to say.
void carry(Handshake& left, Handshake& right, std::size_t step) {
  Bytes to_left, to_right;
  for (bool moved = true; moved;) {
    moved = false;
    to_right += left.take_output();
    to_left += right.take_output();
    for (auto [bytes, end] : {std::pair(&to_left, &left), std::pair(&to_right, &right)}) {
      const std::size_t count = std::min({step, bytes->size(), end->wanted()});
      if (count == 0) continue;
      end->feed(ByteView(*bytes).substr(0, count));
      bytes->erase(0, count);
      moved = true;
    }
  }
}

}  // namespace

TEST_CASE("both ends learn who the other is") {
  const Token token = Token::generate();
  const HandshakeSettings client = settings_of(token, 1);
  const HandshakeSettings server = settings_of(token, 0);
  const Outcome outcome = shake(client, server);
  REQUIRE(outcome.client);
  REQUIRE(outcome.server);
  CHECK(*outcome.client == server.mine);
  CHECK(*outcome.server == client.mine);
  CHECK(contains(to_string(*outcome.server), "rank 1 (host "));
}

TEST_CASE("texts that are too long are cut, not refused") {
  const Token token = Token::generate();
  HandshakeSettings client = settings_of(token, 1);
  client.mine.host = std::string(300, 'h');
  client.mine.text = std::string(64, 't');
  Handshake left = Handshake::client(client);
  Handshake right = Handshake::server(settings_of(token, 0), {});
  carry(left, right, 1000);
  REQUIRE(right.over());
  REQUIRE_FALSE(right.failure());
  CHECK(right.peer().host == std::string(64, 'h'));
  CHECK(right.peer().text == client.mine.text);
}

TEST_CASE("another token or another job is unauthorized on both sides, and the client reads what to do") {
  const Token token = Token::generate();
  HandshakeSettings other_job = settings_of(token, 1);
  other_job.job_id = "elsewhere";
  for (const HandshakeSettings& client : {settings_of(Token::generate(), 1), other_job}) {
    bool asked = false;
    const Outcome outcome = shake(client, settings_of(token, 0), [&](const PeerIdentity&) {
      asked = true;
      return std::nullopt;
    });
    REQUIRE(outcome.client_error);
    REQUIRE(outcome.server_error);
    CHECK_ERROR(*outcome.client_error, ErrorKind::unauthorized, "copy ~/.lockstep/token", "LOCKSTEP_TOKEN_FILE",
                "'" + client.job_id + "'");
    CHECK(outcome.server_error->kind() == ErrorKind::unauthorized);
    CHECK_FALSE(asked);
  }
}

TEST_CASE("a refusal reaches the client with its kind and reason") {
  const Token token = Token::generate();
  const Outcome outcome = shake(settings_of(token, 1), settings_of(token, 0), [](const PeerIdentity& peer) {
    return Refusal{ErrorKind::aborted, "generation " + std::to_string(peer.generation) + " is over"};
  });
  REQUIRE(outcome.client_error);
  REQUIRE(outcome.server_error);
  CHECK_ERROR(*outcome.client_error, ErrorKind::aborted, "rank 0 (host", "refused this process: generation 7 is over");
  CHECK_ERROR(*outcome.server_error, ErrorKind::aborted, "refused rank 1 (host", "generation 7 is over");
}

TEST_CASE("another channel is refused by name") {
  const Token token = Token::generate();
  HandshakeSettings client = settings_of(token, 1);
  client.channel = Channel::store;
  const Outcome outcome = shake(client, settings_of(token, 0));
  REQUIRE(outcome.client_error);
  CHECK_ERROR(*outcome.client_error, ErrorKind::invalid_argument, "'link'", "'store'");
}

// fault: 27
// feature: B-03
TEST_CASE("another protocol version is refused with both versions, on either side") {
  const Token token = Token::generate();
  Handshake client = Handshake::client(settings_of(token, 1));
  Handshake server = Handshake::server(settings_of(token, 0), {});
  const std::string mine = "this process version " + std::to_string(kProtocolVersion);
  Bytes hello = client.take_output();
  hello[8] = 99;
  server.feed(hello);
  REQUIRE(server.failure());
  CHECK_ERROR(*server.failure(), ErrorKind::invalid_argument, "version 99", mine);
  Bytes answer = server.take_output();
  REQUIRE(answer.size() == kHelloBytes);
  answer[8] = 98;
  client.feed(answer);
  REQUIRE(client.failure());
  CHECK_ERROR(*client.failure(), ErrorKind::invalid_argument, "version 98", mine);
}

TEST_CASE("garbage is refused at its first wrong byte") {
  const HandshakeSettings settings = settings_of(Token::generate(), 0);
  for (const Bytes& garbage : {Bytes("GET / HTTP/1.1\r\n"), Bytes("\0", 1), Bytes("\x16\x03\x01")}) {
    Handshake server = Handshake::server(settings, {});
    server.feed(garbage.substr(0, 1));
    REQUIRE(server.failure());
    CHECK_ERROR(*server.failure(), ErrorKind::corrupt_data, "does not speak Lockstep's protocol");
    CHECK(server.take_output().empty());
    CHECK(server.wanted() == 0);
  }
  const Bytes hello = Handshake::client(settings).take_output();
  for (std::size_t wrong = 0; wrong < 8; ++wrong) {
    Handshake server = Handshake::server(settings, {});
    for (std::size_t i = 0; i < wrong; ++i) server.feed(hello.substr(i, 1));
    CHECK_FALSE(server.over());
    server.feed(std::string(1, static_cast<char>(hello[wrong] ^ 1)));
    CHECK(server.failure());
  }
}

TEST_CASE("the handshake works in pieces of any size and takes no byte that follows it") {
  const Token token = Token::generate();
  for (const std::size_t step : {1, 2, 7, 33, 44, 1000}) {
    Handshake client = Handshake::client(settings_of(token, 1));
    Handshake server = Handshake::server(settings_of(token, 0), {});
    carry(client, server, step);
    CHECK(client.over());
    CHECK(server.over());
    CHECK_FALSE(client.failure());
    CHECK_FALSE(server.failure());
    CHECK(client.wanted() == 0);
    CHECK(server.peer().rank == 1);
  }
}

TEST_CASE("any single flipped byte of a proof or a verdict is unauthorized or corrupt") {
  const Token token = Token::generate();
  Handshake client = Handshake::client(settings_of(token, 1));
  Handshake server = Handshake::server(settings_of(token, 0), {});
  server.feed(client.take_output());
  client.feed(server.take_output());
  const Bytes proof = client.take_output();
  for (std::size_t at = 0; at < proof.size(); ++at) {
    Handshake copy = server;
    Bytes changed = proof;
    changed[at] = static_cast<char>(changed[at] ^ 0x40);
    while (copy.wanted() > 0 && !changed.empty()) {
      const std::size_t count = std::min(copy.wanted(), changed.size());
      copy.feed(changed.substr(0, count));
      changed.erase(0, count);
    }
    // A shortened or lengthened claim may wait for bytes that never come; it must never be believed.
    CHECK((copy.failure() || !copy.over()));
  }
  server.feed(proof.substr(0, 34));
  server.feed(proof.substr(34));
  const Bytes verdict = server.take_output();
  for (std::size_t at = 0; at < verdict.size(); ++at) {
    Handshake copy = client;
    Bytes changed = verdict;
    changed[at] = static_cast<char>(changed[at] ^ 0x40);
    while (copy.wanted() > 0 && !changed.empty()) {
      const std::size_t count = std::min(copy.wanted(), changed.size());
      copy.feed(changed.substr(0, count));
      changed.erase(0, count);
    }
    CHECK((copy.failure() || !copy.over()));
  }
}

TEST_CASE("a proof cannot be replayed to another connection or reflected to its sender") {
  const Token token = Token::generate();
  Handshake client = Handshake::client(settings_of(token, 1));
  const Bytes hello = client.take_output();
  Handshake first = Handshake::server(settings_of(token, 0), {});
  first.feed(hello);
  client.feed(first.take_output());
  const Bytes proof = client.take_output();

  Handshake second = Handshake::server(settings_of(token, 0), {});
  second.feed(hello);
  second.feed(proof.substr(0, 34));
  second.feed(proof.substr(34));
  REQUIRE(second.failure());
  CHECK(second.failure()->kind() == ErrorKind::unauthorized);

  Handshake victim = Handshake::client(settings_of(token, 1));
  victim.feed(victim.take_output());  // its own hello
  const Bytes own_proof = victim.take_output();
  victim.feed(own_proof.substr(0, 34));
  victim.feed(own_proof.substr(34));
  REQUIRE(victim.failure());
  CHECK(victim.failure()->kind() == ErrorKind::unauthorized);
}

TEST_CASE("huge announced lengths are refused before they are taken") {
  const HandshakeSettings settings = settings_of(Token::generate(), 0);
  Handshake server = Handshake::server(settings, {});
  server.feed(Handshake::client(settings).take_output());
  Bytes head(32, 'p');
  put_u16(head, 0xffff);
  server.feed(head);
  REQUIRE(server.failure());
  CHECK_ERROR(*server.failure(), ErrorKind::corrupt_data, "65535", "limit");
}

TEST_CASE("a silent peer ends the handshake at the deadline") {
  auto [left, right] = make_socket_pair();
  const HandshakeSettings settings = settings_of(Token::generate(), 0);
  CHECK_ERROR(error_of([&] { handshake_as_client(left.get(), settings, Deadline::after(30ms)); }), ErrorKind::timeout,
              "handshake with");
}

TEST_CASE("a peer that closes in between is peer_lost") {
  auto [left, right] = make_socket_pair();
  right.reset();
  CHECK(error_of([&] { handshake_as_client(left.get(), settings_of(Token::generate(), 0), soon()); }).kind() ==
        ErrorKind::peer_lost);
}

}  // namespace handshake_test
