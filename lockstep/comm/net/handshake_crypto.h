// The keyed part of the handshake: a key per job and channel, and proofs made with it. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/net/token.h"

namespace lockstep::internal {

inline constexpr std::size_t kProofBytes = 32;
using HandshakeKey = std::array<std::uint8_t, 32>;

// HKDF-SHA256 with the job id as salt, so that neither another job nor another channel can use what it learns.
HandshakeKey derive_handshake_key(const Token& token, std::string_view job_id, std::string_view channel);
// HMAC-SHA256 over the parts, each preceded by its length.
Bytes make_proof(const HandshakeKey& key, std::initializer_list<ByteView> parts);
// In constant time.
bool proofs_equal(ByteView left, ByteView right);

}  // namespace lockstep::internal
