// The end of a manifest's text, which covers all of it: its digest, and an optional signature before that.
//   {"files":...,"written":{...},"hmac_sha256":"<64 digits>","sha256":"<64 digits>"}
// The signature is of the text without signature and digest, the digest of the text with its own digits as zeros.
// Nothing earlier in the text can be mistaken for them, since they are last. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/base/checked.h"
#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/train/checkpoint/signing_key.h"

namespace lockstep::internal {

inline constexpr const char* kSignatureMember = "hmac_sha256";

struct ManifestSeal {
  DigestKind digest = DigestKind::xxh3_128;
  std::size_t body_bytes = 0;  // before signature and digest
  std::string signature = {};  // empty: there is none
};

// body: a JSON object. key: none, and it is not signed.
std::string sealed(std::string body, DigestKind digest, const SigningKey* key);
// Error{corrupt_data}: no such end, or another digest.
ManifestSeal check_seal(ByteView text, const Origin& origin);
// REQUIRES: seal = check_seal(text), with a signature.
bool is_signed_with(ByteView text, const ManifestSeal& seal, const SigningKey& key);

}  // namespace lockstep::internal
