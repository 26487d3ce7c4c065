// A reader for the pickles of PyTorch's files, which executes nothing. bytes -> values. It knows the opcodes of
// protocols 2 to 5, and the names in pickle_classes.cpp; results of other names are opaque. Memory grows with the
// bytes, not with the numbers in them. Error{invalid_argument}: an opcode that Lockstep does not read, a name that runs
// programs, or only one value that is not understood. Error{corrupt_data}: bytes that are not a pickle, arguments that
// a known name cannot have, limits of PickleLimits. Both name file, byte and opcode or class.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/pickle_tree.h"

namespace lockstep::internal {

// `origin` names the file in errors. The bytes are exactly one pickle.
std::unique_ptr<const PickleTree> read_pickle(Bytes bytes, std::string origin);

}  // namespace lockstep::internal
