// What a manifest's text ends with, and what covers all of it: its digest, and before that perhaps a signature.
//   {"files":...,"written":{...},"hmac_sha256":"<64 digits>","sha256":"<64 digits>"}
// The signature is of the text without signature and digest, and the digest of the text in which its own digits are
// zeros. Nothing in front can look like them, since they come last. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"
#include "lockstep/formats/digest.h"
#include "lockstep/train/checkpoint/signing_key.h"

namespace lockstep::internal {

inline constexpr const char* kSignatureMember = "hmac_sha256";

struct ManifestSeal {
  DigestKind digest = DigestKind::xxh3_128;
  std::size_t body_bytes = 0;  // in front of signature and digest
  std::string signature = {};  // empty: there is none
};

// body: a JSON object. key: none, and it is not signed.
std::string sealed(std::string body, DigestKind digest, const SigningKey* key);
// Error{corrupt_data}: the text does not end so, or has another digest.
ManifestSeal check_seal(ByteView text, const Origin& origin);
// REQUIRES: seal = check_seal(text), with a signature.
bool is_signed_with(ByteView text, const ManifestSeal& seal, const SigningKey& key);

}  // namespace lockstep::internal
