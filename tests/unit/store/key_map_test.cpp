#include "lockstep/store/key_map.h"

#include "lockstep/base/format.h"
#include "lockstep/store/store.h"
#include "tests/support/expect_error.h"

using namespace lockstep;

TEST_CASE("bytes are counted through set, overwrite, add and remove") {
  KeyMap map;
  map.set("key", "12345");
  CHECK(map.bytes() == 8);
  map.set("key", "1");
  CHECK(map.bytes() == 4);
  CHECK(map.add("key", 99) == 100);
  CHECK(map.bytes() == 6);
  map.compare_set("key", "100", "");
  CHECK(map.bytes() == 3);
  CHECK(map.remove("key"));
  CHECK_FALSE(map.remove("key"));
  CHECK(map.bytes() == 0);
  CHECK(map.size() == 0);
}

TEST_CASE("the number of keys is limited; existing ones can still change") {
  KeyMap map;
  for (std::size_t i = 0; i < kMaxStoreKeys; ++i) map.set(std::to_string(i), "");
  CHECK_ERROR(error_of([&] { map.set("one more", ""); }), ErrorKind::invalid_argument, "'one more'", "131072");
  CHECK_ERROR(error_of([&] { map.add("one more", 1); }), ErrorKind::invalid_argument, "131072");
  map.set("7", "changed");
  map.remove("8");
  map.set("one more", "");
  CHECK(map.size() == kMaxStoreKeys);
}

TEST_CASE("the bytes of all values together are limited, and a refused set changes nothing") {
  KeyMap map;
  const Bytes value(kMaxStoreValueBytes, 'v');
  const std::size_t fits = kMaxStoreBytes / kMaxStoreValueBytes - 1;
  for (std::size_t i = 0; i < fits; ++i) map.set(fmt::format("k{}", i), value);
  const std::size_t before = map.bytes();
  map.set("small", "s");
  CHECK_ERROR(error_of([&] { map.set("small", value); }), ErrorKind::invalid_argument, "'small'", "268435456");
  CHECK(*map.find("small") == "s");
  CHECK(map.bytes() == before + 6);
}
