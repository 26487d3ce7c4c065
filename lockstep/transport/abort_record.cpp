#include "lockstep/transport/abort_record.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/base/checked.h"
#include "lockstep/base/deadline.h"

namespace lockstep {

using namespace std::chrono_literals;
using arena::AbortRecord;

bool record_abort(AbortRecord& record, const Error& error) noexcept {
  std::uint32_t expected = AbortRecord::none;
  if (!record.state.compare_exchange_strong(expected, AbortRecord::writing)) return false;
  const std::string_view text = error.what();
  record.kind = static_cast<std::uint32_t>(error.kind());
  record.peer = error.detail().peer;
  record.text_bytes = static_cast<std::uint32_t>(std::min(text.size(), arena::kAbortTextBytes));
  std::memcpy(record.text, text.data(), record.text_bytes);
  record.state.store(AbortRecord::set, std::memory_order_release);
  return true;
}

Error read_abort(const AbortRecord& record, int rank, int ranks) {
  // Each is read once: another process could change it meanwhile.
  const auto read_once = []<class Number>(const Number& number) { return const_cast<const volatile Number&>(number); };
  try {
    const Origin origin("the error that ended the group, in shared memory");
    const std::size_t bytes =
        checked_size(read_once(record.text_bytes), arena::kAbortTextBytes, "length of its text", origin);
    const ErrorKind kind = checked_error_kind(read_once(record.kind), origin);
    const int peer = checked_rank_or_none(read_once(record.peer), ranks, origin);
    return Error(kind, std::string(record.text, bytes), {.rank = rank, .peer = peer});
  } catch (const Error& error) {
    return Error(error.kind(), error.what(), {.rank = rank});
  }
}

void throw_abort(const AbortRecord& record, int rank, int ranks) {
  // A writer that dies half way leaves `writing` for ever.
  const Deadline patience = Deadline::after(100ms);
  while (record.state.load(std::memory_order_acquire) == AbortRecord::writing) {
    if (patience.expired()) throw Error(ErrorKind::peer_lost, "a rank died while it reported an error");
    ::sched_yield();
  }
  throw read_abort(record, rank, ranks);
}

}  // namespace lockstep
