// What can be made of a Store's verbs alone. Thread-safe as the store is; they block and fail as its verbs do.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/store/store.h"

namespace lockstep {

// Waits for all keys; Error{timeout} names those that did not come.
void wait_or_throw(Store& store, const std::vector<std::string>& keys, Deadline deadline);

std::vector<Bytes> multi_get(Store& store, const std::vector<std::string>& keys, Deadline deadline);
void multi_set(Store& store, const std::vector<std::pair<std::string, Bytes>>& entries, Deadline deadline);

// Returns when all `size` ranks have called it with this name; Error{timeout} names the ranks that did not come. A name
// may be used again once a barrier under it has ended without an error. It leaves one small key per rank behind.
void barrier(Store& store, std::string_view name, int rank, int size, Deadline deadline);

// "rank 3", "ranks 0, 2 and 5", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace lockstep
