#include "lockstep/comm/collective/arena_in_place.h"

#include <algorithm>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/collective/reduce.h"
#include "lockstep/comm/collective/slice.h"

namespace lockstep::internal {

using arena::SegmentRef;
using arena::Slot;

InPlaceReduction::InPlaceReduction(const Arena& arena) : arena_(arena) {
  const auto n = static_cast<std::size_t>(arena_.size());
  outputs_.resize(n);
  inputs_.resize(n);
  segments_.resize(n);
  cursors_.reserve(n);
}

bool InPlaceReduction::offer(const Collective& collective, Slot& slot) const {
  if (!traits_of(collective.kind).reduces_in_place() || collective.output.size() > arena::kMaxSegmentRefs) return false;
  auto* refs = reinterpret_cast<SegmentRef*>(slot.payload);
  for (std::size_t i = 0; i < collective.output.size(); ++i) {
    const auto& [data, bytes] = collective.output[i];
    const auto offset = arena_.heaps()->offset_in(arena_.rank(), data, bytes);
    if (!offset) return false;
    refs[i] = {*offset, collective.output[i].bytes};
  }
  slot.segments = static_cast<std::uint32_t>(collective.output.size());
  return true;
}

bool InPlaceReduction::is_offered_by_all(const Signature& signature) const {
  for (int peer = 0; peer < arena_.size(); ++peer) {
    if (arena_.slot(peer, signature.sequence).segments == 0) return false;
  }
  return true;
}

void InPlaceReduction::reduce(const Collective& c, const Signature& signature) {
  const std::size_t element = element_size(c.dtype);
  const Slice slice = slice_of(c.count, arena_.size(), arena_.rank());
  cursors_.clear();
  for (int peer = 0; peer < arena_.size(); ++peer) {
    list_segments(peer, c, signature);
    cursors_.emplace_back(segments_[static_cast<std::size_t>(peer)], slice.begin * element);
  }
  const std::span<std::byte* const> all(outputs_);
  const bool to_root = traits_of(c.kind).root == Root::receives;
  const auto outputs = to_root ? all.subspan(static_cast<std::size_t>(c.root), 1) : all;
  for (std::size_t left = slice.count() * element; left != 0;) {
    std::size_t run = left;
    for (const SegmentCursor& cursor : cursors_) run = std::min(run, cursor.run());
    for (std::size_t i = 0; i < cursors_.size(); ++i) inputs_[i] = outputs_[i] = cursors_[i].data();
    reduce_all(c, outputs, inputs_, run / element);
    for (SegmentCursor& cursor : cursors_) cursor.advance(run);
    left -= run;
  }
}

void InPlaceReduction::list_segments(int peer, const Collective& c, const Signature& signature) {
  const std::size_t element = element_size(c.dtype), limit = arena_.heaps()->segment_bytes();
  const Slot& slot = arena_.slot(peer, signature.sequence);
  auto& segments = segments_[static_cast<std::size_t>(peer)];
  segments.clear();
  const auto* refs = reinterpret_cast<const SegmentRef*>(slot.payload);
  std::size_t total = 0;
  // Read once, then checked: the memory belongs to another process.
  const std::size_t count = std::min<std::size_t>(slot.segments, arena::kMaxSegmentRefs);
  for (std::size_t i = 0; i < count; ++i) {
    const SegmentRef ref = refs[i];
    if (ref.bytes > limit || ref.offset > limit - ref.bytes || ref.bytes % element != 0 || ref.offset % element != 0) {
      throw damaged(peer, signature, "memory outside its segment");
    }
    segments.push_back({arena_.segment(peer) + ref.offset, static_cast<std::size_t>(ref.bytes)});
    total += ref.bytes;
  }
  if (total != c.count * element) {
    throw damaged(peer, signature, fmt::format("{} bytes instead of {}", total, c.count * element));
  }
}

Error InPlaceReduction::damaged(int peer, const Signature& signature, std::string_view posted) const {
  return Error(ErrorKind::corrupt_data,
               fmt::format("a process of this node has corrupted shared memory: {} posted {} in {}, as seen by {}; "
                           "look for a process that writes out of bounds, and start the job again",
                           arena_.peer_name(peer), posted, describe(signature), arena_.peer_name(arena_.rank())),
               {.rank = arena_.rank(),
                .peer = peer,
                .operation = std::string(to_string(signature.kind)),
                .sequence = signature.sequence});
}

}  // namespace lockstep::internal
