#include "tools/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/job/inspect/finding.h"

namespace lockstep::tools {

using namespace internal;

Progress::Progress(std::string doing, std::uint64_t bytes)
    : doing_(std::move(doing)),
      bytes_(bytes),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      shown_at_(steady_clock().now()) {}

Progress::~Progress() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void Progress::at(std::uint64_t bytes) {
  if (!is_terminal_) return;
  const TimePoint now = steady_clock().now();
  if (now - shown_at_ < std::chrono::milliseconds(200)) return;
  shown_at_ = now;
  is_shown_ = true;
  std::fputs(fmt::format("\r\033[K{}: {} of {}", doing_, bytes_text(static_cast<double>(bytes)),
                         bytes_text(static_cast<double>(bytes_)))
                 .c_str(),
             stderr);
}

}  // namespace lockstep::tools
