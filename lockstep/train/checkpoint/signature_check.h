// Checks whether the manifest of a set is signed with the right token. manifest's text -> SignatureCheck -> its state,
// or an error. A token is looked up only if there is a signature, or must be one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/train/checkpoint/signing_key.h"

namespace lockstep::internal {

enum class SignatureState : std::uint8_t {
  absent,
  right,
  unknown,  // there is a signature, and no token to check it with
};
std::string_view to_string(SignatureState state);

class SignatureCheck {
 public:
  enum class Need : std::uint8_t { none, required };

  explicit SignatureCheck(Need need) : need_(need) {}
  // With the token of a file, in place of the user's own.
  SignatureCheck(Need need, SigningKey key) : need_(need), key_(key) {}

  // `path` names the manifest. Error{corrupt_data}: it does not end like a manifest; parse_manifest() finds other
  // damage. Error{unauthorized}: it was signed with another token, or the text was changed; or there is no signature,
  // or no token, although one is required.
  SignatureState check(ByteView manifest, const std::filesystem::path& path) const;

 private:
  Need need_;
  std::optional<SigningKey> key_ = {};
};

}  // namespace lockstep::internal
