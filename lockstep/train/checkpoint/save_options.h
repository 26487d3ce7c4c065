// Options of save(), AsyncSaver and load().
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/formats/safetensors/digest.h"
#include "lockstep/train/checkpoint/retention.h"

namespace lockstep {

// The result of a save if parameters or optimizer state differ between ranks. Differing values of several ranks are
// never mixed in one set.
enum class IfRanksDiffer : std::uint8_t {
  refuse,  // Error{desync} on all ranks, which names the first tensor; no set appears
  rank_0,  // rank 0 writes all of its values; nothing is compared, and the metadata has "replicas": "rank_0"
};

struct SaveOptions {
  Retention retention = {};  // which other checkpoints are kept in the directory
  // Of every piece and of the manifest. XXH3-128 costs next to nothing, and detects all accidental damage.
  DigestKind digest = DigestKind::xxh3_128;
  // Also proves who wrote it: signs the manifest with the token in LOCKSTEP_TOKEN_FILE, or in ~/.lockstep/token
  // (docs/CHECKPOINTS.md). Digests are then SHA-256, regardless of `digest`: through them the signature covers tensors.
  bool sign = false;
  // Unset: refuse, but rank_0 for a DistributedDataParallel whose compare_parameters_every is 0, as between averagings.
  std::optional<IfRanksDiffer> if_ranks_differ = {};
};

struct LoadOptions {
  // Error{unauthorized} for a checkpoint that is not signed. A checkpoint that is signed with another token is always
  // refused, if there is a token.
  bool require_signature = false;
};

}  // namespace lockstep
