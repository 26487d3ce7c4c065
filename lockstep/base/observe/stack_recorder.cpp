#include "lockstep/base/observe/stack_recorder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <span>
#include <string_view>

#include "lockstep/base/signal_block.h"

namespace lockstep::internal {
namespace {

using stacks::CrashSlot;
using stacks::Module;
using stacks::StackArea;
using stacks::ThreadSlot;

constexpr std::array kCrashSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::size_t kHandlerStack = std::size_t{64} << 10;
constexpr std::uint64_t kLowestCode = 4096;
constexpr int kTurns = 50;

std::atomic<StackArea*> area_of_process = nullptr;
std::array<struct sigaction, kCrashSignals.size()> actions_before;

StackArea& area() { return *area_of_process.load(std::memory_order_relaxed); }

std::uint64_t interrupted_at(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uint64_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return machine.pc;
#else
#error "unsupported processor: cannot find where a signal interrupted the program"
#endif
}

// Where a call of a function that is not there returns to.
std::uint64_t caller_of_nothing(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return *reinterpret_cast<const std::uint64_t*>(machine.gregs[REG_RSP]);
#else
  return machine.regs[30];
#endif
}

// The frames from the interrupted one on; the handler's own are left out.
struct Walk {
  std::span<std::uint64_t> frames;
  std::uint64_t interrupted = 0;
  std::uint32_t count = 0;
  bool in_program = false;
};

_Unwind_Reason_Code take_frame(_Unwind_Context* context, void* argument) {
  Walk& walk = *static_cast<Walk*>(argument);
  const std::uint64_t address = _Unwind_GetIP(context);
  walk.in_program = walk.in_program || address == walk.interrupted;
  if (!walk.in_program) return _URC_NO_REASON;
  if (address == 0 || walk.count == walk.frames.size()) return _URC_END_OF_STACK;
  walk.frames[walk.count++] = address;
  return _URC_NO_REASON;
}

std::uint32_t take_frames(std::span<std::uint64_t> frames, const void* context) {
  Walk walk{.frames = frames, .interrupted = interrupted_at(context)};
  _Unwind_Backtrace(take_frame, &walk);
  if (walk.count > 0) return walk.count;
  frames[0] = walk.interrupted;
  return 1;
}

int thread_id() { return static_cast<int>(::syscall(SYS_gettid)); }

bool is_recorded() {
  const StackArea* area = area_of_process.load(std::memory_order_acquire);
  return area != nullptr && area->header.pid.load(std::memory_order_relaxed) == ::getpid();
}

void on_launcher(int /*signal*/, siginfo_t* /*info*/, void* context) {
  if (!is_recorded()) return;
  const int saved_errno = errno;
  stacks::StackHeader& header = area().header;
  const std::uint64_t round = header.round.load(std::memory_order_acquire);
  const std::uint32_t number = header.taken.fetch_add(1, std::memory_order_relaxed);
  if (number < stacks::kThreads) {
    ThreadSlot& slot = area().threads[number];
    // An exchange, so that what follows is not written before it; the thread sanitizer knows no fences.
    slot.version.exchange(2 * round + 1, std::memory_order_acq_rel);
    slot.thread = thread_id();
    slot.count = take_frames(slot.frames, context);
    slot.version.store(2 * round + 2, std::memory_order_release);
  }
  errno = saved_errno;
}

// A number in hexadecimal at the beginning of the text, which it cuts off with the character after it.
std::uint64_t cut_number(std::string_view& text) {
  std::uint64_t value = 0;
  std::size_t i = 0;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<std::uint64_t>(c - 'a' + 10);
    } else {
      break;
    }
  }
  text.remove_prefix(std::min(i + 1, text.size()));
  return value;
}

// A line of /proc/self/maps: "55d0-55e0 r-xp 00002000 fe:00 1835 /usr/bin/x"
void take_module(std::string_view line, CrashSlot& crash) {
  Module module{};
  module.begin = cut_number(line);
  module.end = cut_number(line);
  if (line.size() < 5 || line[2] != 'x') return;
  line.remove_prefix(5);
  module.offset = cut_number(line);
  const std::uint32_t made = crash.modules_made.load(std::memory_order_relaxed);
  const std::span frames(crash.frames, crash.frames_made.load(std::memory_order_relaxed));
  const auto within = [&](std::uint64_t frame) { return frame >= module.begin && frame < module.end; };
  if (made == stacks::kModules || std::none_of(frames.begin(), frames.end(), within)) return;
  const std::size_t path = std::min(line.find('/'), line.find('['));
  if (path < line.size()) line.substr(path).copy(module.path, sizeof module.path - 1);
  crash.modules[made] = module;
  crash.modules_made.store(made + 1, std::memory_order_release);
}

void take_modules(CrashSlot& crash) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  std::array<char, 2048> buffer;
  std::size_t held = 0;
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data() + held, buffer.size() - held);
    if (got <= 0) break;
    held += static_cast<std::size_t>(got);
    std::string_view text(buffer.data(), held);
    for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      take_module(text.substr(0, end), crash);
      text.remove_prefix(end + 1);
    }
    held = text.size() == buffer.size() ? 0 : text.size();  // a line without end is skipped
    std::memmove(buffer.data(), text.data(), held);
  }
  ::close(fd);
}

// Waits for a moment, while a thread whose crash the program handles records that.
bool take_slot(CrashSlot& crash, std::uint32_t as) {
  const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int turn = 0; turn < kTurns; ++turn) {
    std::uint32_t before = stacks::kNoCrash;
    if (crash.taken.compare_exchange_strong(before, as)) return true;
    if (before != stacks::kHandledCrash || as == stacks::kHandledCrash) return false;
    ::nanosleep(&moment, nullptr);
  }
  return false;
}

// Whether the modules that are known contain all frames: what a program handles happens over and over again.
bool knows_modules(const CrashSlot& crash, std::uint32_t frames) {
  const std::span known(crash.modules, crash.modules_made.load(std::memory_order_relaxed));
  const auto is_known = [&](std::uint64_t frame) {
    return std::any_of(known.begin(), known.end(),
                       [&](const Module& module) { return frame >= module.begin && frame < module.end; });
  };
  return std::all_of(crash.frames, crash.frames + frames, is_known);
}

void note_modules(CrashSlot& crash, std::uint32_t frames) {
  if (knows_modules(crash, frames)) return;
  crash.modules_made.store(0, std::memory_order_release);
  take_modules(crash);
}

void record_crash(CrashSlot& crash, std::uint32_t as, int signal, const siginfo_t& info, const void* context) {
  if (!take_slot(crash, as)) return;
  crash.frames_made.store(0, std::memory_order_release);
  crash.signal = signal;
  crash.thread = thread_id();
  crash.sender = info.si_code <= 0 ? info.si_pid : 0;
  crash.address = info.si_code <= 0 ? 0 : reinterpret_cast<std::uint64_t>(info.si_addr);
  ::prctl(PR_GET_NAME, crash.name);
  crash.frames[0] = interrupted_at(context);
  std::uint32_t frames = 1;
  if (crash.frames[0] < kLowestCode) {  // the unwinder would crash as well
    crash.frames[1] = caller_of_nothing(context);
    frames = 2;
    crash.frames_made.store(frames, std::memory_order_release);
  } else {
    crash.frames_made.store(frames, std::memory_order_release);
    note_modules(crash, frames);  // in case that the stack is damaged, and ends the walk along it
    frames = take_frames(crash.frames, context);
    crash.frames_made.store(frames, std::memory_order_release);
  }
  note_modules(crash, frames);
  if (as == stacks::kHandledCrash) crash.taken.store(stacks::kNoCrash, std::memory_order_release);
}

bool is_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

// As the system would have called it.
void call_handler(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  if ((action.sa_flags & SA_RESETHAND) != 0) ::signal(signal, SIG_DFL);
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

// A program's own handler is called, and may not return, or mend what went wrong. Without one, returning repeats the
// instruction that failed, and that ends the process; a signal that was sent is sent again.
void on_crash(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto index =
      static_cast<std::size_t>(std::find(kCrashSignals.begin(), kCrashSignals.end(), signal) - kCrashSignals.begin());
  const struct sigaction& before = actions_before[index];
  const bool handled = is_handler(before);
  if (!handled) ::sigaction(signal, &before, nullptr);
  if (is_recorded()) {
    record_crash(area().crash, handled ? stacks::kHandledCrash : stacks::kLastCrash, signal, *info, context);
  }
  if (handled) {
    errno = saved_errno;
    return call_handler(before, signal, info, context);
  }
  if (info->si_code <= 0) ::syscall(SYS_tgkill, ::getpid(), thread_id(), signal);
  errno = saved_errno;
}

// A stack overflow leaves no room for a handler.
void make_handler_stack() {
  stack_t present{};
  if (::sigaltstack(nullptr, &present) != 0 || (present.ss_flags & SS_DISABLE) == 0) return;
  void* memory = ::mmap(nullptr, kHandlerStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t ours{.ss_sp = memory, .ss_flags = 0, .ss_size = kHandlerStack};
  ::sigaltstack(&ours, nullptr);
}

bool is_sanitized() {
  constexpr std::array kMarks{"__asan_init", "__tsan_init", "__msan_init", "__hwasan_init"};
  return std::any_of(kMarks.begin(), kMarks.end(),
                     [](const char* mark) { return ::dlsym(RTLD_DEFAULT, mark) != nullptr; });
}

void catch_crashes() {
  for (std::size_t i = 0; i < kCrashSignals.size(); ++i) {
    if (::sigaction(kCrashSignals[i], nullptr, &actions_before[i]) != 0) continue;
    const struct sigaction& before = actions_before[i];
    if (!is_handler(before) && before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    if (is_handler(before)) {  // it runs on the stack, and with the signals blocked, that it expects
      action.sa_flags = SA_SIGINFO | (before.sa_flags & (SA_ONSTACK | SA_NODEFER | SA_RESTART));
      action.sa_mask = before.sa_mask;
    }
    ::sigaction(kCrashSignals[i], &action, nullptr);
  }
}

// The signal that was taken, or 0.
int catch_launcher() {
  // Programs that use real-time signals begin at one of their ends.
  for (int signal = SignalBlock::of_stacks(); signal > SIGRTMIN + 4; --signal) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_sigaction = on_launcher;
    action.sa_flags = SA_SIGINFO | SA_RESTART;  // on the thread's own stack: others are often small
    ::sigfillset(&action.sa_mask);
    for (const int crash : kCrashSignals) ::sigdelset(&action.sa_mask, crash);
    if (::sigaction(signal, &action, nullptr) == 0) return signal;
  }
  return 0;
}

_Unwind_Reason_Code take_nothing(_Unwind_Context* /*context*/, void* /*argument*/) { return _URC_NO_REASON; }

}  // namespace

void start_stack_recorder(StackArea& area) noexcept {
  if (area_of_process.load() != nullptr) return;
  _Unwind_Backtrace(take_nothing, nullptr);  // the first call loads and allocates
  area_of_process.store(&area, std::memory_order_release);
  make_handler_stack();
  if (!is_sanitized()) catch_crashes();
  area.header.signal.store(catch_launcher(), std::memory_order_relaxed);
  area.header.pid.store(::getpid(), std::memory_order_release);
}

void check_stack_recorder() noexcept {
  if (!is_recorded()) return;
  std::atomic<std::int32_t>& signal = area().header.signal;
  struct sigaction now {};
  if (signal.load() == 0 || ::sigaction(signal.load(), nullptr, &now) != 0) return;
  if (now.sa_sigaction != on_launcher) signal.store(0);
}

}  // namespace lockstep::internal
