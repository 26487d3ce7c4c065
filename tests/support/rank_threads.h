// Runs one function as n ranks, each a thread of this process, and collects what each threw.
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace lockstep::testing {

// Returns what rank r threw at position r; null where it returned.
inline std::vector<std::exception_ptr> run_ranks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  return errors;
}

// As run_ranks, but the first error is thrown.
inline void run_ranks_or_throw(int ranks, const std::function<void(int rank)>& body) {
  for (const auto& error : run_ranks(ranks, body)) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace lockstep::testing
