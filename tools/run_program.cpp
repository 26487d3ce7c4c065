#include "tools/run_program.h"

#include "lockstep/base/environment.h"
#include "lockstep/base/format.h"
#include "lockstep/job/launch/outcome.h"
#include "lockstep/job/launch/signal_relay.h"

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

std::vector<std::pair<std::string, std::string>> environment_of(const RunOptions& options) {
  const EnvironmentReader reader;
  const std::vector<int>& given = options.signals_to_handle;
  std::vector<std::string> signals;
  for (const int signal : given.empty() ? SignalRelay::stop_signals() : given) signals.push_back(signal_name(signal));
  std::vector<std::pair<std::string, std::string>> environment{
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", fmt::format("{}", fmt::join(signals, ","))}};
  if (!reader.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) environment.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // Into a pipe Python writes whole blocks; what a rank printed last would come late, or never if it is killed.
  if (!reader.has("PYTHONUNBUFFERED")) environment.emplace_back("PYTHONUNBUFFERED", "1");
  environment.insert(environment.end(), options.environment.begin(), options.environment.end());
  return environment;
}

}  // namespace lockstep::tools
