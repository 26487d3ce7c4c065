#include "lockstep/transport/abort_record.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace lockstep {

using arena::AbortRecord;

bool record_abort(AbortRecord& record, const Error& error) noexcept {
  if (has_abort(record)) return false;
  // With all places taken, several others are about to end the group, and a death or a deadline ends this rank's call.
  const std::uint32_t place = record.taken.fetch_add(1, std::memory_order_relaxed);
  if (place >= AbortRecord::kPlaces) return false;
  AbortRecord::Place& mine = record.places[place];
  const std::string_view text = error.what();
  mine.kind = static_cast<std::uint32_t>(error.kind());
  mine.peer = error.detail().peer;
  mine.text_bytes = static_cast<std::uint32_t>(std::min(text.size(), arena::kAbortTextBytes));
  std::memcpy(mine.text, text.data(), mine.text_bytes);
  std::uint32_t none = 0;
  return record.first.compare_exchange_strong(none, place + 1, std::memory_order_release);
}

void throw_abort(const AbortRecord& record, int rank) {
  const std::uint32_t place = record.first.load(std::memory_order_acquire) - 1;
  if (place >= AbortRecord::kPlaces) {
    throw Error(ErrorKind::corrupt_data,
                "the group has ended, but the record of why is damaged: a process of this node wrote where it must not",
                {.rank = rank});
  }
  // Copied once, then checked: another process could change it meanwhile.
  const AbortRecord::Place& that = record.places[place];
  const std::size_t bytes = std::min<std::size_t>(that.text_bytes, arena::kAbortTextBytes);
  const std::uint32_t kind = std::min(that.kind, static_cast<std::uint32_t>(ErrorKind::internal));
  ErrorDetail detail;
  detail.rank = rank;
  detail.peer = that.peer;
  throw Error(static_cast<ErrorKind>(kind), std::string(that.text, bytes), detail);
}

}  // namespace lockstep
