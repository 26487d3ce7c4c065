#include "lockstep/comm/store/key_map.h"

#include "lockstep/comm/store/store.h"
#include "tests/support/expect_error.h"

namespace key_map_test {

using namespace lockstep;
using namespace lockstep::internal;

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
  KeyMap map({.keys = 3});
  for (const char* key : {"a", "b", "c"}) map.set(key, "");
  CHECK_ERROR(error_of([&] { map.set("one more", ""); }), ErrorKind::invalid_argument, "'one more'", "3 keys");
  CHECK_ERROR(error_of([&] { map.add("one more", 1); }), ErrorKind::invalid_argument, "3 keys");
  map.set("a", "changed");
  map.remove("b");
  map.set("one more", "");
  CHECK(map.size() == 3);
}

TEST_CASE("the bytes of all keys and values together are limited, and a refused set changes nothing") {
  KeyMap map({.bytes = 20});
  map.set("key", Bytes(10, 'v'));
  map.set("s", "t");
  CHECK_ERROR(error_of([&] { map.set("s", "123456789"); }), ErrorKind::invalid_argument, "'s'", "23 bytes",
              "limit is 20");
  CHECK(*map.find("s") == "t");
  CHECK(map.bytes() == 15);
  map.set("s", "123456");
  CHECK(map.bytes() == 20);
  CHECK(error_of([&] { map.set("s", "1234567"); }).kind() == ErrorKind::invalid_argument);
}

TEST_CASE("the limits are those that the Store's header promises") {
  CHECK(KeyMapLimits{}.keys == kMaxStoreKeys);
  CHECK(KeyMapLimits{}.bytes == kMaxStoreBytes);
}

}  // namespace key_map_test
