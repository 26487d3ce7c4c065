#include "lockstep/comm/health/posted_errors.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lockstep/base/format.h"
#include "lockstep/comm/health/peer_failure.h"
#include "lockstep/comm/net/wire.h"

namespace lockstep::internal {
namespace {

constexpr std::string_view kMissing = "missing: ";

bool names_missing(const Error& error) { return std::string_view(error.what()).starts_with(kMissing); }

// The ranks that posted nothing.
PeerFailure silent_ranks(int rank, const PostedErrors::All& posted, const std::vector<std::string>& members) {
  PeerFailure silent{.peer = -1, .name = {}, .how = Departure::gone};
  for (std::size_t peer = 0; peer < posted.size(); ++peer) {
    if (posted[peer] || std::cmp_equal(peer, rank)) continue;
    if (silent.peer < 0) silent.peer = static_cast<int>(peer);
    silent.name += (silent.name.empty() ? "" : ", ") + members[peer];
  }
  return silent;
}

}  // namespace

Bytes encode_error(const Error& error) {
  Bytes encoded;
  put_u8(encoded, static_cast<std::uint8_t>(error.kind()));
  put_u32(encoded, static_cast<std::uint32_t>(error.detail().rank));
  put_u32(encoded, static_cast<std::uint32_t>(error.detail().peer));
  encoded += std::string_view(error.what()).substr(0, kMaxErrorTextBytes);
  return encoded;
}

Error decode_error(ByteView encoded, const Origin& origin, int rank, int ranks) {
  WireReader reader(encoded, origin);
  const ErrorKind kind = checked_error_kind(reader.u8(), origin);
  const int whose = checked_rank_or_none(reader.i32(), ranks, origin);
  const int peer = checked_rank_or_none(reader.i32(), ranks, origin);
  const std::size_t bytes = checked_size(reader.left(), kMaxErrorTextBytes, "length of the text", origin);
  std::string text(reader.take(bytes));
  if (kind == ErrorKind::peer_lost && peer == rank && whose >= 0 && whose != rank) {
    return Error(kind, fmt::format("rank {} considers this rank lost: {}", whose, text), {.rank = rank, .peer = whose});
  }
  return Error(kind, text, {.rank = rank, .peer = peer});
}

PostedErrors::PostedErrors(std::shared_ptr<Store> store, const std::string& group, int rank, int size)
    : store_(std::move(store)), prefix_("errors/" + group + "/"), rank_(rank), size_(size) {}

std::string PostedErrors::key_of(int rank) const { return prefix_ + std::to_string(rank); }

void PostedErrors::post(const Error& error, Deadline deadline) noexcept {
  try {
    store_->set(key_of(rank_), encode_error(error), deadline);
    store_->set(prefix_ + "any", "1", deadline);
  } catch (const std::exception&) {  // the store has ended before the group
  }
}

PostedErrors::All PostedErrors::read(Deadline deadline) noexcept {
  All posted(static_cast<std::size_t>(size_));
  try {
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) keys.push_back(key_of(rank));
    const std::vector<std::string> missing = store_->wait(keys, deadline);
    const Deadline soon = Deadline::after(std::chrono::seconds(1));
    for (int rank = 0; rank < size_; ++rank) {
      const std::string& key = keys[static_cast<std::size_t>(rank)];
      if (std::ranges::find(missing, key) != missing.end()) continue;
      const Bytes encoded = store_->get(key, soon);
      std::optional<Error>& error = posted[static_cast<std::size_t>(rank)];
      try {
        error = decode_error(encoded, {"posted error", rank}, rank_, size_);
      } catch (const Error& damage) {  // the rank is not missing
        error = damage;
      }
    }
  } catch (const std::exception&) {  // the store has ended before the group
  }
  return posted;
}

bool PostedErrors::any(Deadline deadline) noexcept {
  try {
    return store_->check({prefix_ + "any"}, deadline);
  } catch (const std::exception&) {  // the store has ended before the group
    return false;
  }
}

Error root_cause(const Error& seen, int rank, const PostedErrors::All& posted,
                 const std::vector<std::string>& members) {
  Error cause(seen.kind(), seen.what(), seen.detail());
  PeerFailure silent = silent_ranks(rank, posted, members);
  int peer = seen.detail().peer;
  for (const ErrorKind stronger : {ErrorKind::aborted, ErrorKind::corrupt_data, ErrorKind::timeout}) {
    const bool is_own = cause.kind() == stronger;
    // A rank that has an error at first hand keeps it, unless its own time was up and others know for whom they waited.
    if (is_own && (stronger != ErrorKind::timeout || !silent.name.empty() || names_missing(cause))) break;
    const auto found = std::ranges::find_if(posted, [&](const std::optional<Error>& error) {
      return error && error->kind() == stronger && (!is_own || names_missing(*error));
    });
    if (found != posted.end()) {
      cause = **found;
      peer = static_cast<int>(found - posted.begin());
    }
    if (cause.kind() == stronger) break;
  }
  std::string text = cause.what();
  const bool may_be_silence = cause.kind() == ErrorKind::timeout || cause.kind() == ErrorKind::peer_lost;
  if (!silent.name.empty() && may_be_silence && !names_missing(cause)) {
    peer = silent.peer;
    silent.why = text;
    text =
        cause.kind() == ErrorKind::timeout ? fmt::format("{}{} ({})", kMissing, silent.name, text) : describe(silent);
  }
  ErrorDetail detail = seen.detail();
  detail.rank = rank;
  detail.peer = peer;
  return Error(cause.kind(), text, detail);
}

}  // namespace lockstep::internal
