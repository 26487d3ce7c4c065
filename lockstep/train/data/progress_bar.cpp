#include "lockstep/train/data/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

#include "lockstep/base/environment.h"

namespace lockstep {

using namespace internal;

namespace {

using namespace std::chrono_literals;

constexpr auto kRedraw = 100ms;
constexpr auto kLineEvery = 5s;
constexpr int kBarWidth = 24;

// The launcher reads a rank's output through a pipe and sets a variable if it shows it on a terminal.
bool shown_on_terminal() { return ::isatty(STDOUT_FILENO) == 1 || EnvironmentReader().has("LOCKSTEP_TERMINAL"); }

std::string bar(double done) {
  std::string text;
  const int full = static_cast<int>(done * kBarWidth);
  for (int i = 0; i < kBarWidth; ++i) text += i < full ? "\u2501" : "\u2500";
  return text;
}

}  // namespace

Progress::Progress(std::string title, std::int64_t steps, Shown shown)
    : title_(std::move(title)), steps_(steps), shown_(shown), terminal_(shown_on_terminal()) {}

void Progress::finish() {
  if (terminal_ && std::exchange(drawn_, false)) std::printf("\n");
}

void Progress::show(std::int64_t step, const char* format, ...) {
  const Time now = std::chrono::steady_clock::now();
  if (shown_ == Shown::no || (now < next_ && step != steps_)) return;
  next_ = now + (terminal_ ? Time::duration(kRedraw) : Time::duration(kLineEvery));
  std::array<char, 512> text{};
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  draw(step, text.data());
  drawn_ = true;
}

void Progress::draw(std::int64_t step, const char* text) const {
  const double done = static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(steps_, 1));
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const int eta =
      step > 0 ? static_cast<int>(elapsed / static_cast<double>(step) * static_cast<double>(steps_ - step)) : 0;
  const std::string shown = terminal_ ? bar(done) + " " : "";
  std::printf("%s%s %s%3.0f%% %ld/%ld  %s  eta %d:%02d%s", terminal_ ? "\r" : "", title_.c_str(), shown.c_str(),
              done * 100, static_cast<long>(step), static_cast<long>(steps_), text, eta / 60, eta % 60,
              terminal_ ? "\033[K" : "\n");
  std::fflush(stdout);
}

}  // namespace lockstep
