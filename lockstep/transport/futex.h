// The two futex calls that waiting in shared memory needs. The words may lie in memory that several processes map.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/base/clock.h"

namespace lockstep {

// Sleeps while *word == expected, at most `timeout`. May wake early.
void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, Duration timeout);
void futex_wake_all(const std::atomic<std::uint32_t>* word);

}  // namespace lockstep
