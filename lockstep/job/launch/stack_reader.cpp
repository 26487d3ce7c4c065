#include "lockstep/job/launch/stack_reader.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <string_view>
#include <tuple>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/process_status.h"

namespace lockstep::internal {
namespace {

using stacks::Module;

std::string printable(std::string_view text) {
  std::string cleaned(text.substr(0, text.find('\0')));
  std::ranges::replace_if(
      cleaned, [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return cleaned;
}

CodeAddress place_of(std::uint64_t address, bool is_return, std::span<const Module> modules) {
  for (const Module& module : modules) {
    if (address < module.begin || address >= module.end) continue;
    const std::string path = printable(std::string_view(module.path, sizeof module.path));
    if (path.starts_with('/')) return {path, address - module.begin + module.offset, is_return};
  }
  return {"", address, is_return};
}

std::vector<CodeAddress> places_of(std::span<const std::uint64_t> frames, std::span<const Module> modules) {
  std::vector<CodeAddress> places;
  for (const std::uint64_t frame : frames) places.push_back(place_of(frame, !places.empty(), modules));
  return places;
}

// A line of maps, if it maps code: "55d0-55e0 r-xp 00002000 fe:00 1835   /usr/bin/x"
std::optional<Module> parse_module(const std::string& line) {
  Module module{};
  char rights[5] = {};
  int path = 0;
  if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %*s %*s %n", &module.begin, &module.end, rights, &module.offset,
                  &path) < 4 ||
      rights[2] != 'x') {
    return std::nullopt;
  }
  line.substr(std::min<std::size_t>(static_cast<std::size_t>(path), line.size()))
      .copy(module.path, sizeof module.path - 1);
  return module;
}

std::vector<Module> modules_of(int pid) {
  std::vector<Module> modules;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (const auto module = parse_module(line)) modules.push_back(*module);
  }
  return modules;
}

// Whether the process has mapped this very memory: another one may have its number, or another program.
bool has_mapped(int pid, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  const std::string inode = std::to_string(status.st_ino);
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep-flight") == std::string::npos) continue;
    std::array<std::string, 5> fields;
    std::istringstream words(line);
    for (std::string& field : fields) words >> field;
    if (fields[4] == inode) return true;
  }
  return false;
}

bool contains(std::uint64_t signals, int signal) { return signal > 0 && (signals >> (signal - 1) & 1) != 0; }

}  // namespace

std::optional<CrashStack> read_crash(const FlightMemory& memory) {
  const stacks::StackArea* area = memory.stacks();
  if (area == nullptr) return std::nullopt;
  const stacks::CrashSlot& slot = area->crash;
  const std::size_t frames =
      std::min<std::size_t>(slot.frames_made.load(std::memory_order_acquire), stacks::kCrashFrames);
  const std::size_t modules =
      std::min<std::size_t>(slot.modules_made.load(std::memory_order_acquire), stacks::kModules);
  if (frames == 0) return std::nullopt;
  CrashStack crash{
      .signal = slot.signal, .sender = slot.sender, .address = slot.address, .thread = {.thread = slot.thread}};
  crash.thread.is_main = slot.thread == area->header.pid.load();
  crash.thread.name = printable(std::string_view(slot.name, sizeof slot.name));
  crash.thread.frames = places_of(std::span(slot.frames, frames), std::span(slot.modules, modules));
  return crash;
}

StackRequest::StackRequest(const FlightMemory& memory) : memory_(memory) {
  remark_ = reason_not_to_ask();
  if (remark_.empty()) ask();
}

std::string StackRequest::reason_not_to_ask() const {
  const stacks::StackArea* area = memory_.stacks();
  const int pid = area == nullptr ? 0 : area->header.pid.load(std::memory_order_acquire);
  if (pid <= 0) return "its program records no stacks: it has not created a Lockstep group yet";
  const std::optional<ThreadStatus> status = read_thread_status(pid, pid);
  if (!status) return "its process has ended";
  if (!contains(status->caught, area->header.signal.load()) || !has_mapped(pid, memory_.fd())) {
    return "its program has no signal handler that records stacks: it replaced the handler, called exec, or had no "
           "free signal";
  }
  if (status->state == 'T' || status->state == 't') return "a stopped process cannot record its stacks";
  return "";
}

void StackRequest::ask() {
  stacks::StackHeader& header = memory_.stacks()->header;
  pid_ = header.pid.load();
  const int signal = header.signal.load();
  round_ = header.round.load() + 1;
  header.taken.store(0, std::memory_order_relaxed);
  header.round.store(round_, std::memory_order_release);
  for (const int thread : threads_of(pid_)) {
    const std::optional<ThreadStatus> status = read_thread_status(pid_, thread);
    if (!status) continue;
    ThreadStack& stack = threads_.emplace_back(
        ThreadStack{.thread = thread, .is_main = thread == pid_, .name = printable(status->name)});
    if (contains(status->blocked, signal)) {
      stack.blocks_signals = true;
      stack.remark = "its threads block signals";
    } else if (asked_.size() == stacks::kThreads) {
      stack.remark = "the process has too many threads";
    } else if (::syscall(SYS_tgkill, pid_, thread, signal) == 0) {
      asked_.push_back(thread);
      stack.remark = status->state == 'D' ? "it waits for a disk or a device, so it cannot record its stack"
                                          : "it has not recorded its stack in time";
    }
  }
}

bool StackRequest::complete() const {
  if (!remark_.empty()) return true;
  std::size_t whole = 0;
  for (const stacks::ThreadSlot& slot : memory_.stacks()->threads) {
    if (slot.version.load(std::memory_order_acquire) == 2 * round_ + 2) ++whole;
  }
  return whole >= asked_.size();
}

std::vector<ThreadStack> StackRequest::take() const {
  std::vector<ThreadStack> threads = threads_;
  if (!remark_.empty()) return threads;
  const std::vector<Module> modules = modules_of(pid_);
  for (stacks::ThreadSlot& slot : memory_.stacks()->threads) {
    if (slot.version.load(std::memory_order_acquire) != 2 * round_ + 2) continue;
    std::array<std::uint64_t, stacks::kFrames> frames;
    std::ranges::copy(slot.frames, frames.begin());
    const std::size_t count = std::min<std::size_t>(slot.count, frames.size());
    const auto thread = std::ranges::find(threads, slot.thread, &ThreadStack::thread);
    // A change by nothing, so that what was read before is not read after it.
    if (thread == threads.end() || slot.version.fetch_add(0, std::memory_order_acq_rel) != 2 * round_ + 2) continue;
    thread->remark.clear();
    thread->frames = places_of(std::span(frames).first(count), modules);
  }
  std::ranges::sort(threads, {}, [](const ThreadStack& each) { return std::make_tuple(!each.is_main, each.thread); });
  return threads;
}

}  // namespace lockstep::internal
