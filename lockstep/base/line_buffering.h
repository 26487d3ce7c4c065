// Standard output into a launcher's pipe is written line by line, so that a user sees lines when they are printed and
// not in blocks of 4 KiB.
#pragma once

namespace lockstep::internal {

// Once per process: later calls change nothing, nor does the first if the program has chosen a buffer for standard
// output, or none. Thread-safe.
void buffer_output_by_line() noexcept;

}  // namespace lockstep::internal
