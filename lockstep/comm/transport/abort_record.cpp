#include "lockstep/comm/transport/abort_record.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/checked.h"

namespace lockstep::internal {

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

Error read_abort(const AbortRecord& record, int rank, int ranks) {
  // Each is read once: another process could change it meanwhile.
  const auto read_once = []<class Number>(const Number& number) { return const_cast<const volatile Number&>(number); };
  try {
    const Origin origin("the error that ended the group, in shared memory");
    const std::uint32_t first = record.first.load(std::memory_order_acquire);
    const AbortRecord::Place& that = record.places[checked_index(first - 1, AbortRecord::kPlaces, "place", origin)];
    const std::size_t bytes =
        checked_size(read_once(that.text_bytes), arena::kAbortTextBytes, "length of its text", origin);
    const ErrorKind kind = checked_error_kind(read_once(that.kind), origin);
    const int peer = checked_rank_or_none(read_once(that.peer), ranks, origin);
    return Error(kind, std::string(that.text, bytes), {.rank = rank, .peer = peer});
  } catch (const Error& error) {
    return Error(error.kind(), error.what(), {.rank = rank});
  }
}

void throw_abort(const AbortRecord& record, int rank, int ranks) { throw read_abort(record, rank, ranks); }

}  // namespace lockstep::internal
