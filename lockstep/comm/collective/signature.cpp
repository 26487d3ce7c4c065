#include "lockstep/comm/collective/signature.h"

#include <array>
#include <bit>

#include "lockstep/base/format.h"
#include "lockstep/base/observe/process_recorder.h"

namespace lockstep::internal {

Signature signature_of(const Collective& collective, std::uint64_t sequence, std::uint64_t generation) {
  if (collective.as != nullptr) return signature_of(*collective.as, sequence, generation);
  // What does not matter to an operation stays at its default, so that ranks need not agree about it.
  const std::uint64_t name = collective.name == 0 ? 0 : collective.name + collective.number;
  Signature signature{.sequence = sequence,
                      .name = name,
                      .kind = collective.kind,
                      .generation = static_cast<std::uint8_t>(generation),
                      .mover = collective.mover,
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
  const std::string noted = signature.name != 0 && name.empty() ? noted_name(signature.name) : std::string(name);
  if (const auto numbers = describe_numbers(op.name, signature.sequence, noted)) return *numbers;
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
  if (signature.mover != Mover::engine) {  // two for each device of a rank: its first call, and the others
    const int number = static_cast<int>(signature.mover) - 1;
    text += number < 2 ? " on a device" : fmt::format(" on device {} of the rank", number / 2 + 1);
    if (number % 2 == 1) text += " for the first time";
  }
  if (signature.name != 0) text += ", " + noted;
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

}  // namespace lockstep::internal
