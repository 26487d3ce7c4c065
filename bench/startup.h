// How long it takes from starting a program to its ranks' first finished all-reduce, beside only loading libtorch.
#pragma once

#include "bench/summary.h"

namespace bench {

// Starts each way `repetitions` times, in turns, and writes one record a way. Throws what a Worker throws.
void measure_startup(int ranks, int repetitions, RecordFile& records);

}  // namespace bench
