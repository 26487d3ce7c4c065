// What save() and AsyncSaver do besides writing, and what load() asks for.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/formats/digest.h"
#include "lockstep/train/checkpoint/retention.h"

namespace lockstep {

// What becomes of a save where parameters or the optimizer's state are not the same on all ranks. Values of several
// ranks never come into one set.
enum class IfRanksDiffer : std::uint8_t {
  refuse,  // Error{desync} on all ranks, which names the first tensor; no set appears
  rank_0,  // rank 0 writes its own, whole; nothing is compared, and the metadata has "replicas": "rank_0"
};

struct SaveOptions {
  Retention retention = {};  // which other checkpoints stay in the directory
  // Of every piece and of the manifest. XXH3-128 costs next to nothing, and finds every accident.
  DigestKind digest = DigestKind::xxh3_128;
  // Also says who wrote it: signs the manifest with the token that LOCKSTEP_TOKEN_FILE names, or ~/.lockstep/token
  // (docs/CHECKPOINTS.md). Digests are SHA-256 then, whatever `digest` says: the signature covers tensors through them.
  bool sign = false;
  // Nothing: refuse, but rank_0 for a DistributedDataParallel whose compare_parameters_every is 0, as between
  // averagings.
  std::optional<IfRanksDiffer> if_ranks_differ = {};
};

struct LoadOptions {
  // Error{unauthorized} for a checkpoint that is not signed. One that is signed with another token always is, as long
  // as there is a token.
  bool require_signature = false;
};

}  // namespace lockstep
