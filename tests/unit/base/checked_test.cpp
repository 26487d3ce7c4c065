#include "lockstep/base/checked.h"

#include <cstdint>
#include <limits>

#include "tests/support/expect_error.h"

namespace checked_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

constexpr ErrorKind kKind = ErrorKind::corrupt_data;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
enum class Fruit : std::uint8_t { apple = 1, pear = 2 };

}  // namespace

TEST_CASE("a number is what it can be, or a lie that says who told it") {
  CHECK(checked_between(7U, 1, 9, "number", "a message") == 7);
  CHECK(checked_between<std::uint16_t>(65535LL, 0, 65535, "port", "a message") == 65535);
  CHECK_ERROR(error_of([] { checked_between(10, 1, 9, "number", "a message"); }), kKind,
              "a message: the number is 10; expected 1 to 9");
  CHECK_ERROR(error_of([] { checked_between(-1, 1U, 9U, "number", "a message"); }), kKind, "the number is -1");
  CHECK_ERROR(error_of([] { checked_between(~std::uint64_t{0}, -1, 5, "number", "a message"); }), kKind,
              "18446744073709551615");
  const Error error = error_of([] { checked_rank(std::uint32_t{4}, 4, {"registration", 3}); });
  CHECK_ERROR(error, kKind, "rank 3's registration: the rank is 4; expected 0 to 3");
  CHECK(error.detail().peer == 3);
  CHECK(checked_rank_or_none(-1, 4, "a message") == -1);
  CHECK_ERROR(error_of([] { checked_rank(-1, 4, "a message"); }), kKind, "rank is -1");
  CHECK(checked_index(3, 4, "place", "a message") == 3);
  CHECK_ERROR(error_of([] { checked_index(4U, 4, "place", "a message"); }), kKind, "expected 0 to 3");
  CHECK_ERROR(error_of([] { checked_index(0, 0, "place", "a message"); }), kKind,
              "the place is 0, but the list is empty");
  CHECK_ERROR(error_of([] { checked_size(std::int64_t{-5}, 10, "length", "a message"); }), kKind, "the length is -5");
}

TEST_CASE("enumerators that there are") {
  CHECK(checked_enum(std::uint8_t{2}, Fruit::apple, Fruit::pear, "fruit", "a message") == Fruit::pear);
  CHECK_ERROR(error_of([] { checked_enum(std::uint8_t{0}, Fruit::apple, Fruit::pear, "fruit", "a message"); }), kKind,
              "the fruit is 0; expected 1 to 2");
  CHECK(checked_error_kind(0, "a message") == ErrorKind::invalid_argument);
  CHECK_ERROR(error_of([] { checked_error_kind(8, "a message"); }), kKind, "kind of error is 8");
  CHECK_ERROR(error_of([] { checked_error_kind(-1, "a message"); }), kKind, "kind of error is -1");
}

TEST_CASE("sizes of tensors neither overflow nor pass their limit") {
  const auto bytes = [](const std::vector<std::int64_t>& sizes, std::size_t most) {
    return checked_bytes(sizes, 4, most, "shape", "a message");
  };
  CHECK(bytes({}, 4) == 4);
  CHECK(bytes({3, 5}, 60) == 60);
  CHECK(bytes({3, 0}, 60) == 0);
  CHECK_ERROR(error_of([&] { bytes({3, 5}, 59); }), kKind, "the shape is 3 x 5, which takes more than 59 bytes");
  CHECK_ERROR(error_of([&] { bytes({3, -1}, 60); }), kKind, "the shape is -1");
  CHECK_ERROR(error_of([&] { bytes({kMost, kMost, kMost}, ~std::size_t{0}); }), kKind, "takes more than");
  CHECK_ERROR(error_of([&] { bytes({0, kMost, 3}, kMost); }), kKind, "takes more than");
}

TEST_CASE("orders, decimal numbers, and what was asked for") {
  const std::vector<std::int64_t> order{2, 0, 1}, twice{2, 0, 2}, beyond{2, 0, 3}, negative{-1};
  CHECK(checked_permutation(order, "parameter", "a message") == std::vector<std::size_t>{2, 0, 1});
  CHECK_ERROR(error_of([&] { checked_permutation(twice, "parameter", "a message"); }), kKind,
              "parameter 2 occurs twice");
  CHECK_ERROR(error_of([&] { checked_permutation(beyond, "parameter", "a message"); }), kKind, "parameter is 3");
  CHECK_ERROR(error_of([&] { checked_permutation(negative, "parameter", "a message"); }), kKind, "parameter is -1");
  CHECK(checked_decimal("-17", "sum", "a message") == -17);
  for (const char* text : {"", " 1", "1 ", "0x1", "9223372036854775808", "one"}) {
    CHECK_ERROR(error_of([&] { checked_decimal(text, "sum", "a message"); }), kKind, "which is not a number");
  }
  const std::vector<std::string> asked{"a", "b", "c"}, some{"a", "c"}, other{"a", "d"}, turned{"c", "a"};
  check_subsequence(some, asked, "key", "a message");
  CHECK_ERROR(error_of([&] { check_subsequence(other, asked, "key", "a message"); }), kKind, "'d' was not requested");
  CHECK_ERROR(error_of([&] { check_subsequence(turned, asked, "key", "a message"); }), kKind, "'a' was not requested");
}

}  // namespace checked_test
