// AtomicFile replaces a file as a whole: readers, and a crash at any moment, see the old file or the new one. bytes ->
// temporary file beside the target -> fsync -> rename -> fsync of the directory. Not thread-safe; several writers of
// one target, in one process or many, do not disturb each other: the last one wins. Blocks for disk I/O, for which
// Linux has no deadline. A failed call throws Error{internal} with the path, and leaves the old file; the destructor
// removes an unpublished file. The next writer removes the file of a killed one.
#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

class AtomicFile {
 public:
  // Creates the temporary file, mode 0600. Error{invalid_argument} if the directory does not exist, or the target is a
  // FIFO, a socket or a device, or a link to one; publish() looks again. Another link is replaced, not followed.
  explicit AtomicFile(const std::filesystem::path& target);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(ByteSpan bytes);
  // Puts other bytes in place of the first ones. REQUIRES: no more than were written.
  void rewrite_begin(ByteSpan bytes);
  // After this the new content survives a power cut. Call once, last.
  void publish();
  // fsync of a directory, by its descriptor.
  static void sync_directory(const UniqueFd& directory, const std::string& doing);
  // Removes what killed writers have left of the files in a directory whose names begin so. Errors are passed over.
  static void remove_abandoned(const std::filesystem::path& directory, std::string_view names);

 private:
  void send_to_disk();

  std::filesystem::path target_;
  std::filesystem::path directory_;
  std::filesystem::path temporary_;
  UniqueFd directory_fd_;
  UniqueFd file_;
  std::size_t unsent_ = 0;  // bytes since send_to_disk()
};

}  // namespace lockstep::internal
