// Shows how training goes: a bar that is redrawn on a terminal, a line every few seconds elsewhere. Standard output.
#pragma once

#include <chrono>
#include <cstdint>

class Progress {
 public:
  Progress(int epoch, int epochs, std::int64_t steps);

  // After each step. `loss`: mean over the epoch so far; `samples_per_second`: of all ranks; `communication`: share of
  // the time.
  void update(std::int64_t step, double loss, double samples_per_second, double communication);
  // Ends the bar's line.
  void finish();

 private:
  using Time = std::chrono::steady_clock::time_point;
  void draw(std::int64_t step, double loss, double samples_per_second, double communication) const;

  int epoch_;
  int epochs_;
  std::int64_t steps_;
  bool terminal_;
  bool drawn_ = false;
  Time start_ = std::chrono::steady_clock::now();
  Time next_;
};
