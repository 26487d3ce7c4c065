// An Operation is one send or receive as the messenger's thread sees it: its memory, and how far it has come.
// One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/deadline.h"
#include "lockstep/comm/health/wait_reports.h"
#include "lockstep/comm/messages/request.h"

namespace lockstep::internal {

struct Operation {
  Envelope envelope;
  std::vector<MutableByteSpan> memory;  // a send's is only read
  Deadline deadline = Deadline::never();
  TimePoint start;
  WaitReports reports;  // in the log, while it waits
  std::shared_ptr<RequestState> state;

  std::uint64_t number = 0;  // in the order in which this rank's operations were posted
  int source = -1;           // a receive: the rank with whose message it was matched
  bool is_rts_sent = false;  // of a send
  std::uint64_t moved_bytes = 0;

  // The bytes that are next, up to the end of their piece of memory; empty at the end.
  MutableByteSpan run() {
    while (piece_ < memory.size() && within_ == memory[piece_].size()) {
      ++piece_;
      within_ = 0;
    }
    return piece_ < memory.size() ? memory[piece_].subspan(within_) : MutableByteSpan();
  }
  void advance(std::size_t bytes) {
    within_ += bytes;
    moved_bytes += bytes;
  }
  std::uint64_t left_bytes() const { return envelope.bytes - moved_bytes; }

  // Copies the next bytes out of the memory or into it. REQUIRES: there are as many left.
  void copy_out(MutableByteSpan to) {
    while (!to.empty()) {
      const MutableByteSpan piece = run().first(std::min(run().size(), to.size()));
      std::memcpy(to.data(), piece.data(), piece.size());
      advance(piece.size());
      to = to.subspan(piece.size());
    }
  }
  void copy_in(ByteSpan from) {
    while (!from.empty()) {
      const MutableByteSpan piece = run().first(std::min(run().size(), from.size()));
      std::memcpy(piece.data(), from.data(), piece.size());
      advance(piece.size());
      from = from.subspan(piece.size());
    }
  }

 private:
  std::size_t piece_ = 0;
  std::size_t within_ = 0;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace lockstep::internal
