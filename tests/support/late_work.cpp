#include "tests/support/late_work.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace lockstep::testing {

void LateWork::Gate::open() {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  opened_.notify_all();
}

bool LateWork::Gate::is_open() const {
  const std::lock_guard lock(mutex_);
  return is_open_;
}

void LateWork::Gate::await() const {
  std::unique_lock lock(mutex_);
  if (opened_.wait_for(lock, std::chrono::minutes(1), [this] { return is_open_; })) return;
  std::fputs("work on a fake device has not ended within a minute\n", stderr);
  std::abort();
}

LateWork::Gates LateWork::of(std::size_t stream) {
  const std::lock_guard lock(mutex_);
  Gates& gates = gates_[stream];
  std::erase_if(gates, [](const auto& gate) { return gate->is_open(); });
  return gates;
}

void LateWork::add(std::size_t stream, const Gates& added) {
  const std::lock_guard lock(mutex_);
  Gates& gates = gates_[stream];
  for (const auto& gate : added) {
    if (!gate->is_open() && std::ranges::find(gates, gate) == gates.end()) gates.push_back(gate);
  }
}

void await_all(const LateWork::Gates& gates) {
  for (const auto& gate : gates) gate->await();
}

bool are_open(const LateWork::Gates& gates) {
  return std::ranges::all_of(gates, [](const auto& gate) { return gate->is_open(); });
}

}  // namespace lockstep::testing
