// What save() and AsyncSaver do besides writing, and what load() asks for.
#pragma once

#include "lockstep/checkpoint/retention.h"
#include "lockstep/formats/digest.h"

namespace lockstep {

struct SaveOptions {
  Retention retention = {};  // which other checkpoints stay in the directory
  // Of every piece and of the manifest. XXH3-128 costs next to nothing, and finds every accident.
  DigestKind digest = DigestKind::xxh3_128;
  // Also says who wrote it: signs the manifest with the token that LOCKSTEP_TOKEN_FILE names, or ~/.lockstep/token
  // (docs/CHECKPOINTS.md). Digests are SHA-256 then, whatever `digest` says: the signature covers tensors through them.
  bool sign = false;
};

struct LoadOptions {
  // Error{unauthorized} for a checkpoint that is not signed. One that is signed with another token always is, as long
  // as there is a token.
  bool require_signature = false;
};

}  // namespace lockstep
