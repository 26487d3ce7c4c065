// Symbols names places in code for people: "train_step(Batch&) (train.cpp:41)". It reads programs and libraries from
// disk, by elfutils' libdw; nothing is fetched from elsewhere. In a file without names a place is "libfoo.so+0x1234".
// Reading a large library takes a while: after the given time the rest is not looked up any more. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/launch/stack_reader.h"

namespace lockstep::internal {

class Symbols {
 public:
  explicit Symbols(Deadline until);
  ~Symbols();
  Symbols(const Symbols&) = delete;
  Symbols& operator=(const Symbols&) = delete;

  std::string name(const CodeAddress& place);

 private:
  class File;
  std::string look_up(const CodeAddress& place);

  Deadline until_;
  std::map<std::string, std::unique_ptr<File>> files_;
  std::map<CodeAddress, std::string> names_;
};

// The stacks of one process, for people: the main thread first, then others, of which those with the same stack are
// told once, and those that only wait for work in a line. Lines without newlines or indentation at the left.
std::vector<std::string> describe_stacks(const std::vector<ThreadStack>& threads, Symbols& symbols);
// "#0 train_step(Batch&) (train.cpp:41)"
std::vector<std::string> describe_frames(const std::vector<CodeAddress>& frames, Symbols& symbols);

}  // namespace lockstep::internal
