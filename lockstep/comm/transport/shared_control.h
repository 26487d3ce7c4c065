// What ranks that share memory need besides data: a doorbell for each thread that waits, and the record of the error
// that ends them all. Any thread of any rank may call; nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/comm/transport/abort_record.h"
#include "lockstep/comm/transport/arena_layout.h"

namespace lockstep::internal {

class SharedControl {
 public:
  // `region`: of bytes(ranks) bytes, aligned to a cache line, zeroed when nobody has used it.
  SharedControl(std::byte* region, int ranks);
  static std::size_t bytes(int ranks);

  int ranks() const { return ranks_; }
  arena::AbortRecord& abort_record() const { return *record_; }
  arena::RankBells& bells(int rank) const { return bells_[rank]; }

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
  int ranks_;
};

}  // namespace lockstep::internal
