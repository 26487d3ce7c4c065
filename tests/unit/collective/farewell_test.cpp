#include "lockstep/comm/collective/farewell.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace farewell_test {

using namespace lockstep;
using namespace lockstep::internal;

namespace {

const CallReport kAccount{.name = "gradient bucket 0 (fc.weight) of backward 17", .failure = "backward: no memory"};

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("a farewell is found behind whatever data, however it is cut, and nothing behind it is touched") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const Marker marker = marker_of(random(), random(), 1, 2);
    // Data that looks like the beginning of the marker as often as not.
    std::vector<std::byte> stream = random_bytes(random, random() % 300);
    for (int i = 0; i < 3; ++i) {
      stream.insert(stream.end(), marker.begin(), marker.begin() + random() % marker.size());
    }
    const std::vector<std::byte> farewell = farewell_of(marker, kAccount);
    stream.insert(stream.end(), farewell.begin(), farewell.end());
    const std::size_t end = stream.size();
    const std::vector<std::byte> next = random_bytes(random, 50);
    stream.insert(stream.end(), next.begin(), next.end());

    FarewellReader reader(marker);
    // Some of it has been read already.
    std::size_t at = reader.take_copy(std::span(stream).first(random() % end));
    while (!reader.is_complete()) {
      const std::span<std::byte> room = reader.room();
      const std::size_t bytes = std::min<std::size_t>(room.size(), random() % 40 + 1);
      REQUIRE(at + bytes <= stream.size());
      std::memcpy(room.data(), stream.data() + at, bytes);
      reader.take(bytes);
      at += bytes;
    }
    CHECK(at == end);
    CHECK(reader.room().empty());
    CHECK(reader.account().name == kAccount.name);
    CHECK(reader.account().failure == kAccount.failure);
  }
}

TEST_CASE("markers differ by start, collective and direction") {
  const Marker marker = marker_of(1, 2, 3, 4);
  CHECK(marker == marker_of(1, 2, 3, 4));
  CHECK(marker != marker_of(0, 2, 3, 4));
  CHECK(marker != marker_of(1, 3, 3, 4));
  CHECK(marker != marker_of(1, 2, 4, 3));
  CHECK(std::ranges::count(marker, marker.front()) == 1);
}

TEST_CASE("an account of any bytes is text, and long ones are cut") {
  std::array<std::byte, kCallReportBytes> bytes;
  encode({.name = std::string(5000, 'a'), .failure = std::string(5000, 'b')}, bytes);
  CHECK(decode_call_report(bytes).name.size() > 100);
  CHECK(decode_call_report(bytes).failure.size() > 600);
  std::mt19937 random(2);
  for (int round = 0; round < 10'000; ++round) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const CallReport account = decode_call_report(bytes);
    for (const char c : account.name + account.failure) REQUIRE(static_cast<unsigned char>(c) >= ' ');
    CHECK(account.name.size() + account.failure.size() <= kCallReportBytes);
  }
}

}  // namespace farewell_test
