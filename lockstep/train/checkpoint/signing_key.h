// The key that manifests are signed with: HMAC-SHA-256 under the user's token, the one that LOCKSTEP_TOKEN_FILE names,
// or ~/.lockstep/token. Not that of one job, which `lockstep run` makes anew: a checkpoint outlives its job.
// Who holds the token can sign. Blocks for disk I/O only where a token is read. Errors as of Token.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/comm/net/handshake_crypto.h"

namespace lockstep::internal {

class SigningKey {
 public:
  explicit SigningKey(const Token& token);
  static SigningKey from_file(const std::filesystem::path& path) { return SigningKey(Token::from_file(path)); }
  // Creates the token if there is none yet.
  static SigningKey of_this_user();
  // Makes none.
  static std::optional<SigningKey> of_this_user_if_any();

  // 64 hexadecimal digits.
  std::string sign(ByteView text) const;
  bool has_signed(ByteView text, ByteView signature) const;

 private:
  HandshakeKey key_;
};

}  // namespace lockstep::internal
