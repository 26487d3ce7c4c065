#include "lockstep/train/checkpoint/signature_check.h"

#include "lockstep/base/checked.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/train/checkpoint/manifest_seal.h"

namespace lockstep::internal {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view why) {
  throw Error(ErrorKind::unauthorized, fmt::format("{} {}", path.string(), why));
}

// Whatever is wrong with the token, no signature can be checked with it.
std::optional<SigningKey> key_of_this_user() {
  try {
    return SigningKey::of_this_user_if_any();
  } catch (const Error& error) {
    throw Error(ErrorKind::unauthorized, fmt::format("checking the signature of a checkpoint: {}", error.what()));
  }
}

}  // namespace

std::string_view to_string(SignatureState state) {
  switch (state) {
    case SignatureState::absent: return "not signed";
    case SignatureState::right: return "signed";
    case SignatureState::unknown: return "signed; there is no token to check the signature";
  }
  return "";
}

SignatureState SignatureCheck::check(ByteView manifest, const std::filesystem::path& path) const {
  const ManifestSeal seal = check_seal(manifest, Origin(path.string()));
  if (seal.signature.empty()) {
    if (need_ == Need::none) return SignatureState::absent;
    refuse(path, "is not signed, but a signature is required; do not require one, or save it with SaveOptions::sign");
  }
  const std::optional<SigningKey> key = key_ ? key_ : key_of_this_user();
  if (!key) {
    if (need_ == Need::none) return SignatureState::unknown;
    refuse(path,
           "is signed, but there is no token to check the signature; set LOCKSTEP_TOKEN_FILE to a copy of the token "
           "that it was signed with");
  }
  if (is_signed_with(manifest, seal, *key)) return SignatureState::right;
  refuse(path,
         "was signed with another token, or changed since; set LOCKSTEP_TOKEN_FILE to a copy of the token that "
         "it was signed with, or remove this checkpoint");
}

}  // namespace lockstep::internal
