// A reader for the pickles of PyTorch's files, which executes nothing. bytes -> values. It knows the opcodes that
// torch.save and torch.distributed.checkpoint use, and the names in pickle_classes.cpp; everything else is refused by
// name. Memory grows with the bytes, not with the numbers in them.
// Error{invalid_argument}: an opcode, a class or a tensor that Lockstep does not read. Error{corrupt_data}: bytes that
// are no pickle, a value that contains itself, limits of PickleLimits. Both name file, byte and opcode or class.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/bytes.h"
#include "lockstep/formats/pickle_tree.h"

namespace lockstep::internal {

// `origin` names the file in errors. The bytes are one pickle and nothing behind it.
std::unique_ptr<const PickleTree> read_pickle(Bytes bytes, std::string origin);

}  // namespace lockstep::internal
