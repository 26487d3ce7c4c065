#include "lockstep/comm/net/handshake_crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

HandshakeKey hmac_sha256(ByteView key, ByteView message) {
  HandshakeKey digest{};
  unsigned length = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  if (::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), data, message.size(), digest.data(), &length) ==
          nullptr ||
      length != digest.size()) {
    throw Error(ErrorKind::internal, "OpenSSL cannot compute HMAC-SHA256; is its configuration restricted?");
  }
  return digest;
}

ByteView view(const HandshakeKey& key) { return {reinterpret_cast<const char*>(key.data()), key.size()}; }

}  // namespace

HandshakeKey derive_handshake_key(const Token& token, std::string_view job_id, std::string_view channel) {
  const ByteView secret(reinterpret_cast<const char*>(token.bytes().data()), Token::kBytes);
  const HandshakeKey extracted = hmac_sha256(job_id, secret);
  // One block of HKDF's expansion is exactly one key.
  Bytes info = "lockstep handshake ";
  info += channel;
  put_u8(info, 1);
  return hmac_sha256(view(extracted), info);
}

Bytes make_proof(const HandshakeKey& key, std::initializer_list<ByteView> parts) {
  Bytes message;
  for (const ByteView part : parts) put_bytes(message, part);
  return Bytes(view(hmac_sha256(view(key), message)));
}

bool proofs_equal(ByteView left, ByteView right) {
  return left.size() == right.size() && ::CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace lockstep::internal
