// The one way to the files that Lockstep writes; files that are replaced as a whole go through AtomicFile, which uses
// it. Where others may write to the folder, none of them gets what is written: a file is made anew, with a mode of its
// own, or is a regular one that nobody's link leads to; and nothing waits for the reader of a FIFO. Thread-safe. Blocks
// on the disk only. `doing` begins the text of an error, Error{invalid_argument}: "saving /x: this is a FIFO, ...".
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

inline constexpr mode_t kPrivateMode = 0600;
inline constexpr mode_t kSharedMode = 0666;  // but for what the umask takes away

// The folder of a file, opened once, so that its name means the same in every call; and that name.
struct FilePlace {
  std::filesystem::path path;  // of the file, for messages
  UniqueFd directory = {};
  std::string name = {};
};
// Errors: the directory does not exist, or the path has no name at its end.
FilePlace place_of(const std::filesystem::path& path, const std::string& doing);

// FIFOs, sockets and devices must not be replaced: with /dev/null or a FIFO as the target, all other programs
// that use it would get a file instead. A link is replaced itself, but a link to one counts as it. An error if
// the place holds a FIFO, a socket or a device, or a link to one.
void refuse_other_than_files(const FilePlace& place, const std::string& doing);

// A new file of that name. Nothing, and errno, if it cannot be made: EEXIST if anything has the name.
UniqueFd create_file(const UniqueFd& directory, const std::string& name, mode_t mode) noexcept;
// A new file, to append to and to read, in place of the file or the link that has the name.
UniqueFd create_in_place_of(const FilePlace& place, mode_t mode, const std::string& doing);
UniqueFd create_in_place_of(const std::filesystem::path& path, mode_t mode, const std::string& doing);
// A regular file, no link, to append to and to read; made if it is missing.
UniqueFd open_to_append(const std::filesystem::path& path, mode_t mode, const std::string& doing);
// Any file but a link, to read and to write, made with kPrivateMode if it is missing; the caller checks its
// type. A negative number, and errno, on failure.
int open_or_create(const std::string& path) noexcept;
// A target that is not replaced, since the user names it: a FIFO, a device, a descriptor below /proc. Appends; a write
// does not wait. Nothing, and errno, on failure: ENXIO if nobody reads the FIFO.
UniqueFd open_as_it_is(const std::string& path) noexcept;

}  // namespace lockstep::internal
