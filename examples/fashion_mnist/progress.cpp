#include "examples/fashion_mnist/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using namespace std::chrono_literals;

constexpr auto kRedraw = 100ms;
constexpr auto kLineEvery = 5s;
constexpr int kBarWidth = 24;

// The launcher reads a rank's output through a pipe and says so when it shows it on a terminal.
bool shown_on_terminal() { return ::isatty(STDOUT_FILENO) == 1 || std::getenv("LOCKSTEP_TERMINAL") != nullptr; }

std::string bar(double done) {
  std::string text;
  const int full = static_cast<int>(done * kBarWidth);
  for (int i = 0; i < kBarWidth; ++i) text += i < full ? "\u2501" : "\u2500";
  return text;
}

}  // namespace

Progress::Progress(int epoch, int epochs, std::int64_t steps)
    : epoch_(epoch), epochs_(epochs), steps_(steps), terminal_(shown_on_terminal()), next_(start_) {}

void Progress::update(std::int64_t step, double loss, double samples_per_second, double communication) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_ && step != steps_) return;
  next_ = now + (terminal_ ? Time::duration(kRedraw) : Time::duration(kLineEvery));
  draw(step, loss, samples_per_second, communication);
  drawn_ = true;
}

void Progress::draw(std::int64_t step, double loss, double samples_per_second, double communication) const {
  const double done = static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(steps_, 1));
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const int eta =
      step > 0 ? static_cast<int>(elapsed / static_cast<double>(step) * static_cast<double>(steps_ - step)) : 0;
  const std::string shown = terminal_ ? bar(done) + " " : "";
  std::printf("%sepoch %d/%d %s%3.0f%% %ld/%ld  loss %.4f  %.0f images/s  communication %.1f%%  eta %d:%02d%s",
              terminal_ ? "\r" : "", epoch_ + 1, epochs_, shown.c_str(), done * 100, static_cast<long>(step),
              static_cast<long>(steps_), loss, samples_per_second, communication * 100, eta / 60, eta % 60,
              terminal_ ? "\033[K" : "\n");
  std::fflush(stdout);
}

void Progress::finish() {
  if (terminal_ && drawn_) std::printf("\n");
}
