#include "tools/run_program.h"

#include "lockstep/base/environment.h"

namespace lockstep::tools {
namespace {

constexpr const char* kRunPath =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

}  // namespace

std::vector<std::string> command_of(const std::vector<std::string>& words, const ProgramStyle& style) {
  const bool script = style.run_path || style.module || (!style.no_python && words.front().ends_with(".py"));
  if (!script) return words;
  std::vector<std::string> command{internal::EnvironmentReader().text("PYTHON_EXEC").value_or("python3"), "-u"};
  if (style.run_path) {
    command.insert(command.end(), {"-c", kRunPath});
  } else if (style.module) {
    command.emplace_back("-m");
  }
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

}  // namespace lockstep::tools
