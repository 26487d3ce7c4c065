#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>

#include "lockstep/base/format.h"
#include "lockstep/job/launch/symbols.h"

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

// By its name alone: a program may lie in a folder such as my.solver/.
bool is_shared_library(std::string_view file) {
  const std::string_view name = file.substr(file.rfind('/') + 1);
  return name.ends_with(".so") || contains(name, ".so.");
}

bool is_of_system(const CodeAddress& place) {
  return std::ranges::any_of(kSystem, [&](std::string_view part) { return contains(place.file, part); });
}

constexpr std::array<std::string_view, 5> kLibraries{"lockstep::", "c10::", "at::", "torch::", "caffe2::"};
constexpr std::array<std::string_view, 2> kStandard{"std::", "__gnu_cxx::"};
// Begins a thread. The thread's function may be a part of it; the template arguments say whose that is.
constexpr std::array<std::string_view, 3> kStarters{"std::thread::_State_impl<", "std::thread::_Invoker<",
                                                    "std::__invoke"};
// A program's callback may be a part of it.
constexpr std::string_view kCallback = "std::_Function_handler<";

constexpr std::array<std::string_view, 5> kRuntime{"libc.so", "libstdc++.so", "libgcc_s.so", "libpthread", "ld-linux"};
// Of an exception that nobody catches, where they are not in these.
constexpr std::array<std::string_view, 7> kEndsOfPrograms{"__cxa_",
                                                          "__cxxabiv1::",
                                                          "__gnu_cxx::",
                                                          "std::terminate",
                                                          "_Unwind_",
                                                          "__gxx_personality",
                                                          "lockstep::internal::on_terminate"};

bool starts_with_any(std::string_view text, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view each) { return text.starts_with(each); });
}

// "std::vector<int> f<int>(int)" -> "f<int>(int)": the type that functions return is written for templates.
std::string_view without_return_type(std::string_view function) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < function.size(); ++i) {
    const char c = function[i];
    if (depth == 0 && c == '(') break;
    if (depth == 0 && c == ' ') begin = i + 1;
    if (c == '<' || c == '{' || c == '(') ++depth;
    if (c == '>' || c == '}' || c == ')') --depth;
  }
  return function.substr(begin);
}

// "std::thread::_State_impl<std::thread::_Invoker<std::tuple<f()::{lambda()#1}> > >::_M_run()" -> "f()::{lambda..."
std::string_view started_by(std::string_view name) {
  constexpr std::string_view kTuple = "std::tuple<";
  const std::size_t tuple = name.find(kTuple);
  name.remove_prefix(tuple == std::string_view::npos ? name.find('<') + 1 : tuple + kTuple.size());
  for (const std::string_view returned : {"void, ", "void ("}) {
    if (name.starts_with(returned)) name.remove_prefix(returned.size());
  }
  return name;
}

// A function of the program in the stack of a thread. What has no name is not taken for one.
bool is_of_program(const CodeAddress& place, Symbols& symbols) {
  if (place.file.empty() || is_shared_library(place.file)) return false;
  const std::string function = symbols.function(place);
  return !function.empty() && owner_of_function(function) == CodeOwner::program;
}

bool is_in_program(const ThreadStack& thread, Symbols& symbols) {
  return std::ranges::any_of(thread.frames, [&](const CodeAddress& place) { return is_of_program(place, symbols); });
}

// Whether the nearest caller of the system is a library's.
bool waits_in_library(const ThreadStack& thread, Symbols& symbols) {
  for (const CodeAddress& place : thread.frames) {
    if (is_of_system(place)) continue;
    if (is_shared_library(place.file)) return true;
    switch (owner_of_function(symbols.function(place))) {
      case CodeOwner::program: return false;
      case CodeOwner::library: return true;
      case CodeOwner::glue: break;
    }
  }
  return false;
}

bool is_idle(const ThreadStack& thread, Symbols& symbols) {
  if (thread.is_main || thread.frames.empty() || thread.frames.size() > kIdleFrames) return false;
  if (is_in_program(thread, symbols)) return false;
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

// The order of telling: see describe_stacks().
std::vector<const ThreadStack*> in_order(const std::vector<ThreadStack>& threads, Symbols& symbols) {
  std::vector<const ThreadStack*> ordered;
  for (const ThreadStack& thread : threads) ordered.push_back(&thread);
  const bool main_waits = !threads.empty() && threads.front().is_main && waits_in_library(threads.front(), symbols);
  const auto is_early = [&](const ThreadStack* each) {
    return each->is_main ? !main_waits : is_in_program(*each, symbols);
  };
  std::ranges::stable_partition(ordered, is_early);
  return ordered;
}

bool is_of_runtime(const CodeAddress& place, Symbols& symbols) {
  if (std::ranges::any_of(kRuntime, [&](std::string_view part) { return contains(place.file, part); })) return true;
  return starts_with_any(symbols.function(place), kEndsOfPrograms);
}

}  // namespace

CodeOwner owner_of_function(std::string_view function) {
  const std::string_view name = without_return_type(function);
  if (starts_with_any(name, kLibraries)) return CodeOwner::library;
  if (name.starts_with(kCallback)) return CodeOwner::program;
  if (starts_with_any(name, kStarters)) {
    const std::string_view started = started_by(name);
    const bool is_pointer = started.starts_with("*)") || started.find("(*)") < started.find_first_of("<{,");
    return is_pointer || starts_with_any(started, kLibraries) ? CodeOwner::glue : CodeOwner::program;
  }
  return starts_with_any(name, kStandard) ? CodeOwner::glue : CodeOwner::program;
}

std::vector<CodeAddress> without_runtime(const std::vector<CodeAddress>& frames, Symbols& symbols) {
  std::vector<CodeAddress> kept;
  std::ranges::remove_copy_if(frames, std::back_inserter(kept),
                              [&](const CodeAddress& place) { return is_of_runtime(place, symbols); });
  return kept.empty() ? frames : kept;
}

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
  for (const ThreadStack* place : in_order(threads, symbols)) {
    const ThreadStack& thread = *place;
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
