#include "lockstep/comm/collective/collective.h"

#include <limits>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::internal {
namespace {

[[noreturn]] void refuse(const Collective& collective, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, fmt::format("{}: {}", to_string(collective.kind), why),
              {.operation = std::string(to_string(collective.kind))});
}

// Checks that `segments` hold `elements` elements of the collective's type.
void check_segments(const Collective& collective, const char* which, std::span<const Segment> segments,
                    std::uint64_t elements) {
  const std::size_t element = element_size(collective.dtype);
  std::uint64_t left = elements * element;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    if (segment.bytes % element != 0) {
      refuse(collective, fmt::format("{} segment {} has {} bytes, which is not a multiple of {} ({})", which, i,
                                     segment.bytes, element, to_string(collective.dtype)));
    }
    if (segment.bytes != 0 && segment.data == nullptr) {
      refuse(collective, fmt::format("{} segment {} of {} bytes is a null pointer", which, i, segment.bytes));
    }
    if (traits_of(collective.kind).reduces && reinterpret_cast<std::uintptr_t>(segment.data) % element != 0) {
      refuse(collective, fmt::format("{} segment {} is not aligned to {} bytes ({})", which, i, element,
                                     to_string(collective.dtype)));
    }
    if (segment.bytes > left) refuse(collective, fmt::format("{} holds more than {} elements", which, elements));
    left -= segment.bytes;
  }
  if (left != 0) {
    refuse(collective, fmt::format("{} holds {} elements of {}, but {} are needed", which, elements - left / element,
                                   to_string(collective.dtype), elements));
  }
}

void check_reduction(const Collective& collective) {
  if (collective.reduce > ReduceOp::bxor) {
    refuse(collective, fmt::format("unknown reduction: {}", static_cast<int>(collective.reduce)));
  }
  if (supports(collective.reduce, collective.dtype)) return;
  if (collective.reduce == ReduceOp::avg) {
    refuse(collective, fmt::format("avg needs a floating-point type, not {}; use sum and divide the result",
                                   to_string(collective.dtype)));
  }
  refuse(collective,
         fmt::format("{} is not defined for {}", to_string(collective.reduce), to_string(collective.dtype)));
}

void check_all_to_all(const Collective& collective, int rank, int size) {
  const auto n = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  if (collective.counts.size() != n * n || collective.count != 0) {
    refuse(collective,
           fmt::format("got {} counts, but {} are needed for {} ranks", collective.counts.size(), n * n, size));
  }
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / 2 / element_size(collective.dtype) / n;
  std::uint64_t sent = 0, received = 0;
  for (std::size_t peer = 0; peer < n; ++peer) {
    const std::uint64_t to = collective.counts[me * n + peer], from = collective.counts[peer * n + me];
    if (to > most || from > most)
      refuse(collective, fmt::format("the counts exceed the address space at rank {}", peer));
    sent += to;
    received += from;
  }
  check_segments(collective, "input", collective.input, sent);
  check_segments(collective, "output", collective.output, received);
}

}  // namespace

void check_arguments(const Collective& collective, int rank, int size) {
  if (!is_valid(collective.kind)) refuse(collective, fmt::format("kind {}", static_cast<int>(collective.kind)));
  const OpTraits& op = traits_of(collective.kind);
  if (!op.moves_data()) {
    if (collective.count != 0 || !collective.input.empty() || !collective.output.empty()) {
      refuse(collective, "it takes no data");
    }
    return;
  }
  const std::size_t element = element_size(collective.dtype);
  if (element == 0) refuse(collective, fmt::format("unknown element type: {}", static_cast<int>(collective.dtype)));
  const auto ranks = static_cast<std::uint64_t>(size);
  if (collective.count > std::numeric_limits<std::uint64_t>::max() / 2 / element / ranks) {
    refuse(collective,
           fmt::format("{} elements for each of {} ranks exceed the address space", collective.count, size));
  }
  if (op.reduces) {
    check_reduction(collective);
    if (collective.order > Order::tree) {
      refuse(collective, fmt::format("unknown order: {}", static_cast<int>(collective.order)));
    }
    if (collective.order == Order::tree && !op.has_tree(size)) {
      refuse(collective,
             fmt::format("Order::tree needs a group whose number of ranks is a power of two; this group has {} ranks",
                         size));
    }
  }
  if (op.has_root() && (collective.root < 0 || collective.root >= size)) {
    refuse(collective, fmt::format("root {} is not a rank of this group of {} ranks (this is rank {})", collective.root,
                                   size, rank));
  }
  if (op.output == Extent::counted) return check_all_to_all(collective, rank, size);
  const auto elements = [&](Extent extent) {
    const bool has_parts = extent == Extent::all || (extent == Extent::all_on_root && rank == collective.root);
    return has_parts ? collective.count * ranks : extent == Extent::one ? collective.count : 0;
  };
  if (!op.is_in_place()) check_segments(collective, "input", collective.input, elements(op.input));
  check_segments(collective, "output", collective.output, elements(op.output));
}

}  // namespace lockstep::internal
