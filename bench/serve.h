// The other end of a Worker, for programs whose ranks form a Lockstep group: rank 0 reads commands and tells the
// others, who sleep meanwhile. Each rank calls from its main thread. Blocks until standard input of rank 0 ends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/group/process_group.h"

namespace bench {

// What is reported when the ranks' times differ.
enum class OfRanks { slowest, mean };

// One rank's part of a command with these numbers: seconds, one for each repetition.
using Measure = std::function<std::vector<double>(std::int64_t first, std::int64_t second, std::int64_t third)>;

// Says {"ready": true}, then answers every line "<verb> <first> [<second> [<third>]]" with {"seconds": [...]}.
// Error{invalid_argument} on all ranks for a line of another form.
void serve(const lockstep::ProcessGroup& group, const std::string& verb, OfRanks of_ranks, const Measure& measure);

}  // namespace bench
