// Work that rank 0 does for all ranks. World -> rank 0.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/comm/group/process_group.h"

namespace lockstep {

// Prints a line to standard output on rank 0, at once, and nothing on the others: log_rank0(world, "loss %.4f", loss).
[[gnu::format(printf, 2, 3)]] void log_rank0(const ProcessGroup& group, const char* format, ...);

namespace internal {

// Rank 0 shares whether its part succeeded (nullopt) or failed: then Error{invalid_argument} that quotes the failure.
// Collective.
void share_outcome(const ProcessGroup& group, const std::optional<std::string>& failure, const CallOptions& options);
// The same for the exception that is being handled on rank 0. Does nothing in a group that has ended.
void share_failure(const ProcessGroup& group, const CallOptions& options) noexcept;

}  // namespace internal

// Runs `prepare` on rank 0 and then, if it succeeded, on all other ranks: they find what it downloaded or made.
//   const auto train = lockstep::main_rank_first(world, [&] { return load_or_download(directory); });
// Rethrows on rank 0; all others get Error{invalid_argument} that quotes the exception. Collective.
template <class Prepare>
std::invoke_result_t<Prepare> main_rank_first(const ProcessGroup& group, Prepare&& prepare,
                                              const CallOptions& options = {}) {
  if (group.rank() != 0) {
    internal::share_outcome(group, std::nullopt, options);
    return std::forward<Prepare>(prepare)();
  }
  const auto first = [&]() -> decltype(auto) {
    try {
      return std::forward<Prepare>(prepare)();
    } catch (...) {
      internal::share_failure(group, options);
      throw;
    }
  };
  if constexpr (std::is_void_v<std::invoke_result_t<Prepare>>) {
    first();
    internal::share_outcome(group, std::nullopt, options);
  } else {
    std::invoke_result_t<Prepare> result = first();
    internal::share_outcome(group, std::nullopt, options);
    return result;
  }
}

}  // namespace lockstep
