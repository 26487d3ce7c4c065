// Writes a text to a path that the user has chosen, whatever that is. Blocks on the disk, and for at most 10 s on a
// reader. Errors name the path.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::internal {

// A regular file is replaced, whole or not at all; a link stays, and what it leads to is replaced. A pipe, a device and
// whatever lies under /dev or /proc is written to as it is; /dev/stdout and the like, behind what is there; a FIFO that
// nobody reads is an error at once. A link or a FIFO of another user but root, who may have put it there for this one
// to run into, is Error{unauthorized}. Throws Error{internal} or {invalid_argument} if writing fails.
void write_report_file(const std::string& path, std::string_view text);
// Before there is anything to write: Error{invalid_argument} if the directory of `path` is missing.
void check_report_directory(const std::string& path);

}  // namespace lockstep::internal
