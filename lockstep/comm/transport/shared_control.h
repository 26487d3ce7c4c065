// What ranks that share memory need besides data: a doorbell for each thread that waits, what each rank has announced,
// and the record of the error that ends them all. Any thread of any rank may call; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/abort_record.h"
#include "lockstep/comm/transport/arena_layout.h"

namespace lockstep::internal {
namespace arena {

// What a rank has announced last. A reader copies it, and discards the copy if `version` has changed meanwhile.
struct AnnouncementRecord {
  static constexpr std::size_t kWords = 288;
  alignas(kCacheLine) std::atomic<std::uint32_t> version;  // odd while it is written; 0: nothing was announced
  std::atomic<std::uint32_t> bytes;
  std::atomic<std::uint64_t> words[kWords];
};

}  // namespace arena

class SharedControl {
 public:
  // `region`: of bytes(ranks) bytes, aligned to a cache line, zeroed when nobody has used it.
  SharedControl(std::byte* region, int ranks);
  static std::size_t bytes(int ranks);

  int ranks() const { return ranks_; }
  arena::AbortRecord& abort_record() const { return *record_; }
  arena::RankBells& bells(int rank) const { return bells_[rank]; }

  // By one thread of `rank`; see Mesh::announce().
  void announce(int rank, ByteView bytes) const noexcept;
  // Of a version other than `seen`.
  bool has_announcement(int from, std::uint32_t seen) const;
  // Reads it, and sets `seen`. Nothing while it is written.
  std::optional<Bytes> announcement(int from, std::uint32_t& seen) const;

  // Ends collectives and messages of all ranks with this error; the first one wins.
  void abort(const Error& error) const noexcept;
  bool is_aborted() const { return has_abort(*record_); }
  // Throws the error that ended them, as `rank` is to throw it.
  void check_abort(int rank) const {
    if (is_aborted()) throw_abort(*record_, rank, ranks_);
  }

 private:
  arena::AbortRecord* record_;
  arena::RankBells* bells_;
  arena::AnnouncementRecord* announcements_;
  int ranks_;
};

}  // namespace lockstep::internal
