// The command of each rank: a program as it is, or a Python script or module behind an interpreter.
#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

struct ProgramStyle {
  bool module = false;     // -m: the name of a Python module
  bool no_python = false;  // never behind an interpreter
  bool run_path = false;   // a Python script, by runpy.run_path()
};

// A file whose name ends with .py is a Python script. The interpreter is PYTHON_EXEC, as torchrun has it, else python3;
// it writes unbuffered. `words`: the program and its arguments.
std::vector<std::string> command_of(const std::vector<std::string>& words, const ProgramStyle& style);

}  // namespace lockstep::tools
