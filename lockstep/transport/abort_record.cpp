#include "lockstep/transport/abort_record.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>

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

void throw_abort(const AbortRecord& record, int rank) {
  // A writer that dies half way leaves `writing` for ever.
  const Deadline patience = Deadline::after(100ms);
  while (record.state.load(std::memory_order_acquire) == AbortRecord::writing) {
    if (patience.expired()) throw Error(ErrorKind::peer_lost, "a rank died while it reported an error");
    ::sched_yield();
  }
  // Copied once, then checked: another process could change it meanwhile.
  const std::size_t bytes = std::min<std::size_t>(record.text_bytes, arena::kAbortTextBytes);
  const std::uint32_t kind = std::min(record.kind, static_cast<std::uint32_t>(ErrorKind::internal));
  ErrorDetail detail;
  detail.rank = rank;
  detail.peer = record.peer;
  throw Error(static_cast<ErrorKind>(kind), std::string(record.text, bytes), detail);
}

}  // namespace lockstep
