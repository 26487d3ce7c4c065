// Writes a text to a path that the user has chosen, whatever that is. Blocks on the disk, and for at most 10 s on a
// reader. Errors name the path.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::internal {

// A regular file is replaced, whole or not at all; a link stays, and what it leads to is replaced. A pipe, a device and
// whatever lies under /dev or /proc is written to as it is; /dev/stdout and the like, behind what is there. Throws
// Error{internal} if that fails.
void write_report_file(const std::string& path, std::string_view text);

}  // namespace lockstep::internal
