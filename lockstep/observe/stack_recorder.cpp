#include "lockstep/observe/stack_recorder.h"

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
#include <cerrno>
#include <csignal>
#include <cstring>
#include <span>
#include <string_view>

namespace lockstep::internal {
namespace {

using stacks::CrashSlot;
using stacks::Module;
using stacks::StackArea;
using stacks::ThreadSlot;

constexpr std::array kCrashSignals{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::size_t kHandlerStack = std::size_t{64} << 10;
constexpr std::uint64_t kLowestCode = 4096;

StackArea* area_of_process = nullptr;
std::array<struct sigaction, kCrashSignals.size()> actions_before;

std::uint64_t interrupted_at(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uint64_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return machine.pc;
#else
#error "where a signal interrupted the program is not known for this processor"
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
  return area_of_process != nullptr && area_of_process->header.pid.load(std::memory_order_relaxed) == ::getpid();
}

void on_launcher(int /*signal*/, siginfo_t* /*info*/, void* context) {
  if (!is_recorded()) return;
  const int saved_errno = errno;
  stacks::StackHeader& header = area_of_process->header;
  const std::uint64_t round = header.round.load(std::memory_order_acquire);
  const std::uint32_t number = header.taken.fetch_add(1, std::memory_order_relaxed);
  if (number < stacks::kThreads) {
    ThreadSlot& slot = area_of_process->threads[number];
    // An exchange, so that what follows is not written before it; the thread sanitizer knows no fences.
    slot.version.exchange(2 * round + 1, std::memory_order_acq_rel);
    slot.thread = thread_id();
    slot.count = take_frames(slot.frames, context);
    slot.version.store(2 * round + 2, std::memory_order_release);
  }
  errno = saved_errno;
}

// A number in hexadecimal at the beginning of the text, which it cuts off with the character behind it.
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

void record_crash(CrashSlot& crash, int signal, const siginfo_t& info, const void* context) {
  std::uint32_t expected = 0;
  if (!crash.taken.compare_exchange_strong(expected, 1)) return;
  crash.signal = signal;
  crash.thread = thread_id();
  crash.sender = info.si_code <= 0 ? info.si_pid : 0;
  crash.address = info.si_code <= 0 ? 0 : reinterpret_cast<std::uint64_t>(info.si_addr);
  ::prctl(PR_GET_NAME, crash.name);
  crash.frames[0] = interrupted_at(context);
  if (crash.frames[0] < kLowestCode) {  // the unwinder would crash as well
    crash.frames[1] = caller_of_nothing(context);
    crash.frames_made.store(2, std::memory_order_release);
  } else {
    crash.frames_made.store(1, std::memory_order_release);
    take_modules(crash);  // in case that the stack is damaged, and ends the walk along it
    crash.frames_made.store(take_frames(crash.frames, context), std::memory_order_release);
    crash.modules_made.store(0, std::memory_order_release);
  }
  take_modules(crash);
}

// Returning repeats the instruction that failed, with what handled the signal before; a signal that was sent is sent
// again.
void on_crash(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto index =
      static_cast<std::size_t>(std::find(kCrashSignals.begin(), kCrashSignals.end(), signal) - kCrashSignals.begin());
  ::sigaction(signal, &actions_before[index], nullptr);
  if (is_recorded()) record_crash(area_of_process->crash, signal, *info, context);
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
    if (actions_before[i].sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(kCrashSignals[i], &action, nullptr);
  }
}

// The signal that was taken, or 0.
int catch_launcher() {
  // Programs that use real-time signals begin at one of their ends.
  for (int signal = SIGRTMAX - 8; signal > SIGRTMIN + 4; --signal) {
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
  if (area_of_process != nullptr) return;
  _Unwind_Backtrace(take_nothing, nullptr);  // the first call loads and allocates
  area_of_process = &area;
  make_handler_stack();
  if (!is_sanitized()) catch_crashes();
  area.header.signal.store(catch_launcher(), std::memory_order_relaxed);
  area.header.pid.store(::getpid(), std::memory_order_release);
}

}  // namespace lockstep::internal
