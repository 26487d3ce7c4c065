// AtomicFile replaces a file as a whole: readers, and a crash at any moment, see the old file or the new one. bytes ->
// temporary file beside the target -> fsync -> rename -> fsync of the directory. Not thread-safe; several writers of
// one target, in one process or many, do not disturb each other: the last one wins. Blocks for disk I/O, for which
// Linux has no deadline. A failed call throws Error{internal} with the path, and leaves the old file; the destructor
// removes an unpublished file. The next writer removes the file of a killed one. Nothing is written through what others
// have put there, see open_for_writing.h, and nothing is kept of the mode of a file that is replaced.
#pragma once

#include <filesystem>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/open_for_writing.h"
#include "lockstep/base/unique_fd.h"

namespace lockstep::internal {

struct AtomicFileOptions {
  mode_t mode = kPrivateMode;
  bool obeys_umask = true;
  bool survives_power_cut = true;  // otherwise nothing waits for the disk
};

class AtomicFile {
 public:
  // Creates the temporary file. Error{invalid_argument} if the directory does not exist, or the target is a FIFO, a
  // socket or a device, or a link to one; publish() looks again. Another link is replaced, not followed.
  explicit AtomicFile(const std::filesystem::path& target, AtomicFileOptions options = {});
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(ByteSpan bytes);
  // Puts other bytes in place of the first ones. REQUIRES: no more than were written.
  void rewrite_begin(ByteSpan bytes);
  // Call one of these once, last. The second leaves what has the name meanwhile, if anything has.
  void publish();
  void publish_if_missing();
  // fsync of a directory, by its descriptor.
  static void sync_directory(const UniqueFd& directory, const std::string& doing);
  // Removes what killed writers have left of the files in a directory whose names begin so. Errors are passed over.
  static void remove_abandoned(const std::filesystem::path& directory, std::string_view names);

 private:
  void create();
  void send_to_disk();
  void finish();
  void sync_names() const;
  std::string doing(std::string_view what) const;

  const AtomicFileOptions options_;
  const FilePlace place_;
  std::string temporary_;  // its name in the directory
  UniqueFd file_;
  std::size_t unsent_ = 0;  // bytes since send_to_disk()
};

}  // namespace lockstep::internal
