#include "lockstep/comm/group/rank_zero.h"

#include <cstdarg>
#include <cstdio>

#include "lockstep/base/error.h"
#include "lockstep/base/failure_note.h"
#include "lockstep/comm/group/process_group.h"

namespace lockstep {

using namespace internal;

void log_rank0(const ProcessGroup& group, const char* format, ...) {
  if (group.rank() != 0) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::putchar('\n');
  std::fflush(stdout);
}

void internal::share_outcome(const ProcessGroup& group, const std::optional<std::string>& failure,
                             const CallOptions& options) {
  const std::string told = broadcast_bytes(group, failure ? "!" + *failure : std::string(), 0, options);
  if (told.empty() || group.rank() == 0) return;
  throw Error(ErrorKind::invalid_argument, "main_rank_first: rank 0 failed: " + told.substr(1),
              {.rank = group.rank(), .peer = 0, .operation = "main_rank_first"});
}

void internal::share_failure(const ProcessGroup& group, const CallOptions& options) noexcept {
  const std::string text = text_of_exception();
  try {
    share_outcome(group, text, options);
  } catch (const std::exception&) {  // rank 0 throws what it failed with
  }
}

}  // namespace lockstep
