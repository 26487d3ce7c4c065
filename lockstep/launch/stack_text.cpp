#include <algorithm>
#include <array>
#include <string_view>

#include "lockstep/base/format.h"
#include "lockstep/launch/symbols.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kMostFrames = 20;
constexpr std::size_t kMostStacks = 12;  // of one process
// A thread whose stack is longer does more than wait for work.
constexpr std::size_t kIdleFrames = 10;

// The functions in which pools of threads and servers wait; a collective waits in poll() or on a futex of its own.
constexpr std::array<std::string_view, 9> kIdle{"pthread_cond_wait",
                                                "pthread_cond_timedwait",
                                                "pthread_cond_clockwait",
                                                "gomp_",
                                                "__kmp_",
                                                "epoll_wait",
                                                "accept",
                                                "sigwait",
                                                "sem_wait"};
constexpr std::array<std::string_view, 6> kSystem{"libc.so", "libstdc++.so", "ld-linux",
                                                  "libgomp", "libpthread",   "libiomp"};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool is_of_system(const CodeAddress& place) {
  return std::ranges::any_of(kSystem, [&](std::string_view part) { return contains(place.file, part); });
}

bool is_idle(const ThreadStack& thread, Symbols& symbols) {
  if (thread.is_main || thread.frames.empty() || thread.frames.size() > kIdleFrames) return false;
  for (std::size_t i = 0; i < thread.frames.size() && i < 4; ++i) {
    if (!is_of_system(thread.frames[i])) return false;
    const std::string name = symbols.name(thread.frames[i]);
    if (std::ranges::any_of(kIdle, [&](std::string_view part) { return contains(name, part); })) return true;
  }
  return false;
}

std::string title(const ThreadStack& thread, std::size_t count) {
  const std::string others = count > 1 ? fmt::format(", and {} more", count - 1) : "";
  return thread.is_main ? "main thread" : fmt::format("thread {}{}", thread.name, others);
}

// Where a thread that waits for work will go on.
std::string purpose(const ThreadStack& thread, Symbols& symbols) {
  for (const CodeAddress& place : thread.frames) {
    if (!is_of_system(place)) return symbols.name(place);
  }
  return thread.name;
}

}  // namespace

std::vector<std::string> describe_frames(const std::vector<CodeAddress>& frames, Symbols& symbols) {
  std::vector<std::string> lines;
  for (const CodeAddress& place : frames) {
    // What calls main() or a thread's function is the same in all programs.
    if (std::string_view(symbols.name(place)).starts_with("start_thread (")) break;
    if (lines.size() == kMostFrames) {
      lines.push_back(fmt::format("... {} more", frames.size() - kMostFrames));
      break;
    }
    lines.push_back(fmt::format("#{} {}", lines.size(), symbols.name(place)));
    if (std::string_view(symbols.name(place)).starts_with("main (")) break;
  }
  return lines;
}

std::vector<std::string> describe_stacks(const std::vector<ThreadStack>& threads, Symbols& symbols) {
  std::vector<std::string> lines;
  std::vector<std::string> idle;
  std::vector<const ThreadStack*> told;
  std::size_t left_out = 0;
  std::size_t idle_threads = 0;
  std::size_t silent = 0;
  for (const ThreadStack& thread : threads) {
    if (thread.blocks_signals && !thread.is_main) {
      ++silent;
      continue;
    }
    if (is_idle(thread, symbols)) {
      ++idle_threads;
      if (std::string what = purpose(thread, symbols); std::ranges::find(idle, what) == idle.end()) {
        idle.push_back(std::move(what));
      }
      continue;
    }
    const auto same = [&](const ThreadStack& each) {
      return !each.is_main && each.frames == thread.frames && each.remark == thread.remark;
    };
    if (std::ranges::any_of(told, [&](const ThreadStack* each) { return same(*each); })) continue;
    if (told.size() == kMostStacks) {
      ++left_out;
      continue;
    }
    told.push_back(&thread);
    const auto count = thread.is_main ? 1 : static_cast<std::size_t>(std::ranges::count_if(threads, same));
    lines.push_back(title(thread, count) + (thread.remark.empty() ? "" : ": " + thread.remark));
    for (const std::string& line : describe_frames(thread.frames, symbols)) lines.push_back("  " + line);
  }
  if (left_out > 0) lines.push_back(fmt::format("{} more threads with other stacks", left_out));
  if (idle_threads > 0) {
    lines.push_back(fmt::format("{} thread{} only wait{} for work: {}", idle_threads, idle_threads == 1 ? "" : "s",
                                idle_threads == 1 ? "s" : "", fmt::join(idle, "; ")));
  }
  if (silent > 0)
    lines.push_back(fmt::format("{} thread{} without a stack: signals are blocked", silent, silent == 1 ? "" : "s"));
  return lines;
}

}  // namespace lockstep::internal
