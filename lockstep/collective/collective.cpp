#include "lockstep/collective/collective.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/observe/process_recorder.h"

namespace lockstep {
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
      refuse(collective, fmt::format("{} segment {} has {} bytes, which is no multiple of {} ({})", which, i,
                                     segment.bytes, element, to_string(collective.dtype)));
    }
    if (segment.bytes != 0 && segment.data == nullptr) {
      refuse(collective, fmt::format("{} segment {} of {} bytes has no memory", which, i, segment.bytes));
    }
    if (traits_of(collective.kind).reduces && reinterpret_cast<std::uintptr_t>(segment.data) % element != 0) {
      refuse(collective, fmt::format("{} segment {} is not aligned to {} bytes ({})", which, i, element,
                                     to_string(collective.dtype)));
    }
    if (segment.bytes > left) refuse(collective, fmt::format("{} holds more than {} elements", which, elements));
    left -= segment.bytes;
  }
  if (left != 0) {
    refuse(collective, fmt::format("{} holds {} elements of {}, {} are needed", which, elements - left / element,
                                   to_string(collective.dtype), elements));
  }
}

void check_reduction(const Collective& collective) {
  if (collective.reduce > ReduceOp::bxor) {
    refuse(collective, fmt::format("no such reduction: {}", static_cast<int>(collective.reduce)));
  }
  if (supports(collective.reduce, collective.dtype)) return;
  if (collective.reduce == ReduceOp::avg) {
    refuse(collective, fmt::format("avg needs a floating-point type, not {}; use sum and divide as you mean it",
                                   to_string(collective.dtype)));
  }
  refuse(collective, fmt::format("{} of {} is not defined", to_string(collective.reduce), to_string(collective.dtype)));
}

void check_all_to_all(const Collective& collective, int rank, int size) {
  const auto n = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  if (collective.counts.size() != n * n || collective.count != 0) {
    refuse(collective, fmt::format("{} counts, {} are needed for {} ranks", collective.counts.size(), n * n, size));
  }
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / 2 / element_size(collective.dtype) / n;
  std::uint64_t sent = 0, received = 0;
  for (std::size_t peer = 0; peer < n; ++peer) {
    const std::uint64_t to = collective.counts[me * n + peer], from = collective.counts[peer * n + me];
    if (to > most || from > most) refuse(collective, fmt::format("counts with rank {} exceed the address space", peer));
    sent += to;
    received += from;
  }
  check_segments(collective, "input", collective.input, sent);
  check_segments(collective, "output", collective.output, received);
}

}  // namespace

Signature signature_of(const Collective& collective, std::uint64_t sequence, std::uint64_t generation) {
  // What does not matter to an operation stays at its default, so that ranks need not agree about it.
  const std::uint64_t name = collective.name == 0 ? 0 : collective.name + collective.number;
  Signature signature{.sequence = sequence,
                      .name = name,
                      .kind = collective.kind,
                      .generation = static_cast<std::uint16_t>(generation),
                      .line = collective.name == 0 ? collective.line : std::uint16_t{0}};
  const OpTraits& op = traits_of(collective.kind);
  if (!op.moves_data()) return signature;
  signature.count = collective.count;
  signature.dtype = collective.dtype;
  if (op.reduces) {
    signature.reduce = collective.reduce;
    signature.order = collective.order;
  }
  if (op.has_root()) signature.root = collective.root;
  return signature;
}

std::uint32_t check_of(const Signature& signature) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
  Signature bare = signature;
  bare.check = 0;
  std::uint64_t sum = kFactor;
  for (const std::uint64_t word : std::bit_cast<std::array<std::uint64_t, sizeof bare / 8>>(bare)) {
    sum = (std::rotl(sum, 23) ^ word) * kFactor;
  }
  return static_cast<std::uint32_t>(sum >> 32);
}

std::string describe(const Signature& signature, std::string_view name) {
  const OpTraits& op = traits_of(signature.kind);
  std::string text(to_string(signature.kind));
  if (op.reduces) {
    text += fmt::format("({}{})", to_string(signature.reduce), signature.order == Order::tree ? ", as a tree" : "");
  }
  text += fmt::format(" #{}", signature.sequence);
  if (op.output == Extent::counted) {
    text += fmt::format(" of {}", to_string(signature.dtype));
  } else if (op.moves_data()) {
    text += fmt::format(" of {} {}", signature.count, to_string(signature.dtype));
  }
  if (op.has_root()) text += fmt::format(" {} rank {}", op.root == Root::sends ? "from" : "to", signature.root);
  if (signature.name != 0) text += ", " + (name.empty() ? noted_name(signature.name) : std::string(name));
  return text;
}

FlightRecord record_of(const Signature& signature) {
  FlightRecord record;
  record.sequence = signature.sequence;
  record.count = signature.count;
  record.name = signature.name;
  record.dtype = signature.dtype;
  if (traits_of(signature.kind).has_root()) record.peer = signature.root;
  record.set_operation(to_string(signature.kind));
  if (traits_of(signature.kind).reduces) record.set_reduction(to_string(signature.reduce));
  return record;
}

namespace {

// Sides with equal calls, the first of them first.
using SameCall = std::vector<const CallSide*>;

std::vector<SameCall> by_call(const std::vector<CallSide>& sides, bool by_line) {
  const auto call_of = [&](const CallSide& side) {
    Signature call = side.signature;
    call.check = 0;
    return std::pair(call, by_line ? call.line : std::uint16_t{0});
  };
  std::vector<SameCall> calls;
  for (const CallSide& side : sides) {
    const auto same =
        std::ranges::find_if(calls, [&](const SameCall& call) { return call_of(*call.front()) == call_of(side); });
    if (same == calls.end()) {
      calls.push_back({&side});
    } else {
      same->push_back(&side);
    }
  }
  return calls;
}

// The line counts where it is all that differs.
bool differ_by_line(const std::vector<CallSide>& sides) { return by_call(sides, false).size() == 1; }

bool have_one_generation(const std::vector<CallSide>& sides) {
  return std::ranges::all_of(
      sides, [&](const CallSide& side) { return side.signature.generation == sides.front().signature.generation; });
}

// Whether they look alike: what describe() leaves out, signature_of() leaves at its default on every rank.
bool look_alike(const std::vector<CallSide>& sides) {
  const std::vector<SameCall> calls = by_call(sides, false);
  for (auto a = calls.begin(); a != calls.end(); ++a) {
    for (auto b = a + 1; b != calls.end(); ++b) {
      const Signature &one = a->front()->signature, &other = b->front()->signature;
      if (one.name == other.name && describe(one) == describe(other)) return true;
    }
  }
  return false;
}

// "with rank 0: 2, 3; " for calls that several ranks are in.
std::string companions(const std::vector<SameCall>& calls) {
  std::string text;
  for (const SameCall& call : calls) {
    if (call.size() == 1) continue;
    std::vector<int> others;
    for (auto side = call.begin() + 1; side != call.end(); ++side) others.push_back((*side)->rank);
    text += fmt::format("with rank {}: {}; ", call.front()->rank, fmt::join(others, ", "));
  }
  return text;
}

}  // namespace

Error desync_error(int rank, std::vector<CallSide> sides) {
  std::ranges::stable_sort(sides, [rank](const CallSide& a, const CallSide& b) {
    return std::pair(a.rank != rank, a.rank) < std::pair(b.rank != rank, b.rank);
  });
  const bool other_generation = !have_one_generation(sides);
  const bool by_line = differ_by_line(sides);
  const std::vector<SameCall> calls = by_call(sides, by_line);
  std::string text, failures;
  for (const SameCall& call : calls) {
    const CallSide& side = *call.front();
    text += fmt::format("{}{} in {}", text.empty() ? "" : "; ", side.who, describe(side.signature, side.account.name));
    if (other_generation) text += fmt::format(", generation {}", side.signature.generation);
    if (by_line) text += fmt::format(", called in line {}", side.signature.line);
  }
  for (const CallSide& side : sides) {
    if (side.account.failure.empty()) continue;
    failures += fmt::format("; before that, {} failed in {}", side.who, side.account.failure);
  }
  const char* hint = other_generation    ? "one of them belongs to an earlier start of this job"
                     : look_alike(sides) ? "they differ in what no rank sets: it was damaged on its way"
                                         : "all ranks must make the same calls in the same order";
  const Signature& mine = sides.front().signature;
  return Error(ErrorKind::desync,
               fmt::format("ranks are in different collectives: {} ({}{}){}", text, companions(calls), hint, failures),
               {.rank = rank,
                .peer = calls.size() > 1 ? calls[1].front()->rank : -1,
                .operation = std::string(to_string(mine.kind)),
                .sequence = mine.sequence});
}

PeerFailure departure_in(const Signature& wanted, const std::string& name, Departure how, const std::string& waiter) {
  const std::uint64_t made = wanted.sequence - 1;
  const bool left = how == Departure::left;
  return {.peer = -1,
          .name = name,
          .how = how,
          .when = fmt::format("after {} collective{}", made, made == 1 ? "" : "s"),
          .consequence = fmt::format(
              "{} waits for it in {}{}", waiter, describe(wanted),
              left ? ". If ranks have different numbers of batches, use join(), or drop the last ones" : "")};
}

std::string describe_other_line(const std::string& who, const Signature& theirs, const Signature& mine) {
  return fmt::format(
      "{} calls {} in line {} of its program, this rank does so in line {}. If they are not meant to be the same call, "
      "their data are mixed "
      "up: give calls a name (CallOptions::name), or set GroupOptions::call_sites to must_match",
      who, describe(theirs), theirs.line, mine.line);
}

bool is_other_line(const Signature& theirs, const Signature& mine) {
  return theirs.line != mine.line && theirs.line != 0 && mine.line != 0 && !traits_of(mine.kind).has_root();
}

bool can_go_on(const std::vector<CallSide>& sides) {
  const bool have_one_sequence = std::ranges::all_of(
      sides, [&](const CallSide& side) { return side.signature.sequence == sides.front().signature.sequence; });
  return have_one_sequence && have_one_generation(sides) && !look_alike(sides);
}

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
  if (element == 0) refuse(collective, fmt::format("no such element type: {}", static_cast<int>(collective.dtype)));
  const auto ranks = static_cast<std::uint64_t>(size);
  if (collective.count > std::numeric_limits<std::uint64_t>::max() / 2 / element / ranks) {
    refuse(collective,
           fmt::format("{} elements for each of {} ranks exceed the address space", collective.count, size));
  }
  if (op.reduces) {
    check_reduction(collective);
    if (collective.order == Order::tree && !std::has_single_bit(ranks)) {
      refuse(collective, fmt::format("a tree needs a power of two of ranks, this group has {}", size));
    }
  }
  if (op.has_root() && (collective.root < 0 || collective.root >= size)) {
    refuse(collective,
           fmt::format("root {} is not a rank of this group of {} (this is rank {})", collective.root, size, rank));
  }
  if (op.output == Extent::counted) return check_all_to_all(collective, rank, size);
  const auto elements = [&](Extent extent) {
    const bool has_parts = extent == Extent::all || (extent == Extent::all_on_root && rank == collective.root);
    return has_parts ? collective.count * ranks : extent == Extent::one ? collective.count : 0;
  };
  if (!op.is_in_place()) check_segments(collective, "input", collective.input, elements(op.input));
  check_segments(collective, "output", collective.output, elements(op.output));
}

}  // namespace lockstep
