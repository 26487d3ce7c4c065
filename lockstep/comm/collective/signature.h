// A Signature is what all ranks must agree on before the data of a collective moves. Values; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "lockstep/base/dtype.h"
#include "lockstep/base/observe/flight_recorder.h"
#include "lockstep/comm/collective/collective.h"

namespace lockstep::internal {

// Trivially copyable; 40 bytes; sent before the data.
struct Signature {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::uint64_t name = 0;  // with the number added
  std::int32_t root = 0;
  std::uint32_t check = 0;  // of all others, where they travel over a network: see check_of()
  OpKind kind = OpKind::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  Order order = Order::ranks;
  std::uint8_t generation = 0;  // the low bits; all of it was compared when the ranks met
  Mover mover = Mover::engine;
  std::uint16_t line = 0;  // see Collective::line; last, since it may differ

  // Except for the line.
  bool agrees_with(const Signature& other) const;
  friend bool operator==(const Signature& a, const Signature& b) { return a.agrees_with(b); }
};
inline constexpr std::size_t kAgreedBytes = offsetof(Signature, line);
inline bool Signature::agrees_with(const Signature& other) const {
  return std::memcmp(this, &other, kAgreedBytes) == 0;
}
static_assert(std::has_unique_object_representations_v<Signature>);
static_assert(sizeof(Signature) == 40);

Signature signature_of(const Collective& collective, std::uint64_t sequence, std::uint64_t generation);
// Differs for any two signatures that differ in few bits.
std::uint32_t check_of(const Signature& signature);
// "all_reduce(sum) #12 of 1024 float32" and, where they matter, root and name. name: its text, as another rank sent it;
// else that of this process.
std::string describe(const Signature& signature, std::string_view name = {});
// As the flight recorder keeps it.
FlightRecord record_of(const Signature& signature);

}  // namespace lockstep::internal
