// Symbols names places in code for people: "train_step(Batch&) (train.cpp:41)". It reads programs and libraries from
// disk, by elfutils' libdw; nothing is fetched from elsewhere. In a file without names a place is "libfoo.so+0x1234".
// Reading a large library takes a while: after the given time the rest is not looked up any more. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/job/launch/stack_reader.h"

namespace lockstep::internal {

class Symbols {
 public:
  explicit Symbols(Deadline until);
  ~Symbols();
  Symbols(const Symbols&) = delete;
  Symbols& operator=(const Symbols&) = delete;

  std::string name(const CodeAddress& place);
  // The function alone and in full, as C++ writes it: "void f<int>(int)"; empty if it is not known.
  std::string function(const CodeAddress& place);

 private:
  class File;
  // Null if there is no time left.
  const File* file_of(const CodeAddress& place);
  std::string look_up(const CodeAddress& place);

  Deadline until_;
  std::map<std::string, std::unique_ptr<File>> files_;
  std::map<CodeAddress, std::string> names_;
  std::map<CodeAddress, std::string> functions_;
};

// The stacks of one process, for people. The main thread is first, or if it waits in a library, the threads that are in
// functions of the program. Those with the same stack are told once, and those that wait for work in a library, without
// any function of the program, in a line. Lines without newlines or indentation at the left.
std::vector<std::string> describe_stacks(const std::vector<ThreadStack>& threads, Symbols& symbols);
// Whose a function of an executable is, by its full name: Lockstep, libtorch and the standard library are often in the
// executable, too.
enum class CodeOwner { program, library, glue };  // glue: templates that wait, or call what others gave them
CodeOwner owner_of_function(std::string_view function);
// Without the frames of libc and the C++ runtime; all of them if nothing else would be left.
std::vector<CodeAddress> without_runtime(const std::vector<CodeAddress>& frames, Symbols& symbols);
// "#0 train_step(Batch&) (train.cpp:41)"
std::vector<std::string> describe_frames(const std::vector<CodeAddress>& frames, Symbols& symbols);

}  // namespace lockstep::internal
