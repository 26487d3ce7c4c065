// Where the user names a place, links on the way to it are followed only if they are this user's or root's: through a
// link of another user, that one would choose what is written. Names that only the system makes, below /proc and /dev,
// are not asked for their user. Thread-safe. `doing` begins the text of an error, Error{invalid_argument}.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

inline constexpr int kMostLinks = 40;  // as in the kernel

bool is_under(const std::filesystem::path& path, std::string_view folder);
bool is_of_system(const std::filesystem::path& path);
// An error if the file belongs to a user other than this one and root. what: "a link", "a FIFO".
void require_own(const struct stat& status, const std::filesystem::path& at, const char* what,
                 const std::string& doing);
// The target of a link, which nobody can exchange between the checks; nothing if none. Errors: as
// require_own().
std::optional<std::filesystem::path> read_own_link(const std::filesystem::path& at, const std::string& doing);
// The folder with this name, for openat() and its like. Errors: as above, or there is no such folder.
UniqueFd open_folder(const std::filesystem::path& folder, const std::string& doing);

}  // namespace lockstep::internal
