#include "lockstep/job/launch/crash_stack.h"

#include <chrono>
#include <csignal>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/stack_reader.h"
#include "lockstep/job/launch/symbols.h"

namespace lockstep::internal {
namespace {

constexpr Duration kForCrashNames = std::chrono::seconds(3);

// A shell that ran the program reports its signal as a code.
bool ended_by(const ExitStatus& status, int signal) { return status.shell_code() == 128 + signal; }

}  // namespace

std::vector<std::string> crash_stack(const RankEnd& end, const FlightRecordings& recordings) {
  const FlightMemory* memory = recordings.memory(end.rank);
  const std::optional<CrashStack> crash = memory == nullptr ? std::nullopt : read_crash(*memory);
  if (!crash || !ended_by(end.status, crash->signal)) return {};
  Symbols symbols(Deadline::after(kForCrashNames));
  const std::string thread =
      crash->thread.is_main ? "its main thread" : fmt::format("its thread {}", crash->thread.name);
  std::string where;
  if (crash->sender != 0 && crash->sender != end.pid) {
    where = fmt::format(", sent by process {}", crash->sender);
  } else if (crash->signal == SIGSEGV || crash->signal == SIGBUS) {
    where = fmt::format(", at address 0x{:x}", crash->address);
  }
  std::vector<std::string> lines{fmt::format("{} in {}{}:", signal_name(crash->signal), thread, where)};
  // How an exception or a call ended in abort() is the same in all programs; a fault can lie in libc.
  const std::vector<CodeAddress> frames =
      crash->signal == SIGABRT ? without_runtime(crash->thread.frames, symbols) : crash->thread.frames;
  for (const std::string& line : describe_frames(frames, symbols)) lines.push_back("  " + line);
  return lines;
}

}  // namespace lockstep::internal
