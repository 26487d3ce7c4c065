// A round is one creation of a group. Torch's store may hold keys of earlier ones: torchrun keeps its store when it
// restarts the ranks, and a group that is created again has the same name. Nothing else that the ranks have
// distinguishes rounds (nodes count restarts separately), so rank 0 sends the name of the round to all that join.
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

// Blocks until all ranks are in one round. `token` is the one that rank 0 shares with the others; each removes it from
// the store once it has read it. Error{timeout} names the ranks that did not join; Error{invalid_argument}: another
// process has this rank, or the ranks disagree about the size.
Round agree_on_round(Store& store, int rank, int size, const std::optional<Token>& token, Deadline deadline);

}  // namespace lockstep::python
