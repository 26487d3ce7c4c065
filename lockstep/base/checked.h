// Numbers from outside: a peer, the store, shared memory, a file. One of these functions validates each of them once,
// where it enters. `checked_` marks every such place; a number that is read and used without it is a mistake. bytes ->
// checked_...() -> a rank, an index, a size, an enumerator. Pure. A number out of range is Error{corrupt_data} with its
// origin, its value and its range: "rank 3's registration: the rank is 99, only 0 to 3 are possible".
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::internal {

// No job has as many: a larger number is damage.
inline constexpr int kMostRanks = 1 << 20;

// Where a number comes from. `what` must outlive this: "a store request", the path of a file; of a rank:
// "registration".
struct Origin {
  template <std::convertible_to<std::string_view> Text>
  Origin(const Text& text, int told_by = -1) : what(text), rank(told_by) {}

  std::string_view what;
  int rank;  // -1: none, or not known
};
// "a store request"; "rank 3's registration"
std::string to_string(const Origin& origin);

// Error{corrupt_data}: "<origin>: <why>".
[[noreturn]] void throw_corrupt(const Origin& origin, std::string_view why);
// The same: "<origin>: the <name> is <value>, only <least> to <most> are possible".
[[noreturn]] void throw_wrong_number(const Origin& origin, std::string_view name, const std::string& value,
                                     const std::string& least, const std::string& most);

// A number from `least` to `most`, as a value of their type.
template <std::integral Result, std::integral Number>
constexpr Result checked_between(Number value, Result least, std::type_identity_t<Result> most, std::string_view name,
                                 const Origin& origin) {
  if (std::cmp_less(value, least) || std::cmp_greater(value, most)) {
    throw_wrong_number(origin, name, std::to_string(value), std::to_string(least), std::to_string(most));
  }
  return static_cast<Result>(value);
}

// A size, a length, a count or an offset of at most `most`.
template <std::integral Number>
constexpr std::size_t checked_size(Number value, std::size_t most, std::string_view name, const Origin& origin) {
  return checked_between<std::size_t>(value, 0, most, name, origin);
}

// An index into `count` things. Error if `count` is 0.
template <std::integral Number>
constexpr std::size_t checked_index(Number value, std::size_t count, std::string_view name, const Origin& origin) {
  if (count == 0)
    throw_corrupt(origin, "the " + std::string(name) + " is " + std::to_string(value) + ", but the list is empty");
  return checked_size(value, count - 1, name, origin);
}

template <std::integral Number>
constexpr int checked_rank(Number value, int ranks, const Origin& origin) {
  return checked_between(value, 0, ranks - 1, "rank", origin);
}
// -1: no rank.
template <std::integral Number>
constexpr int checked_rank_or_none(Number value, int ranks, const Origin& origin) {
  return checked_between(value, -1, ranks - 1, "rank", origin);
}

// An enumerator of an enumeration without gaps.
template <class Enum, std::integral Number>
  requires std::is_enum_v<Enum>
constexpr Enum checked_enum(Number value, Enum first, Enum last, std::string_view name, const Origin& origin) {
  using Underlying = std::underlying_type_t<Enum>;
  // As numbers: bytes would be printed as characters.
  checked_between<std::int64_t>(value, static_cast<Underlying>(first), static_cast<Underlying>(last), name, origin);
  return static_cast<Enum>(value);
}

template <std::integral Number>
constexpr ErrorKind checked_error_kind(Number value, const Origin& origin) {
  return checked_enum(value, ErrorKind::invalid_argument, ErrorKind::internal, "kind of error", origin);
}

// A weight: a finite number, 0 or more.
double checked_weight(double value, std::string_view name, const Origin& origin);

// The bytes of a tensor of these sizes, `element` bytes each: at most `most`, without overflow. The sizes of an empty
// tensor must be possible as if the empty dimension had one row.
std::size_t checked_bytes(std::span<const std::int64_t> sizes, std::size_t element, std::size_t most,
                          std::string_view name, const Origin& origin);

// Every number below the length of the list, once each.
std::vector<std::size_t> checked_permutation(std::span<const std::int64_t> numbers, std::string_view name,
                                             const Origin& origin);

// A decimal number that is the whole text.
std::int64_t checked_decimal(std::string_view text, std::string_view name, const Origin& origin);

// `told` is a part of `of`, in the same order.
void check_subsequence(std::span<const std::string> told, std::span<const std::string> of, std::string_view name,
                       const Origin& origin);

}  // namespace lockstep::internal
