#include "lockstep/comm/net/handshake.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/base/machine.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

// The first byte is no ASCII and no start of TLS, so a stranger's first byte is already wrong.
constexpr ByteView kMagic("\xd5LSTEP\r\n", 8);
constexpr std::size_t kNonceBytes = 32;
// The same in all versions, so that a mismatch can be told before anything else is understood.
constexpr std::size_t kHelloBytes = kMagic.size() + 4 + kNonceBytes;
constexpr std::size_t kIdentityFixedBytes = 4 + 4 + 8 + 4 + 8;
constexpr std::size_t kMaxIdentityBytes = kIdentityFixedBytes + 2 * (1 + kMaxIdentityTextBytes);
constexpr std::size_t kHeadBytes = kProofBytes + 2;
constexpr std::size_t kMaxVerdictBytes = 1 + 2 + kMaxRefusalBytes + kMaxIdentityBytes;
constexpr std::uint8_t kAdmitted = 0xff;
static_assert(kHelloBytes + kHeadBytes + kMaxIdentityBytes <= 256,
              "bytes an unauthenticated peer can make the server hold");

Bytes make_hello(Channel channel) {
  Bytes hello(kMagic);
  put_u16(hello, kProtocolVersion);
  put_u8(hello, static_cast<std::uint8_t>(channel));
  put_u8(hello, 0);
  const Token nonce = Token::generate();
  hello.append(reinterpret_cast<const char*>(nonce.bytes().data()), kNonceBytes);
  return hello;
}

void put_text(Bytes& out, std::string_view text) {
  text = text.substr(0, kMaxIdentityTextBytes);
  put_u8(out, static_cast<std::uint8_t>(text.size()));
  out.append(text);
}

Bytes encode_identity(const PeerIdentity& identity) {
  Bytes out;
  put_u32(out, static_cast<std::uint32_t>(identity.rank));
  put_u32(out, static_cast<std::uint32_t>(identity.world_size));
  put_u64(out, identity.generation);
  put_u32(out, identity.pid);
  put_u64(out, identity.number);
  put_text(out, identity.host);
  put_text(out, identity.text);
  return out;
}

PeerIdentity decode_identity(ByteView encoded) {
  WireReader reader(encoded, "a peer's identity");
  PeerIdentity identity;
  identity.rank = checked_rank_or_none(reader.i32(), kMostRanks, reader.origin());
  identity.world_size = checked_between(reader.i32(), 0, kMostRanks, "world size", reader.origin());
  identity.generation = reader.u64();
  identity.pid = reader.u32();
  identity.number = reader.u64();
  identity.host = reader.take(reader.u8());
  identity.text = reader.take(reader.u8());
  reader.expect_end();
  return identity;
}

constexpr std::string_view kWrongToken =
    "the peer holds another job token, or belongs to another job. Every process of a job needs the same token: copy "
    "~/.lockstep/token from the host of rank 0 to this host (mode 0600), or point LOCKSTEP_TOKEN_FILE at a copy of it, "
    "and "
    "check that LOCKSTEP_JOB_ID is the same everywhere; this process has job id";

}  // namespace

std::string_view to_string(Channel channel) {
  switch (channel) {
    case Channel::store: return "store";
    case Channel::link: return "link";
    case Channel::control: return "control";
  }
  return "unknown";
}

PeerIdentity local_identity(int rank, int world_size, std::uint64_t generation) {
  PeerIdentity identity;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.generation = generation;
  identity.pid = static_cast<std::uint32_t>(::getpid());
  identity.host = host_name();
  return identity;
}

std::string to_string(const PeerIdentity& identity) {
  const std::string process = fmt::format("host {}, pid {}", identity.host, identity.pid);
  return identity.rank < 0 ? process : fmt::format("rank {} ({})", identity.rank, process);
}

Handshake Handshake::client(const HandshakeSettings& settings) {
  Handshake handshake(Role::client, settings, {});
  handshake.output_ = handshake.my_hello_;
  return handshake;
}

Handshake Handshake::server(const HandshakeSettings& settings, Admission admission) {
  return Handshake(Role::server, settings, std::move(admission));
}

Handshake::Handshake(Role role, const HandshakeSettings& settings, Admission admission)
    : role_(role),
      channel_(settings.channel),
      job_id_(settings.job_id),
      token_origin_(settings.token_origin),
      key_(derive_handshake_key(settings.token, settings.job_id, to_string(settings.channel))),
      my_identity_(encode_identity(settings.mine)),
      admission_(std::move(admission)),
      my_hello_(make_hello(settings.channel)),
      wanted_(kHelloBytes) {}

void Handshake::fail(ErrorKind kind, const std::string& message) {
  failure_.emplace(kind, message);
  stage_ = Stage::over;
  input_.clear();
}

void Handshake::feed(ByteView received) {
  input_.append(received);
  if (stage_ == Stage::hello) check_hello_prefix();
  if (stage_ != Stage::over && input_.size() == wanted_) advance();
}

void Handshake::check_hello_prefix() {
  const std::size_t count = std::min(input_.size(), kMagic.size());
  if (ByteView(input_).substr(0, count) != kMagic.substr(0, count)) {
    fail(ErrorKind::corrupt_data, "the peer does not speak Lockstep's protocol; is this the right address and port?");
  }
}

void Handshake::advance() {
  const Stage stage = stage_;
  Bytes message = std::exchange(input_, {});
  switch (stage) {
    case Stage::hello:
      peer_hello_ = std::move(message);
      stage_ = Stage::head;
      wanted_ = kHeadBytes;
      return take_hello();
    case Stage::head:
      head_ = std::move(message);
      stage_ = Stage::body;
      return take_head();
    case Stage::body: stage_ = Stage::over; return role_ == Role::server ? take_proof(message) : take_verdict(message);
    case Stage::over: return;
  }
}

void Handshake::take_hello() {
  WireReader reader(ByteView(peer_hello_).substr(kMagic.size()), "a hello message");
  const std::uint16_t version = reader.u16();
  const auto channel = static_cast<Channel>(reader.u8());
  // The server's hello also goes to a client that it turns away, because it tells the client why.
  if (role_ == Role::server) output_ += my_hello_;
  if (version != kProtocolVersion) {
    return fail(
        ErrorKind::invalid_argument,
        fmt::format("the peer speaks Lockstep protocol version {}, and this process version {}; run the same build of "
                    "Lockstep everywhere",
                    version, kProtocolVersion));
  }
  if (channel != channel_) {
    return fail(ErrorKind::invalid_argument,
                fmt::format("the peer is on channel '{}', but this process is on '{}'; is this the right port?",
                            to_string(channel), to_string(channel_)));
  }
  if (role_ == Role::client) {
    output_ += make_proof(key_, {"client", client_hello(), server_hello(), my_identity_});
    put_u16(output_, static_cast<std::uint16_t>(my_identity_.size()));
    output_ += my_identity_;
  }
}

void Handshake::take_head() {
  WireReader reader(ByteView(head_).substr(kProofBytes), "a proof message");
  wanted_ = reader.u16();
  const std::size_t limit = role_ == Role::server ? kMaxIdentityBytes : kMaxVerdictBytes;
  if (wanted_ > limit) {
    fail(ErrorKind::corrupt_data,
         fmt::format("the peer announced {} bytes in a handshake; the limit is {}", wanted_, limit));
  } else if (wanted_ == 0) {
    fail(ErrorKind::unauthorized, wrong_token());
  }
}

void Handshake::take_proof(const Bytes& identity) {
  const Bytes expected = make_proof(key_, {"client", client_hello(), server_hello(), identity});
  if (!proofs_equal(expected, ByteView(head_).substr(0, kProofBytes))) {
    // An empty verdict under no proof: enough for the client to know, nothing for a stranger to learn.
    output_.append(kProofBytes, '\0');
    put_u16(output_, 0);
    return fail(ErrorKind::unauthorized, wrong_token());
  }
  std::optional<Refusal> refusal;
  try {
    peer_ = decode_identity(identity);
    if (admission_) refusal = admission_(peer_);
  } catch (const Error& error) {
    refusal = Refusal{error.kind(), error.what()};
  }
  Bytes body;
  put_u8(body, refusal ? static_cast<std::uint8_t>(refusal->kind) : kAdmitted);
  put_u16(body, static_cast<std::uint16_t>(my_identity_.size()));
  body += my_identity_;
  if (refusal) body += ByteView(refusal->reason).substr(0, kMaxRefusalBytes);
  output_ += make_proof(key_, {"server", client_hello(), server_hello(), identity, body});
  put_u16(output_, static_cast<std::uint16_t>(body.size()));
  output_ += body;
  if (refusal) fail(refusal->kind, fmt::format("refused {}: {}", to_string(peer_), refusal->reason));
}

void Handshake::take_verdict(const Bytes& body) {
  const Bytes expected = make_proof(key_, {"server", client_hello(), server_hello(), my_identity_, body});
  if (!proofs_equal(expected, ByteView(head_).substr(0, kProofBytes)))
    return fail(ErrorKind::unauthorized, wrong_token());
  WireReader reader(body, "a verdict message");
  const std::uint8_t verdict = reader.u8();
  peer_ = decode_identity(reader.take(reader.u16()));
  if (verdict == kAdmitted) return reader.expect_end();
  const bool known = verdict <= static_cast<std::uint8_t>(ErrorKind::internal);
  fail(known ? static_cast<ErrorKind>(verdict) : ErrorKind::internal,
       fmt::format("{} refused this process: {}", to_string(peer_), reader.take(reader.left())));
}

std::string Handshake::wrong_token() const {
  if (role_ == Role::server && token_origin_.empty()) return "it holds another job token, or belongs to another job";
  if (role_ == Role::server) return fmt::format("it holds another job token than this process, {}", token_origin_);
  if (!token_origin_.empty()) {
    return fmt::format(
        "the peer holds another job token than this process, {}. All hosts of a job need the same one: copy the first "
        "host's ~/.lockstep/token, or the file that LOCKSTEP_TOKEN_FILE names there, to this host (mode 0600)",
        token_origin_);
  }
  return fmt::format("{} '{}'", kWrongToken, job_id_);
}

}  // namespace lockstep::internal
