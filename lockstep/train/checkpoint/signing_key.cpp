#include "lockstep/train/checkpoint/signing_key.h"

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {

SigningKey::SigningKey(const Token& token) : key_(derive_handshake_key(token, "", "checkpoint manifest")) {}

SigningKey SigningKey::of_this_user() {
  const auto path = EnvironmentReader().text("LOCKSTEP_TOKEN_FILE");
  return path ? from_file(*path) : SigningKey(Token::from_home());
}

std::optional<SigningKey> SigningKey::of_this_user_if_any() {
  const auto path = EnvironmentReader().text("LOCKSTEP_TOKEN_FILE");
  if (path) return from_file(*path);
  const std::optional<Token> token = Token::from_home_if_any();
  return token ? std::optional(SigningKey(*token)) : std::nullopt;
}

std::string SigningKey::sign(ByteView text) const {
  std::string digits;
  for (const unsigned char byte : make_proof(key_, {text})) digits += fmt::format("{:02x}", byte);
  return digits;
}

bool SigningKey::has_signed(ByteView text, ByteView signature) const { return proofs_equal(sign(text), signature); }

}  // namespace lockstep::internal
