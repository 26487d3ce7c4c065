#include "lockstep/comm/transport/group_links.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/net/framing.h"
#include "lockstep/comm/transport/control_message.h"
#include "lockstep/comm/transport/doorbell.h"

namespace lockstep::internal {

bool GroupLinks::end(const Error& error, Bytes message) {
  {
    const std::lock_guard lock(mutex);
    if (is_aborted) return false;
    reason = error;
    abort_message = std::move(message);
    is_aborted = true;
  }
  notify();
  return true;
}

Error GroupLinks::why() {
  const std::lock_guard lock(mutex);
  return reason ? Error(*reason) : Error(ErrorKind::aborted, "the group was ended", {.rank = rank});
}

// Either the sleeper sees the news, or this sees where it sleeps.
void GroupLinks::notify() noexcept {
  has_news.store(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (is_leading.load()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof one);
  } else {
    internal::wake(bell);
  }
}

Bytes GroupLinks::aborted_message() {
  const std::lock_guard lock(mutex);
  return is_aborted ? abort_message : Bytes();
}

std::vector<Bytes> GroupLinks::announced() {
  const std::lock_guard lock(mutex);
  std::vector<Bytes> messages;
  for (const auto& [whose, said] : announced_by) {
    messages.push_back(frame(encode_announcement(id, {whose, said.number, said.bytes}), kMaxControlBytes));
  }
  return messages;
}

Bytes GroupLinks::announce(ByteView bytes) {
  const std::lock_guard lock(mutex);
  Announced& own = announced_by[rank];
  own.bytes = bytes;
  return frame(encode_announcement(id, {rank, ++own.number, bytes}), kMaxControlBytes);
}

void GroupLinks::note_announcement(ByteView body, int from) {
  const AnnouncementBody said = decode_announcement(body, from, static_cast<int>(peers.size()));
  if (said.rank == rank) return;
  {
    const std::lock_guard lock(mutex);
    Announced& known = announced_by[said.rank];
    if (said.number <= known.number) return;
    if (!std::exchange(known.is_new, true)) ++announcements;
    known.number = said.number;
    known.bytes = said.bytes;
  }
  notify();
}

std::optional<GroupLinks::Heard> GroupLinks::take_announcement() {
  if (announcements == 0) return std::nullopt;
  const std::lock_guard lock(mutex);
  const auto next = std::ranges::find_if(announced_by, [](const auto& each) { return each.second.is_new; });
  if (next == announced_by.end()) return std::nullopt;
  auto& [from, said] = *next;
  said.is_new = false;
  --announcements;
  return Heard{from, said.bytes, frame(encode_announcement(id, {from, said.number, said.bytes}), kMaxControlBytes)};
}

int GroupLinks::rank_of(int peer) const {
  const auto found = std::ranges::find(peers, peer);
  return found == peers.end() ? -1 : static_cast<int>(found - peers.begin());
}

}  // namespace lockstep::internal
