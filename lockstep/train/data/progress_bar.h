// Progress shows how a pass over the data goes: a bar that is redrawn on a terminal, a line every few seconds
// elsewhere. Standard output, of rank 0. For one thread.
//   lockstep::Progress progress(world, "epoch 1/3", steps);
//   for (...) progress.show(++step, "loss %.4f", loss);
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace lockstep {

class Progress {
 public:
  // Group: a World or a process group, whose rank 0 shows it.
  template <class Group>
  Progress(const Group& group, std::string title, std::int64_t steps)
      : Progress(std::move(title), steps, group.rank() == 0 ? Shown::yes : Shown::no) {}
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After each step; prints if it is time to.
  [[gnu::format(printf, 3, 4)]] void show(std::int64_t step, const char* format, ...);
  // Ends the bar's line.
  void finish();

 private:
  enum class Shown { yes, no };
  Progress(std::string title, std::int64_t steps, Shown shown);
  using Time = std::chrono::steady_clock::time_point;
  void draw(std::int64_t step, const char* text) const;

  const std::string title_;
  const std::int64_t steps_;
  const Shown shown_;
  const bool terminal_;
  bool drawn_ = false;
  const Time start_ = std::chrono::steady_clock::now();
  Time next_ = start_;
};

}  // namespace lockstep
