#include "lockstep/comm/transport/shared_control.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/comm/transport/doorbell.h"
#include "lockstep/comm/transport/mesh.h"

namespace lockstep::internal {

using arena::AnnouncementRecord;

static_assert(sizeof(arena::AbortRecord) % arena::kCacheLine == 0);
static_assert(AnnouncementRecord::kWords * sizeof(std::uint64_t) == kMaxAnnouncementBytes);

SharedControl::SharedControl(std::byte* region, int ranks)
    : record_(reinterpret_cast<arena::AbortRecord*>(region)),
      bells_(reinterpret_cast<arena::RankBells*>(region + sizeof(arena::AbortRecord))),
      announcements_(reinterpret_cast<AnnouncementRecord*>(bells_ + ranks)),
      ranks_(ranks) {}

std::size_t SharedControl::bytes(int ranks) {
  return sizeof(arena::AbortRecord) +
         static_cast<std::size_t>(ranks) * (sizeof(arena::RankBells) + sizeof(AnnouncementRecord));
}

void SharedControl::announce(int rank, ByteView bytes) const noexcept {
  AnnouncementRecord& record = announcements_[rank];
  const std::size_t size = std::min(bytes.size(), kMaxAnnouncementBytes);
  std::array<std::uint64_t, AnnouncementRecord::kWords> words{};
  std::memcpy(words.data(), bytes.data(), size);
  const std::uint32_t version = record.version.load(std::memory_order_relaxed);
  record.version.store(version + 1, std::memory_order_relaxed);
  // Whoever reads one of these reads that version, too.
  record.bytes.store(static_cast<std::uint32_t>(size), std::memory_order_release);
  for (std::size_t i = 0; i < words.size(); ++i) record.words[i].store(words[i], std::memory_order_release);
  record.version.store(version + 2, std::memory_order_release);
  for (int peer = 0; peer < ranks_; ++peer) ring(bells_[peer].messages);
}

bool SharedControl::has_announcement(int from, std::uint32_t seen) const {
  const std::uint32_t version = announcements_[from].version.load(std::memory_order_acquire);
  return version != seen && version % 2 == 0;
}

std::optional<Bytes> SharedControl::announcement(int from, std::uint32_t& seen) const {
  const AnnouncementRecord& record = announcements_[from];
  const std::uint32_t version = record.version.load(std::memory_order_acquire);
  if (version == seen || version % 2 != 0) return std::nullopt;
  std::array<std::uint64_t, AnnouncementRecord::kWords> words;
  const std::size_t size = std::min<std::size_t>(record.bytes.load(std::memory_order_acquire), kMaxAnnouncementBytes);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = record.words[i].load(std::memory_order_acquire);
  if (record.version.load(std::memory_order_relaxed) != version) return std::nullopt;
  seen = version;
  return Bytes(reinterpret_cast<const char*>(words.data()), size);
}

void SharedControl::abort(const Error& error) const noexcept {
  if (!record_abort(*record_, error)) return;
  for (int rank = 0; rank < ranks_; ++rank) {
    ring(bells_[rank].collectives);
    ring(bells_[rank].messages);
  }
}

}  // namespace lockstep::internal
