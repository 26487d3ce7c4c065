// Records the stacks of this process for its launcher: of any thread that the launcher signals, and of the thread that
// crashes (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT). Costs nothing until then.
//
// The handlers allocate nothing, take no lock and never wait. The exception is the unwinder: with glibc
// 2.35 or newer it finds its tables without a lock; with an older one it waits for a thread that is within dlopen(). So
// the launcher waits for frames for a limited time only. Code without unwind tables ends a stack early.
//
// A program's own handlers stay: the launcher's signal is a real-time signal that is neither handled nor ignored when
// the recorder starts; a crash is handed on to what was there before (Python's faulthandler, or the end of the
// process). Of a program whose handler goes on after a crash the last crash counts. Where a sanitizer reports crashes,
// or a signal is ignored, nothing is changed. A forked child records nothing. A signalled thread may see a sleep or
// poll() end with EINTR.
#pragma once

#include "lockstep/base/observe/stack_layout.h"

namespace lockstep::internal {

// Installs the handlers, and says so in the area, which must live for ever. Once per process. If there is no free
// signal, only crashes are recorded.
void start_stack_recorder(stacks::StackArea& area) noexcept;

// Says in the area if the program has taken the launcher's signal for itself since then, so that it gets none. A system
// call or two; any thread may call.
void check_stack_recorder() noexcept;

}  // namespace lockstep::internal
