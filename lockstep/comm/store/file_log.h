// A FileLog is the file under a FileStore: a header and the changes made to a KeyMap, in order; see log_record.h. map
// <-> records <-> file. Processes take turns with a lock; a SIGKILL leaves at most one torn record, which the next
// process to lock cuts off. An open log holds a second, shared lock on the file, which tells others that it is in use;
// both locks end with their process, and a forked child does not inherit them. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/fork_guard.h"
#include "lockstep/base/unique_fd.h"
#include "lockstep/comm/store/key_map.h"

namespace lockstep::internal {

class FileLog {
 public:
  // Opens the file, creates it (mode 0600), or replaces the file of a run that has ended, with a line in the log.
  // Error{invalid_argument}: it is not a store file, or belongs to a live run with another id or format version.
  // Error{unauthorized}: it belongs to another user or others may write it. Error{timeout}: another process keeps it
  // locked.
  FileLog(std::string path, std::string_view run_id, Deadline deadline);
  // The last user removes the file.
  ~FileLog();
  FileLog(const FileLog&) = delete;
  FileLog& operator=(const FileLog&) = delete;

  const std::string& path() const { return path_; }

  // False if another process or another FileLog of this one holds it.
  bool try_lock();
  bool lock(Deadline deadline);  // false at the deadline
  void unlock();
  // Whether another process has written since read(). Needs no lock.
  bool has_news() const;

  // REQUIRES: locked. Applies what others have written. Error{corrupt_data} names the offset of a damaged record.
  void read(KeyMap& map);
  // The next read() starts over, for an empty map.
  void rewind() { offset_ = first_record_; }
  // REQUIRES: locked and read. Nothing is written if they throw.
  void append_set(std::string_view key, ByteView value);
  void append_remove(std::string_view key);

 private:
  bool open_and_lock(Deadline deadline);
  void check_file() const;
  bool is_alone();
  void share_presence();
  void start(std::string_view run_id);
  void check_header(std::string_view run_id);
  void append(ByteView record);

  const ForkGuard fork_guard_;
  std::string path_;
  UniqueFd fd_;
  off_t offset_ = 0;        // after the last record that was read or written
  off_t first_record_ = 0;  // after the header
};

}  // namespace lockstep::internal
