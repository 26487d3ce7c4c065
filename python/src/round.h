// A round is one making of a group. What torch's store holds may be of earlier ones: torchrun keeps its store when it
// restarts the ranks, and a group that is made again comes with the name of the one before. Nothing else that the ranks
// have tells the rounds apart (nodes count restarts each for itself), so rank 0 names the round to whoever comes.
// Backend -> here -> join().
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/net/token.h"
#include "lockstep/comm/store/store.h"

namespace lockstep::python {

struct Round {
  std::string name;    // a prefix that nobody has used in the store
  Bytes shared_token;  // what rank 0 gave; empty if it gave none
};

// Blocks until all ranks are in one round. `token` is what rank 0 shares with the others; each takes it out of the
// store as soon as it has read it. Error{timeout} names the ranks that did not come; Error{invalid_argument}: another
// process has taken this rank, or the ranks disagree about the size.
Round agree_on_round(Store& store, int rank, int size, const std::optional<Token>& token, Deadline deadline);

}  // namespace lockstep::python
